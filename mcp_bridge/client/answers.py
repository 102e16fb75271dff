"""Questions to the client, and what answers them."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from mcp_bridge.client.errors import InputNeeded
from mcp_bridge.client.messages import InputRequest, TaskHandle
from mcp_bridge.wire.mcp import TASKS

Handler = Callable[[str, InputRequest], Awaitable[Mapping[str, Any]]]
"""Takes a question's key and the question; gives its response, for example `{"action": "accept", "content": {…}}`."""
Handlers = Mapping[str, Handler]
"""A handler for each method that can be answered: `elicitation/create`, `sampling/createMessage`, `roots/list`."""

_CAPABILITIES: Final = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}


def capabilities_of(handlers: Handlers) -> dict[str, Any]:
    """What a client with these handlers can declare: Tasks, and each kind of question that it answers."""
    kinds: dict[str, Any] = {_CAPABILITIES[method]: {} for method in handlers if method in _CAPABILITIES}
    return {"extensions": {TASKS: {}}, **kinds}


async def answer(
    handlers: Handlers, requests: Mapping[str, InputRequest], *, handle: TaskHandle | None = None
) -> dict[str, Mapping[str, Any]]:
    """The responses to all questions, asked for one after the other. Raises InputNeeded if one has no handler."""
    missing = {key: request for key, request in requests.items() if request.method not in handlers}
    if missing:
        raise InputNeeded(missing, handle=handle)
    return {key: await handlers[request.method](key, request) for key, request in requests.items()}
