"""What clients of earlier revisions are served: `initialize`, `ping`, `tools/list`, and `tools/call` as held calls.

Source: contract, sections 8, 10.5 and 10.7.
"""

from typing import Any, Final

import msgspec
from taskstore.v1 import tasks_pb2

from mcp_bridge.access.callers import Caller
from mcp_bridge.access.grants import Action
from mcp_bridge.access.limits import Limiter
from mcp_bridge.access.routes import CurrentRoutes, TaskMode
from mcp_bridge.cells import Cells
from mcp_bridge.methods.calls import Call
from mcp_bridge.methods.creation import create_task, fault_in, read_key, result_of
from mcp_bridge.methods.held import HeldCalls, wish_end
from mcp_bridge.methods.progress import ProgressRelay
from mcp_bridge.methods.rounds import first_state, require_shown
from mcp_bridge.methods.tools import page_of, timed_out
from mcp_bridge.translate import is_terminal, open_questions
from mcp_bridge.wire.failures import invalid_params
from mcp_bridge.wire.inbound import SESSION_HEADER
from mcp_bridge.wire.mcp import LEGACY_VERSIONS, read_legacy_tool_call, tasks_required
from mcp_bridge.wire.results import Results, as_legacy_tool_result, tool_error
from mcp_bridge.wire.state import StateKeys
from store_service.client import StoreError

INSTRUCTIONS: Final = "The work behind these tools is durable: it outlives the connection and the server."
_EMPTY: Final = b"{}"


class LegacyMethods:
    """What an earlier client does. It can neither hold a task nor be asked, so it sees only tools that need neither."""

    def __init__(
        self, store: Cells, routes: CurrentRoutes, results: Results, held: HeldCalls, keys: StateKeys, *, limiter: Limiter
    ) -> None:
        self._store = store
        self._routes = routes
        self._results = results
        self._held = held
        self._limiter = limiter
        self._keys = keys

    async def initialize(self, call: Call) -> bytes:
        """Answers with a revision that is served, and opens a session that any bridge can check."""
        wanted = call.params.get("protocolVersion")
        if not isinstance(wanted, str):
            raise invalid_params("protocolVersion must be a string")
        call.reply_headers[SESSION_HEADER] = self._keys.mint_session(bound_to=session_of(call.caller))
        answer: dict[str, Any] = {
            "protocolVersion": wanted if wanted in LEGACY_VERSIONS else LEGACY_VERSIONS[0],
            "capabilities": {"tools": {}},
            "serverInfo": self._results.server_info,
            "instructions": INSTRUCTIONS,
        }
        return msgspec.json.encode(answer)

    async def ping(self, _call: Call) -> bytes:
        """Answers."""
        return _EMPTY

    async def list_tools(self, call: Call) -> bytes:
        """Answers with a page of the caller's tools, without those that need Tasks or ask. Raises Failure for a bad cursor."""
        shown = [route.legacy_description for route in self._routes.now.granted(call.caller) if route.legacy_description]
        return b"{" + page_of(shown, call.params.get("cursor")) + b"}"

    async def call_tool(self, call: Call) -> bytes:
        """Creates a task for the call, holds the call, and answers with the task's result. Never detaches."""
        wanted = read_legacy_tool_call(call.params, call.meta, call.body)
        key = read_key(call)
        route = self._routes.now.find(call.caller, wanted.tool)
        if route is None:
            raise invalid_params("unknown tool")
        call.noted["tool"] = route.tool
        if route.task is TaskMode.REQUIRED:
            raise tasks_required()
        call.meta.require(route.requires)
        require_shown(call, route.preflight)
        self._limiter.take_create(call.caller)
        if fault := fault_in(route, wanted):
            return tool_error(fault)
        state = msgspec.structs.replace(first_state(call.caller, key), rounds=route.max_detaches)  # no round may follow
        with self._limiter.stream(call.caller):
            abandon_after_ms = self._held.abandon_after_ms(route, has_key=state.has_key)
            task = (await create_task(self._store, call, route, wanted, state, abandon_after_ms=abandon_after_ms)).task
            relay = ProgressRelay(call, after=0)
            news = await self._held.hold(call, route, task, state=state, relay=relay, is_resumed=False)
        if news is not None and not is_terminal(news):  # it asks, whom nobody here can answer
            news = await self._held.end(call.caller, route, task) or news
            require_shown(call, route.grants.asked(call.caller, open_questions(news), is_own=True))
        return as_legacy_tool_result(timed_out(route) if news is None else result_of(news))

    async def cancel_call(self, caller: Caller, reference: str) -> None:
        """Wishes the end of a call's work, on whichever bridge it is held. A call that is not known is ignored, and so is one
        whose work the caller may not end."""
        find = tasks_pb2.FindTaskRequest(tenant_id=caller.tenant, reference=reference, owner=caller.owner)
        try:
            task = await self._store.find_task(find)
            if self._routes.now.may(caller, Action.CANCEL, task):
                await wish_end(self._store, caller, task)
        except StoreError as error:
            if error.reason != "TASK_NOT_FOUND":
                raise


def session_of(caller: Caller) -> tuple[bytes, ...]:
    """Whom a session is bound to."""
    return (caller.tenant.encode(), caller.issuer.encode(), caller.subject.encode())
