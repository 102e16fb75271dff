"""`tools/list` and `tools/call`. Source: contract, sections 4, 10.6, 10.11 and 10.21."""

import base64
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from taskstore.v1 import types_pb2

from mcp_bridge.access.limits import Limiter
from mcp_bridge.access.routes import CurrentRoutes, Route, TaskMode
from mcp_bridge.cells import Cells
from mcp_bridge.methods.calls import Call
from mcp_bridge.methods.creation import create_task, fault_in, known_change_of, read_key, result_of
from mcp_bridge.methods.held import HeldCalls
from mcp_bridge.methods.progress import ProgressRelay
from mcp_bridge.methods.rounds import Rounds, require_shown
from mcp_bridge.translate import is_expired, is_terminal, open_questions, poll_interval_ms, task_members
from mcp_bridge.wire.failures import call_is_over, invalid_params
from mcp_bridge.wire.headers import check_params
from mcp_bridge.wire.mcp import ToolCall, read_tool_call, tasks_required
from mcp_bridge.wire.results import Results, join, tool_error
from mcp_bridge.wire.state import RequestState

PAGE: Final = 200
LIST_TTL_MS: Final = 60_000


class ToolMethods:
    """What a caller does with the tools it is granted."""

    def __init__(
        self, store: Cells, routes: CurrentRoutes, results: Results, held: HeldCalls, rounds: Rounds, *, limiter: Limiter
    ) -> None:
        self._store = store
        self._routes = routes
        self._results = results
        self._held = held
        self._limiter = limiter
        self._rounds = rounds

    async def list_tools(self, call: Call) -> bytes:
        """Answers with a page of the caller's tools, in the order of the route file. Raises Failure for a bad cursor."""
        tools = [route.description for route in self._routes.now.granted(call.caller)]
        return self._results.write(page_of(tools, call.params.get("cursor"), ttlMs=LIST_TTL_MS, cacheScope="private"))

    async def call_tool(self, call: Call) -> bytes:
        """Creates a task for the call, once its route's questions are answered, or goes on with the one that the call's
        state names. Answers with its handle, or holds the call and answers with its result or its questions."""
        wanted = read_tool_call(call.params, call.body)
        key = read_key(call)
        route = self._routes.now.find(call.caller, wanted.tool)
        if route is None:
            raise invalid_params("unknown tool")
        call.noted["tool"] = route.tool
        if call.headers is not None:
            check_params(call.headers, route.arguments.mirrored, wanted.arguments)
        if route.task is TaskMode.REQUIRED and not call.meta.has_tasks:
            raise tasks_required()
        call.meta.require(route.requires)
        require_shown(call, route.preflight)
        if wanted.state is None:
            self._limiter.take_create(call.caller)
        state = self._rounds.open(call, route, wanted, key)
        if state.task_id:  # what began as a held call ends as one
            return await self._resume(call, route, wanted, state)
        if fault := fault_in(route, wanted):
            return self._results.write_tool_result(tool_error(fault))
        ready = self._rounds.preflight(call, route, wanted, state)
        if isinstance(ready, bytes):
            return ready
        if route.task is TaskMode.NEVER or not call.meta.has_tasks:
            with self._limiter.stream(call.caller):
                abandon_after_ms = self._held.abandon_after_ms(route, has_key=ready.has_key)
                created = await create_task(self._store, call, route, wanted, ready, abandon_after_ms=abandon_after_ms)
                return await self._hold(
                    call, route, wanted, ready, created.task, is_resumed=False, known_change=known_change_of(created)
                )
        return await self._hand_out(call, route, wanted, ready)

    async def _resume(self, call: Call, route: Route, wanted: ToolCall, state: RequestState) -> bytes:
        with self._limiter.stream(call.caller):
            task = await self._rounds.resume(call, route, wanted, state)
            return await self._hold(call, route, wanted, state, task, is_resumed=True)

    async def _hold(
        self,
        call: Call,
        route: Route,
        wanted: ToolCall,
        state: RequestState,
        task: types_pb2.Task,
        *,
        is_resumed: bool,
        known_change: int = 0,
    ) -> bytes:
        relay = ProgressRelay(call, after=state.reports_shown)
        news = await self._held.hold(
            call, route, task, state=state, relay=relay, is_resumed=is_resumed, known_change=known_change
        )
        if news is None:
            return self._results.write_tool_result(timed_out(route))
        if not is_terminal(news):
            state = msgspec.structs.replace(state, reports_shown=relay.last)
            return self._rounds.pause(call, route, wanted, state, news)
        return self._results.write_tool_result(result_of(news))

    async def _hand_out(self, call: Call, route: Route, wanted: ToolCall, state: RequestState) -> bytes:
        """Answers with the handle of a task that is committed; or with its end, if it comes within inline_wait.

        Until its handle is given out, a task is one that may be abandoned, as its caller may leave.
        """
        waits = route.inline_wait_ms > 0
        abandon_after_ms = self._held.abandon_after_ms(route, has_key=state.has_key) if waits else 0
        created = await create_task(self._store, call, route, wanted, state, abandon_after_ms=abandon_after_ms)
        task = created.task
        if waits:
            news = await self._held.news_of(
                call.caller, route, task, within_ms=route.inline_wait_ms, known_change=known_change_of(created)
            )
            task = news or task
            if task.state in (types_pb2.TASK_STATE_COMPLETED, types_pb2.TASK_STATE_FAILED):
                return self._results.write_tool_result(result_of(task))
        if is_expired(task):  # the same call came before, and its handle has ended: no tasks/get would find it
            raise call_is_over()
        if (abandon_after_ms or created.replayed) and not is_terminal(task):
            await self._held.attach(call.caller, task, abandon_after_ms=0)
        questions = route.grants.asked(call.caller, open_questions(task), is_own=True)
        poll_ms = poll_interval_ms(task, route.longest_poll_ms)
        return self._results.write(task_members(task, questions, poll_ms), result_type="task")


def timed_out(route: Route) -> bytes:
    """What a call is answered whose work took too long."""
    return tool_error(f"timed out after {route.call_timeout_ms / 1000:g} s")


def page_of(tools: Sequence[bytes], cursor: object, **members: Any) -> bytes:
    """The members of one page of tools. Raises Failure -32602 for a cursor that was never given out."""
    start = _read_cursor(cursor, before=len(tools))
    if start + PAGE < len(tools):
        members["nextCursor"] = _cursor(start + PAGE)
    return join(members, tools=b"[" + b",".join(tools[start : start + PAGE]) + b"]")


def _read_cursor(cursor: object, *, before: int) -> int:
    """Where the page starts. A cursor means the same on every bridge. Raises Failure for one that was never given."""
    if cursor is None:
        return 0
    for start in range(PAGE, before, PAGE):
        if cursor == _cursor(start):
            return start
    raise invalid_params("cursor is not one that was given out here")


def _cursor(start: int) -> str:
    return base64.urlsafe_b64encode(b"tools:%d" % start).decode()
