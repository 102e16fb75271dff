"""The whole way of a client that nobody here wrote, from no token to a called tool. Security checklist A1, A2, A4, A7, A11."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import httpx2
import mcp_types
import pytest
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider, TokenStorage
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from mcp_bridge.app import Bridge
from mcp_bridge.config import Config
from store_service.client import Context, Worker
from tests.conftest import Stubs
from tests.pair import free_ports
from tests.security.authority import STATE_KEY
from tests.security.authorization_server import Codes, authorization_server

PATIENCE_SECONDS = 60
ROUTES = """
version: 1
tenants:
  acme:
    tools:
      - name: greet
        workflow: greet
        task: optional
        input_schema: {type: object}
        grants: {call: {scopes: [mcp]}}
      - name: publish
        workflow: greet
        task: optional
        advertise: true
        input_schema: {type: object}
        grants: {call: {scopes: [mcp, publish]}}
      - {name: secret, workflow: greet, task: optional, input_schema: {type: object}, grants: {call: {groups: [staff]}}}
"""


@dataclass
class Place:
    """A bridge, and who issues its tokens."""

    url: str
    codes: Codes


@pytest.fixture(params=["/mcp", "/t/acme/mcp"])
async def place(request: pytest.FixtureRequest, tmp_path: Path, store: Stubs) -> AsyncIterator[Place]:
    """Everything that there is in the world but the client."""
    bridge_port, issuer_port = free_ports(2)
    routes, issuers = tmp_path / "routes.yaml", tmp_path / "issuers.yaml"
    async with authorization_server(issuer_port) as codes:
        routes.write_text(ROUTES)
        trusted = f"{{issuer: '{codes.issuer}', jwks: '{codes.issuer}jwks', tenants: [acme]}}"
        issuers.write_text(f"version: 1\nscopes: [mcp]\nissuers: [{trusted}]\n")
        base = f"http://127.0.0.1:{bridge_port}"
        config = Config(
            routes=str(routes),
            issuers=str(issuers),
            public_url=base,
            state_keys=(STATE_KEY,),
            store=store.address,
            port=bridge_port,
            admin_port=0,
            drain_seconds=0,
        )
        bridge, worker = Bridge(config), Worker(store.address, tenants=["acme"])

        @worker.workflow("greet", version=1)
        async def greet(_: Context, args: dict[str, Any]) -> str:
            return f"Hello, {args.get('name', 'you')}"

        await bridge.start()
        async with worker:
            yield Place(base + request.param, codes)
        await bridge.stop()


class Memory(TokenStorage):
    """Keeps what the client got."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class Browser:
    """Opens what the client wants opened, and hands back where it was sent."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self._sent_to = ""

    async def open(self, url: str) -> None:
        self.opened.append(url)
        async with aiohttp.ClientSession() as session, session.get(url, allow_redirects=False) as response:
            assert response.status == 302, await response.text()
            self._sent_to = response.headers["Location"]

    async def come_back(self) -> AuthorizationCodeResult:
        query = parse_qs(urlsplit(self._sent_to).query)
        return AuthorizationCodeResult(code=query["code"][0], state=query["state"][0], iss=query["iss"][0])


@asynccontextmanager
async def connected(place: Place, browser: Browser) -> AsyncIterator[Client]:
    """The official client, which knows nothing but the URL."""
    about = OAuthClientMetadata(
        client_name="test", redirect_uris=[AnyUrl("http://127.0.0.1:1/callback")], grant_types=["authorization_code"]
    )
    provider = OAuthClientProvider(place.url, about, Memory(), browser.open, browser.come_back)
    async with (
        httpx2.AsyncClient(auth=provider, timeout=PATIENCE_SECONDS) as http,
        Client(streamable_http_client(place.url, http_client=http)) as client,
    ):
        yield client


def text_of(result: mcp_types.CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, mcp_types.TextContent)
    return content.text


@pytest.mark.row("A1", "A2", "A4", "A7")
async def test_a_client_that_knows_the_url_alone_gets_its_token_and_calls_a_tool(place: Place) -> None:
    browser = Browser()
    async with connected(place, browser) as client:
        listed = await client.list_tools()
        assert [tool.name for tool in listed.tools] == ["greet", "publish"]
        assert text_of(await client.call_tool("greet", {"name": "Ann"})) == "Hello, Ann"
    (asked,) = place.codes.asked
    assert (asked.resource, asked.scopes) == (place.url, ["mcp"])
    assert len(browser.opened) == len(place.codes.clients) == 1


@pytest.mark.row("A4", "A11")
async def test_a_call_that_takes_more_makes_the_client_ask_for_all_of_it_once(place: Place) -> None:
    async with connected(place, Browser()) as client:
        assert text_of(await client.call_tool("greet")) == "Hello, you"
        assert text_of(await client.call_tool("publish")) == "Hello, you"
    assert [sorted(asked.scopes or ()) for asked in place.codes.asked] == [["mcp"], ["mcp", "publish"]]
