"""MCP as it goes over the wire: one POST for each request, and nothing remembered in between."""

import itertools
from types import TracebackType
from typing import Any, Self

import aiohttp

VERSION = "2026-07-28"
TASKS = "io.modelcontextprotocol/tasks"


class McpError(Exception):
    """The server answered with a JSON-RPC error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code: int = error["code"]


class McpClient:
    """A client that declares the Tasks extension, unless told not to. Use it as a context."""

    def __init__(self, url: str, *, tasks: bool = True) -> None:
        self._url = url
        self._capabilities: dict[str, Any] = {"extensions": {TASKS: {}}} if tasks else {}
        self._ids = itertools.count(1)
        self._session = aiohttp.ClientSession()

    async def call(self, method: str, about: str | None = None, **params: Any) -> dict[str, Any]:
        """Sends one request; returns its result. `about` is the tool or the task that it is about."""
        headers, body = request(method, about, next(self._ids), params, capabilities=self._capabilities)
        async with self._session.post(self._url, json=body, headers=headers) as response:
            answer: dict[str, Any] = await response.json()
        if "error" in answer:
            raise McpError(answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()


def request(
    method: str, about: str | None, request_id: int, params: dict[str, Any], *, capabilities: dict[str, Any]
) -> tuple[dict[str, str], dict[str, Any]]:
    """The headers and the body of a request. The headers repeat what gateways route by."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientInfo": {"name": "tenure-demo", "version": "0.1.0"},
        "io.modelcontextprotocol/clientCapabilities": capabilities,
    }
    headers = {
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "MCP-Protocol-Version": VERSION,
        "Mcp-Method": method,
    }
    if about is not None:
        headers["Mcp-Name"] = about
    return headers, {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {**params, "_meta": meta}}
