"""Clients that speak MCP, over HTTP: calls that become tasks, polls, answers, cancels, held calls, subscriptions."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final

import aiohttp
import msgspec

from mcp_bridge.client.transport import write_request
from mcp_bridge.wire.mcp import IDEMPOTENCY_KEY, TASKS
from tests.robustness.clients.state import MCP_TENANT, Client, Known, Shared
from tests.robustness.history import UNKNOWN, digest, now_us

CAPABILITIES: Final[dict[str, Any]] = {"extensions": {TASKS: {}}, "elicitation": {"form": {}}}
TOOLS: Final = ("steps", "steps", "nap", "signal", "ask", "flaky", "raw", "raw")
_SECONDS: Final = 10.0
_INFO: Final = {"name": "robustness", "version": "1"}
_OVER: Final = ("completed", "failed", "cancelled")


_LAID_IN: Final = b'{"resultType":"complete",'
"""What stands before a worker's result within its task, instead of its first brace."""


class _Task(msgspec.Struct):
    """What a poll is answered with, its result as it was sent."""

    result: msgspec.Raw = msgspec.Raw(b"")


class _Answer(msgspec.Struct):
    """The same, as it came."""

    result: _Task


def _handed_over(data: bytes) -> bytes:
    """The result of a task as its worker handed it over, from what a poll was answered with; nothing while there is none."""
    result = msgspec.json.decode(data, type=_Answer).result.result
    return b"{" + bytes(result).removeprefix(_LAID_IN) if result else b""


class McpClient(Client):
    """One principal at either of two bridges."""

    def __init__(self, name: str, shared: Shared, seed: int, ports: Sequence[int]) -> None:
        super().__init__(name, shared, seed)
        self._ports = ports
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=8))
        self._unheard: list[tuple[str, str, dict[str, Any]]] = []

    @property
    def owes(self) -> int:
        """How many creations nobody has answered yet."""
        return len(self._unheard)

    async def close(self) -> None:
        """Ends its connections."""
        await self._session.close()

    async def act(self) -> None:
        """Does one thing."""
        if self._unheard:
            await self._create(*self._unheard[0])
            return
        if self.shared.may_create() and self.draw.random() < 0.25:
            tool = self.draw.choice(TOOLS)
            key = self.new_id()
            arguments = {"canary": f"canary-{MCP_TENANT}.{key}", "n": self.draw.randint(1, 3), "fails": self.draw.randint(0, 2)}
            await self._create(tool, key, arguments)
            return
        some = self.shared.some(self.draw, MCP_TENANT, 10)
        living = [known for known in some if not known.is_over]
        chance = self.draw.random()
        if not some:
            return
        if chance < 0.70 or not living:
            await asyncio.gather(*(self.read(known) for known in some[:5]))
        elif chance < 0.85:
            await self._answer(living)
        elif chance < 0.89 and not self.shared.is_quiet:
            await self._cancel(self.draw.choice(living))
        elif chance < 0.93 and self.shared.may_create():
            await self._hold()
        else:
            await self._listen(living)

    async def _ask(self, method: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """`ok` and the result, or how it was refused."""
        outcome, data = await self._ask_for_bytes(method, params)
        return outcome, msgspec.json.decode(data)["result"] if outcome == "ok" else {}

    async def _ask_for_bytes(self, method: str, params: dict[str, Any]) -> tuple[str, bytes]:
        """The same with the whole answer, as it came."""
        headers, body = write_request(
            method, params, request_id=1, capabilities=CAPABILITIES, client_info=_INFO
        )  # fmt: skip
        headers["Accept"] = "application/json"
        url = f"http://127.0.0.1:{self.draw.choice(self._ports)}/mcp"
        timeout = aiohttp.ClientTimeout(total=_SECONDS)
        try:
            async with self._session.post(url, data=msgspec.json.encode(body), headers=headers, timeout=timeout) as answer:
                data = await answer.read()
        except (aiohttp.ClientError, OSError, TimeoutError):
            return UNKNOWN, b""
        self.shared.history.look_over(self.name, MCP_TENANT, data)
        try:
            said = msgspec.json.decode(data)
        except msgspec.DecodeError:
            return UNKNOWN, b""
        if "result" in said:
            return "ok", data
        code = said.get("error", {}).get("code", 0)
        return UNKNOWN if code == 50300 else f"{code}", b""

    async def _create(self, tool: str, key: str, arguments: dict[str, Any]) -> None:
        again = bool(self._unheard)
        params = {"name": tool, "arguments": arguments, "_meta": {IDEMPOTENCY_KEY: key}}
        self.shared.creating += 1
        invoked = now_us()
        outcome, result = await self._ask("tools/call", params)
        self.shared.creating -= 1
        task = result.get("taskId", "") if outcome == "ok" else ""
        self.note("create", invoked, outcome, tenant=MCP_TENANT, task=task, request=f"mcp:{key}")
        if again:
            self._unheard.pop(0)
        if outcome == "ok":
            self.shared.made(MCP_TENANT, task, tool)
        elif outcome in (UNKNOWN, "42900"):
            self._unheard.append((tool, key, arguments))

    async def read(self, known: Known) -> None:
        """Polls one task."""
        invoked = now_us()
        outcome, data = await self._ask_for_bytes("tasks/get", {"taskId": known.task})
        status = msgspec.json.decode(data)["result"].get("status", "") if outcome == "ok" else ""
        known.asks = status == "input_required"
        result = _handed_over(data) if outcome == "ok" else b""
        payload = digest(result) if result else ""
        self.note("poll", invoked, outcome, tenant=MCP_TENANT, task=known.task, status=status, result=payload)
        if status in _OVER:
            self.shared.ended(known)

    async def _answer(self, living: list[Known]) -> None:
        asking = [known for known in living if known.asks]
        if not asking:
            return
        known = self.draw.choice(asking)
        invoked = now_us()
        responses = {"sure": {"action": "accept", "content": {"yes": True}}}
        outcome, _ = await self._ask("tasks/update", {"taskId": known.task, "inputResponses": responses})
        self.note("update", invoked, outcome, tenant=MCP_TENANT, task=known.task)

    async def _cancel(self, known: Known) -> None:
        invoked = now_us()
        outcome, _ = await self._ask("tasks/cancel", {"taskId": known.task})
        self.note("wish end", invoked, outcome, tenant=MCP_TENANT, task=known.task)

    async def _hold(self) -> None:
        """A call that is held until its work is done; its work is nobody's to know of when the answer is lost."""
        key = self.new_id()
        invoked = now_us()
        params = {
            "name": "held",
            "arguments": {"canary": f"canary-{MCP_TENANT}.{key}", "n": 1},
            "_meta": {IDEMPOTENCY_KEY: key},
        }
        outcome, _ = await self._ask("tools/call", params)
        self.note("hold", invoked, outcome, tenant=MCP_TENANT)

    async def _listen(self, living: list[Known]) -> None:
        """Reads some events, or hardly any and slowly, and leaves, mostly without a word."""
        wanted = [known.task for known in living[:10]]
        headers, body = write_request(
            "subscriptions/listen", {"notifications": {"taskIds": wanted}}, request_id=1, capabilities=CAPABILITIES,
            client_info=_INFO,
        )  # fmt: skip
        headers["Accept"] = "text/event-stream"
        url = f"http://127.0.0.1:{self.draw.choice(self._ports)}/mcp"
        invoked = now_us()
        is_slow = self.draw.random() < 0.3
        outcome = UNKNOWN
        events = 0
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with (
                asyncio.timeout(self.draw.uniform(0.2, 2.0)),
                self._session.post(url, data=msgspec.json.encode(body), headers=headers) as answer,
            ):
                outcome = "ok" if answer.status == 200 else f"{answer.status}"
                while chunk := await (answer.content.read(1) if is_slow else answer.content.readline()):
                    self.shared.history.look_over(self.name, MCP_TENANT, chunk)
                    events += chunk.startswith(b"data: ")
                    if is_slow:
                        await asyncio.sleep(0.05)
        self.note("listen", invoked, outcome, tenant=MCP_TENANT, events=events)
