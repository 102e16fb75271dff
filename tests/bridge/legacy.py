"""A client as earlier revisions have it."""

from typing import Any

from tests.bridge.client import Answer, Client

VERSIONS = ("2025-11-25", "2025-06-18")


class Legacy:
    """An earlier client. `session` is sent once there is one."""

    def __init__(self, client: Client, version: str | None = VERSIONS[0]) -> None:
        self._client = client
        self.version = version
        self.session: str | None = None

    async def send(self, body: dict[str, Any], **headers: str | None) -> Answer:
        """Sends a message with the headers of its revision, or others where given."""
        fields = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": self.version,
            "Mcp-Session-Id": self.session,
        }
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        return await self._client.send(body, {name: value for name, value in fields.items() if value is not None})

    async def ask(
        self, method: str, params: dict[str, Any] | None = None, *, request_id: Any = 1, **headers: str | None
    ) -> Answer:
        return await self.send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params or {}}, **headers)

    async def initialize(self, version: Any = VERSIONS[0]) -> dict[str, Any]:
        """Opens a session, as clients do it: without the version in a header."""
        params = {"protocolVersion": version, "capabilities": {"sampling": {}}, "clientInfo": {"name": "c", "version": "1"}}
        answer = await self.ask("initialize", params, MCP_Protocol_Version=None)
        self.session = answer.headers["Mcp-Session-Id"]
        return answer.result

    async def call(self, tool: str, arguments: Any = None, **others: Any) -> Answer:
        return await self.ask("tools/call", {"name": tool, "arguments": arguments or {}}, **others)


def cancelled(request_id: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id, "reason": "enough"}}
