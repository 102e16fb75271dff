"""Which methods are served, in which era. Source: contract, sections 3 and 8."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from mcp_bridge.access.callers import Caller
from mcp_bridge.access.limits import Limiter
from mcp_bridge.access.polls import Polls
from mcp_bridge.access.routes import CurrentRoutes
from mcp_bridge.cells import Cells
from mcp_bridge.methods.calls import Call, Method
from mcp_bridge.methods.discover import make_discover
from mcp_bridge.methods.held import HeldCalls
from mcp_bridge.methods.legacy import LegacyMethods
from mcp_bridge.methods.listen import Subscriptions
from mcp_bridge.methods.rounds import Rounds
from mcp_bridge.methods.tasks import TaskMethods
from mcp_bridge.methods.tools import ToolMethods
from mcp_bridge.wire.results import Results
from mcp_bridge.wire.state import StateKeys

METHODS: Final = (
    "server/discover", "tools/list", "tools/call", "tasks/get", "tasks/update", "tasks/cancel", "subscriptions/listen",
)  # fmt: skip
LEGACY_METHODS: Final = ("initialize", "ping", "tools/list", "tools/call")


@dataclass(frozen=True, slots=True)
class Methods:
    """Every method that is served, by its name. Any other is unknown."""

    modern: Mapping[str, Method]
    legacy: Mapping[str, Method]
    cancel_legacy_call: Callable[[Caller, str], Awaitable[None]]
    """Ends the work of an earlier client's call, which is named by its reference."""


def make_methods(
    store: Cells,
    routes: CurrentRoutes,
    results: Results,
    *,
    held: HeldCalls,
    subscriptions: Subscriptions,
    polls: Polls,
    limiter: Limiter,
    keys: StateKeys,
) -> Methods:
    """The methods over one store, by one route file."""
    tools = ToolMethods(store, routes, results, held, Rounds(store, results, keys), limiter=limiter)
    tasks = TaskMethods(store, routes, results, polls)
    legacy = LegacyMethods(store, routes, results, held, keys, limiter=limiter)
    return Methods(
        modern={
            "server/discover": make_discover(results),
            "tools/list": tools.list_tools,
            "tools/call": _staying(store, tools.call_tool),
            "tasks/get": tasks.get_task,
            "tasks/update": tasks.update_task,
            "tasks/cancel": tasks.cancel_task,
            "subscriptions/listen": _staying(store, subscriptions.listen),
        },
        legacy={
            "initialize": legacy.initialize,
            "ping": legacy.ping,
            "tools/list": legacy.list_tools,
            "tools/call": _staying(store, legacy.call_tool),
        },
        cancel_legacy_call=legacy.cancel_call,
    )


def _staying(store: Cells, method: Method) -> Method:
    """A method that may take long: to its end, its tenant lives in a cell that is known, whatever becomes of the route file."""

    async def answer(call: Call) -> bytes:
        with store.staying(call.caller.tenant):
            return await method(call)

    return answer
