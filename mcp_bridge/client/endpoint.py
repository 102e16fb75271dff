"""One server's methods, each as one request: what is asked, and what its answers mean."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar

import msgspec

from mcp_bridge.client.errors import DeadlineExceeded, HandleExpired, ProtocolFailure, TransportError
from mcp_bridge.client.messages import ResultKind, ResultMeta, TaskHandle, TaskSnapshot, Tool, ToolPage, ToolResult
from mcp_bridge.client.policy import Policy
from mcp_bridge.client.tools import ListedTool, Tools
from mcp_bridge.client.transport import OutOfTime, Request, Transport
from mcp_bridge.wire.failures import INVALID_PARAMS
from mcp_bridge.wire.mcp import WHY

T = TypeVar("T")

_MOST_TTL_MS = 86_400_000
_ALSO_COMPLETE = frozenset((("tasks/get", "task"),))
"""The extension's own examples call a task so that is looked at, though its text does not."""


class Endpoint:
    """The short requests of a server, and its tools as they were listed last.

    Each is repeated until `until`, by `time.monotonic()`, after which OutOfTime is raised; where that is None, as long as
    the policy allows for one request.
    """

    def __init__(self, transport: Transport, policy: Policy) -> None:
        self._transport = transport
        self._policy = policy
        self._tools: Tools | None = None
        self._tools_until = 0.0

    async def look(self, handle: TaskHandle, until: float | None) -> TaskSnapshot:
        """The task now. Raises HandleExpired."""
        return read(await self.about(handle, "tasks/get", {}, until), TaskSnapshot)

    async def explain(self, handle: TaskHandle) -> str:
        """Why the task is where it is. Raises HandleExpired."""
        result = read(await self.about(handle, "tasks/get", {"_meta": {WHY: True}}, None), ResultMeta)
        if not isinstance(text := result.meta.get(WHY), str):
            raise TransportError("the server does not tell why a task is where it is")
        return text

    async def update(self, handle: TaskHandle, responses: Mapping[str, Mapping[str, Any]], until: float | None) -> None:
        """Answers questions. Raises HandleExpired; ProtocolFailure where an answer is refused."""
        params = {"inputResponses": {key: dict(response) for key, response in responses.items()}}
        try:
            await self.about(handle, "tasks/update", params, until)
        except HandleExpired as refused:
            await self.look(handle, until)  # raises too, unless the responses were refused, not the handle
            if isinstance(refused.__cause__, ProtocolFailure):
                raise refused.__cause__ from None
            raise

    async def about(self, handle: TaskHandle, method: str, params: Mapping[str, Any], until: float | None) -> bytes:
        """The result of a request about a task. Raises HandleExpired."""
        try:
            return await self.ask(method, {"taskId": handle.task_id, **params}, until)
        except ProtocolFailure as failure:
            if failure.code == INVALID_PARAMS:
                raise HandleExpired(handle.task_id) from failure
            raise

    async def checked(self, result: ToolResult, name: str | None, until: float) -> ToolResult:
        """The result, if it keeps to its tool's output schema. Raises InvalidResult."""
        if name is not None:
            tool = await self.find_tool(name, until)
            if tool is not None:
                tool.check(result)
        return result

    def forget_tools(self) -> None:
        """Makes the next call read the tools anew."""
        self._tools = None

    async def find_tool(self, name: str, until: float) -> ListedTool | None:
        """The tool as it was listed; None where it is not listed. What was listed too long ago is listed again, and serves
        on where that fails. Raises ToolRefused."""
        tools = self._tools
        if tools is None:
            tools = await self.list_tools(until)
        elif time.monotonic() >= self._tools_until:
            with contextlib.suppress(ProtocolFailure, TransportError):
                tools = await self.list_tools(None)
        return tools.find(name)

    async def list_tools(self, until: float | None) -> Tools:
        """All pages of the tools, kept for the next calls. Where the list changes meanwhile, it is read once more."""
        found: list[Tool] = []
        params: dict[str, Any] = {}
        may_have_changed = True
        for _ in range(self._policy.pages):
            try:
                page = read(await self.ask("tools/list", params, until), ToolPage)
            except ProtocolFailure as failure:
                if failure.code != INVALID_PARAMS or not params or not may_have_changed:
                    raise
                found, params, may_have_changed = [], {}, False  # a cursor that was given out is none any more
                continue
            found += page.tools
            if page.next_cursor is None:
                return self._keep(Tools.read(found), min(page.ttl_ms, _MOST_TTL_MS) / 1000)
            params = {"cursor": page.next_cursor}
        raise TransportError(f"there are more than {self._policy.pages} pages of tools")

    def _keep(self, tools: Tools, seconds: float) -> Tools:
        self._tools, self._tools_until = tools, time.monotonic() + max(seconds, self._policy.tools_seconds)
        for name, reason in tools.refused.items():
            logging.getLogger(__name__).warning("the tool %r is left out: %r", name, reason)
        return tools

    async def ask(self, method: str, params: Mapping[str, Any], until: float | None = None) -> bytes:
        """The result of a short request, which may be repeated: until `until`, or as long as the policy allows for one."""
        last = time.monotonic() + self._policy.request_seconds if until is None else until
        request = Request(method=method, params=params, attempt_seconds=self._policy.attempt_seconds)
        try:
            result = await self._transport.request(request, until=last)
        except OutOfTime as ended:
            if until is None:
                raise ended.failure from None
            raise
        kind = read(result, ResultKind).result_type
        if kind != "complete" and (method, kind) not in _ALSO_COMPLETE:
            raise TransportError(f"the answer to {method} is of no kind that it may have: {kind}", is_unknown=True)
        return result


@contextlib.asynccontextmanager
async def within(until: float, handle: TaskHandle | None = None) -> AsyncIterator[None]:
    """Ends what is done inside at the deadline. Raises DeadlineExceeded."""
    message = "the deadline came before the answer" if handle is None else f"task {handle.task_id} goes on"
    clock = asyncio.timeout(max(0.0, until - time.monotonic()))
    try:
        async with clock:
            yield
    except OutOfTime as ended:
        raise DeadlineExceeded(message, handle=handle) from ended.failure
    except TimeoutError:
        if clock.expired():
            raise DeadlineExceeded(message, handle=handle) from None
        raise


def read(data: bytes, kind: type[T]) -> T:
    """A result as `kind`. Raises TransportError for one that is none."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise TransportError(f"the answer is not as it should be: {error}", is_unknown=True) from None
