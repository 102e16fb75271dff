"""Which methods are served. Source: contract, section 3."""

from collections.abc import Mapping
from typing import Final

from mcp_bridge.access.polls import Polls
from mcp_bridge.access.routes import Routes
from mcp_bridge.methods.calls import Method
from mcp_bridge.methods.discover import make_discover
from mcp_bridge.methods.held import HeldCalls
from mcp_bridge.methods.rounds import Rounds
from mcp_bridge.methods.tasks import TaskMethods
from mcp_bridge.methods.tools import ToolMethods
from mcp_bridge.wire.results import Results
from mcp_bridge.wire.state import StateKeys
from store_service.client import TaskStore

METHODS: Final = ("server/discover", "tools/list", "tools/call", "tasks/get", "tasks/update", "tasks/cancel")


def make_methods(
    store: TaskStore, routes: Routes, results: Results, *, held: HeldCalls, polls: Polls, keys: StateKeys
) -> Mapping[str, Method]:
    """Every method that is served, by its name. Any other is unknown."""
    tools = ToolMethods(store, routes, results, held, Rounds(store, results, keys))
    tasks = TaskMethods(store, results, polls)
    return {
        "server/discover": make_discover(results),
        "tools/list": tools.list_tools,
        "tools/call": tools.call_tool,
        "tasks/get": tasks.get_task,
        "tasks/update": tasks.update_task,
        "tasks/cancel": tasks.cancel_task,
    }
