"""A client that can send anything, and sends what is right unless told otherwise."""

import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from yarl import URL

from mcp_bridge.app import Bridge

VERSION = "2026-07-28"
TASKS: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
PREFIX = "io.modelcontextprotocol/"
ABSENT = object()


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        """The response, whichever form it has: the body, or the end of its stream, which an answer that is late becomes."""
        is_stream = self.headers.get("Content-Type") == "text/event-stream"
        value = self.events[-1] if is_stream else json.loads(self.body)
        assert isinstance(value, dict)
        return value

    @property
    def result(self) -> dict[str, Any]:
        """The result, which there must be."""
        assert self.status == 200, self.body
        result = self.json["result"]
        assert isinstance(result, dict)
        return result

    @property
    def events(self) -> list[dict[str, Any]]:
        """What its stream told, which it must be."""
        assert self.headers["Content-Type"] == "text/event-stream"
        lines = [line for line in self.body.splitlines() if line.startswith(b"data: ")]
        return [json.loads(line.removeprefix(b"data: ")) for line in lines]

    @property
    def code(self) -> int:
        """The code of the error, which there must be."""
        code = self.json["error"]["code"]
        assert isinstance(code, int)
        return code


def meta(capabilities: Any = None, **others: Any) -> dict[str, Any]:
    """A `_meta` as every request has one."""
    return {PREFIX + "protocolVersion": VERSION, PREFIX + "clientCapabilities": capabilities or {}, **others}


def headers_for(method: str, name: str | None = None, **others: Any) -> dict[str, str]:
    """The headers of a request; one that is given as None is left out."""
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": VERSION,
        "Mcp-Method": method,
        "Mcp-Name": name,
    }
    headers |= {key.replace("_", "-"): value for key, value in others.items()}
    return {key: value for key, value in headers.items() if value is not None}


class Client:
    """Talks to one bridge."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session = session
        self.port = port
        self.url = f"http://127.0.0.1:{port}/mcp"
        self.token: str | None = None

    async def send(
        self, body: bytes | dict[str, Any], headers: dict[str, str], *, verb: str = "POST", url: str | URL | None = None
    ) -> Answer:
        """Sends exactly this."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        if self.token is not None and "Authorization" not in headers:
            headers = {**headers, "Authorization": f"Bearer {self.token}"}
        async with self._session.request(
            verb, url or self.url, data=io.BytesIO(data), headers=headers, skip_auto_headers=("Content-Type", "Accept")
        ) as response:
            return Answer(response.status, response.headers, await response.read())

    async def ask(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        capabilities: Any = None,
        request_id: Any = 1,
        name: str | None = None,
        meta_members: dict[str, Any] | None = None,
        **headers: Any,
    ) -> Answer:
        """Sends a request as it should be, with other headers where given; one given as None is left out."""
        params = {**(params or {}), "_meta": {**meta(capabilities), **(meta_members or {})}}
        body = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        return await self.send(body, headers_for(method, name, **headers))

    async def call(self, tool: str, arguments: Any = None, *, tasks: bool = False, **others: Any) -> Answer:
        """Calls a tool."""
        others.setdefault("capabilities", TASKS if tasks else {})
        return await self.ask("tools/call", {"name": tool, "arguments": arguments or {}}, name=tool, **others)

    async def task(self, action: str, task_id: str, **others: Any) -> Answer:
        """Calls `tasks/<action>`."""
        others.setdefault("name", task_id)
        others.setdefault("capabilities", TASKS)
        params = {"taskId": task_id, **({"inputResponses": {}} if action == "update" else {})}
        return await self.ask(f"tasks/{action}", params, **others)


@asynccontextmanager
async def client_of(bridge: Bridge) -> AsyncIterator[Client]:
    """A client of a bridge that listens."""
    async with aiohttp.ClientSession() as session:
        yield Client(session, bridge.port)
