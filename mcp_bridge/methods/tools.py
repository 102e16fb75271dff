"""`tools/list` and `tools/call`. Source: contract, sections 4, 10.6, 10.11 and 10.21."""

import base64
import re
from typing import Final

import msgspec
from taskstore.v1 import tasks_pb2, types_pb2

from mcp_bridge.access.routes import Route, Routes, TaskMode
from mcp_bridge.methods.calls import Call
from mcp_bridge.methods.held import HeldCalls
from mcp_bridge.methods.progress import ProgressRelay
from mcp_bridge.methods.rounds import Rounds, early_answers, require_shown, task_input
from mcp_bridge.translate import failure_of, is_terminal, task_members, tool_result
from mcp_bridge.wire.digests import call_digest
from mcp_bridge.wire.failures import invalid_params
from mcp_bridge.wire.headers import check_params
from mcp_bridge.wire.mcp import IDEMPOTENCY_KEY, PREFLIGHT, ToolCall, read_tool_call, tasks_required
from mcp_bridge.wire.results import Results, join, tool_error
from mcp_bridge.wire.state import RequestState
from store_service.client import TaskStore

PAGE: Final = 200
LIST_TTL_MS: Final = 60_000
ARGUMENTS_BYTES: Final = 1024 * 1024
KEY_BYTES: Final = 256

_TRACE_PARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class ToolMethods:
    """What a caller does with the tools it is granted."""

    def __init__(self, store: TaskStore, routes: Routes, results: Results, held: HeldCalls, rounds: Rounds) -> None:
        self._store = store
        self._routes = routes
        self._results = results
        self._held = held
        self._rounds = rounds

    async def list_tools(self, call: Call) -> bytes:
        """Answers with a page of the caller's tools, in the order of the route file. Raises Failure for a bad cursor."""
        routes = self._routes.granted(call.caller)
        start = _read_cursor(call.params.get("cursor"), before=len(routes))
        members: dict[str, object] = {"ttlMs": LIST_TTL_MS, "cacheScope": "private"}
        if start + PAGE < len(routes):
            members["nextCursor"] = _cursor(start + PAGE)
        tools = b",".join(route.description for route in routes[start : start + PAGE])
        return self._results.write(join(members, tools=b"[" + tools + b"]"))

    async def call_tool(self, call: Call) -> bytes:
        """Creates a task for the call, once its route's questions are answered, or goes on with the one that the call's
        state names. Answers with its handle, or holds the call and answers with its result or its questions."""
        wanted = read_tool_call(call.params, call.body)
        key = _read_key(call)
        route = self._routes.find(call.caller, wanted.tool)
        if route is None:
            raise invalid_params("unknown tool")
        call.noted["tool"] = route.tool
        check_params(call.headers, route.arguments.mirrored, wanted.arguments)
        if route.task is TaskMode.REQUIRED and not call.meta.has_tasks:
            raise tasks_required()
        call.meta.require(route.requires)
        require_shown(call, route.preflight)
        state = self._rounds.open(call, route, wanted, key)
        if state.task_id:  # what began as a held call ends as one
            return await self._hold(call, route, wanted, state, await self._rounds.resume(call, wanted, state))
        if fault := _fault(route, wanted):
            return self._results.write_tool_result(tool_error(fault))
        ready = self._rounds.preflight(call, route, wanted, state)
        if isinstance(ready, bytes):
            return ready
        if route.task is TaskMode.NEVER or not call.meta.has_tasks:
            return await self._hold(call, route, wanted, ready, None)
        return await self._hand_out(call, route, wanted, ready)

    async def _hold(
        self, call: Call, route: Route, wanted: ToolCall, state: RequestState, resumed: types_pb2.Task | None
    ) -> bytes:
        task = resumed
        if task is None:
            abandon_after_ms = self._held.abandon_after_ms(route, has_key=state.has_key)
            task = (await self._create(call, route, wanted, state, abandon_after_ms=abandon_after_ms)).task
        relay = ProgressRelay(call, after=state.reports_shown)
        news = await self._held.hold(call, route, task, state=state, relay=relay, is_resumed=resumed is not None)
        if news is None:
            return self._results.write_tool_result(tool_error(f"timed out after {route.call_timeout_ms / 1000:g} s"))
        if not is_terminal(news):
            state = msgspec.structs.replace(state, reports_shown=relay.last)
            return self._rounds.pause(call, route, wanted, state, news)
        return self._results.write_tool_result(_result(news))

    async def _hand_out(self, call: Call, route: Route, wanted: ToolCall, state: RequestState) -> bytes:
        """Answers with the handle of a task that is committed; or with its end, if it comes within inline_wait.

        Until its handle is given out, a task is one that may be abandoned, as its caller may leave.
        """
        waits = route.inline_wait_ms > 0
        abandon_after_ms = self._held.abandon_after_ms(route, has_key=state.has_key) if waits else 0
        created = await self._create(call, route, wanted, state, abandon_after_ms=abandon_after_ms)
        task = created.task
        if waits:
            task = await self._held.news_of(call.caller, task, within_ms=route.inline_wait_ms) or task
            if task.state in (types_pb2.TASK_STATE_COMPLETED, types_pb2.TASK_STATE_FAILED):
                return self._results.write_tool_result(_result(task))
        if (abandon_after_ms or created.replayed) and not is_terminal(task):
            await self._held.attach(call.caller, task, abandon_after_ms=0)
        return self._results.write(task_members(task), result_type="task")

    async def _create(
        self, call: Call, route: Route, wanted: ToolCall, state: RequestState, *, abandon_after_ms: int
    ) -> tasks_pb2.CreateTaskResponse:
        caller = call.caller
        created = await self._store.create_task(
            tasks_pb2.CreateTaskRequest(
                tenant_id=caller.tenant,
                request_id=state.call_id,
                content_digest=call_digest(wanted.tool, wanted.arguments),
                contract=types_pb2.TaskContract(
                    tool=route.tool,
                    workflow=route.workflow,
                    workflow_version=route.workflow_version,
                    owner=caller.owner,
                    client_capabilities=wanted.capabilities_json,
                    output_schema=route.output_schema,
                    ttl_ms=route.ttl_ms,
                    poll_interval_ms=route.poll_interval_ms,
                    execution_deadline_ms=route.execution_deadline_ms,
                    trace_parent=_trace_parent(call),
                ),
                priority=route.priority,
                input=types_pb2.Payload(data=task_input(wanted, state)),
                early_answers=early_answers(route, wanted),
                abandon_after_ms=abandon_after_ms,
            )
        )
        call.noted["task_id"] = created.task.task_id
        call.noted["replayed"] = created.replayed
        return created


def _result(task: types_pb2.Task) -> bytes:
    """The `CallToolResult` of a task that has ended. Raises Failure for one that failed."""
    match task.state:
        case types_pb2.TASK_STATE_COMPLETED:
            return tool_result(task)
        case types_pb2.TASK_STATE_FAILED:
            raise failure_of(task)
        case _:
            return tool_error("cancelled")


def _fault(route: Route, wanted: ToolCall) -> str | None:
    """What is wrong with the arguments, in words from which a model can mend its call."""
    size_bytes = len(wanted.arguments_json)
    if size_bytes > ARGUMENTS_BYTES:
        return f"Invalid arguments: arguments: {size_bytes} bytes are more than the {ARGUMENTS_BYTES} allowed"
    if PREFLIGHT in wanted.arguments:
        return f"Invalid arguments: arguments.{PREFLIGHT}: is no name for an argument"
    faults = route.arguments.faults(wanted.arguments, size_bytes=size_bytes)
    return "Invalid arguments: " + "; ".join(faults) if faults else None


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


def _read_key(call: Call) -> str | None:
    """The client's idempotency key, from the header or from `_meta`. Raises Failure -32602 for a bad one."""
    given: list[object] = [_unquoted(text) for text in call.headers.all("Idempotency-Key")]
    if IDEMPOTENCY_KEY in call.meta.members:
        given.append(call.meta.members[IDEMPOTENCY_KEY])
    if not given:
        return None
    key = given[0]
    if not isinstance(key, str) or not 0 < len(key.encode()) <= KEY_BYTES:
        raise invalid_params(f"the idempotency key must be a text of 1 to {KEY_BYTES} bytes")
    if any(other != key for other in given):
        raise invalid_params("the idempotency keys of header and _meta differ")
    return key


def _unquoted(text: str) -> str:
    """The header's value; it is a quoted string in the draft that defines it, and bare in much that is deployed."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text


def _trace_parent(call: Call) -> str:
    """The W3C trace context of the call, if it has a well-formed one; `_meta` before the header."""
    given = [call.meta.members.get("traceparent"), *call.headers.all("traceparent")]
    return next((text for text in given if isinstance(text, str) and _TRACE_PARENT.fullmatch(text)), "")
