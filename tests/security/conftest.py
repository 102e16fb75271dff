"""A bridge that checks tokens, over a store in memory."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mcp_bridge.app import Bridge
from mcp_bridge.config import Config
from tests.bridge.client import Client
from tests.bridge.fake_store import FakeTaskStore
from tests.conftest import started
from tests.security.authority import PUBLIC_URL, Authority

ROUTES = """
version: 1
scopes:
  reports:admin: [reports:write]
  reports:write: [reports:read]
tenants:
  acme:
    tools:
      - name: report
        workflow: report
        workflow_version: 1
        task: optional
        input_schema: {type: object}
        grants: {call: {scopes: [reports:write]}, read: {scopes: [reports:read]}, cancel: {scopes: [reports:admin]}}
      - name: publish
        workflow: publish
        task: required
        input_schema: {type: object}
        advertise: true
        grants: {call: {scopes: [reports:write, publish]}}
      - name: payroll
        workflow: payroll
        task: required
        input_schema: {type: object}
        grants: {call: {groups: [hr], scopes: [payroll]}}
      - name: private
        workflow: private
        task: required
        advertise: true
        input_schema: {type: object}
        grants: {call: {scopes: [reports:write], principals: [{issuer: "https://as.example", subject: eve}]}}
      - name: nobodys
        workflow: nobodys
        task: optional
        input_schema: {type: object}
      - name: travel
        workflow: travel
        task: optional
        input_schema: {type: object}
        grants: {call: anyone, approve: {groups: [managers]}, read_any: {groups: [auditors]}}
  beta:
    grants: {call: anyone}
    tools:
      - {name: report, workflow: report, workflow_version: 2, task: optional, input_schema: {type: object}}
"""


class Users:
    """Clients of one bridge, each with a token of its own."""

    def __init__(self, session: aiohttp.ClientSession, bridge: Bridge, authority: Authority) -> None:
        self.session = session
        self.bridge = bridge
        self.authority = authority

    def bearing(self, token: str | None, *, path: str = "/mcp") -> Client:
        """A client that sends this token."""
        client = Client(self.session, self.bridge.port)
        client.url = f"http://127.0.0.1:{self.bridge.port}{path}"
        client.token = token
        return client

    def user(self, subject: str = "ann", *, path: str = "/mcp", **claims: Any) -> Client:
        """A client whose token has these claims."""
        return self.bearing(self.authority.token(sub=subject, aud=PUBLIC_URL + path, **claims), path=path)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Who issues the tokens."""
    return Authority(tmp_path)


@pytest.fixture
def fake() -> FakeTaskStore:
    """The store behind the bridge."""
    return FakeTaskStore()


@pytest.fixture
def config(tmp_path: Path, authority: Authority) -> Config:
    """The settings of the bridge."""
    routes = tmp_path / "routes.yaml"
    routes.write_text(ROUTES)
    return Config(
        routes=str(routes),
        **authority.settings,
        port=0,
        admin_port=0,
        drain_seconds=0,
    )


@pytest.fixture
async def bridge(config: Config, fake: FakeTaskStore) -> AsyncIterator[Bridge]:
    """A bridge that listens."""
    async with started(Bridge(config, connect=lambda _: fake)) as running:
        yield running


@pytest.fixture
async def users(bridge: Bridge, authority: Authority) -> AsyncIterator[Users]:
    """Everybody who calls."""
    async with aiohttp.ClientSession() as session:
        yield Users(session, bridge, authority)
