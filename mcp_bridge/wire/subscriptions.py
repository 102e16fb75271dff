"""The messages of `subscriptions/listen`. Source: contract, sections 6 and 10.20."""

from dataclasses import dataclass
from typing import Any, Final

from mcp_bridge.wire.failures import invalid_params
from mcp_bridge.wire.jsonrpc import notification
from mcp_bridge.wire.mcp import SUBSCRIPTION_ID

MOST_TASKS: Final = 100
ID_BYTES: Final = 256


@dataclass(frozen=True, slots=True)
class Filter:
    """What a client wants to be told."""

    task_ids: tuple[str, ...] | None
    """As they were sent, none twice; None where the client did not ask for tasks."""
    tools_list_changed: bool


def read_filter(params: dict[str, Any]) -> Filter:
    """Reads the parameters of `subscriptions/listen`. Kinds that are not served are passed over. Raises Failure -32602."""
    wanted = params.get("notifications")
    if not isinstance(wanted, dict):
        raise invalid_params("notifications must be an object")
    tools_list_changed = wanted.get("toolsListChanged", False)
    if not isinstance(tools_list_changed, bool):
        raise invalid_params("notifications.toolsListChanged must be a boolean")
    if "taskIds" not in wanted:
        return Filter(None, tools_list_changed)
    task_ids = wanted["taskIds"]
    if not isinstance(task_ids, list) or not all(isinstance(one, str) and len(one.encode()) <= ID_BYTES for one in task_ids):
        raise invalid_params(f"notifications.taskIds must be an array of strings of at most {ID_BYTES} bytes")
    if len(task_ids) > MOST_TASKS:
        raise invalid_params(f"notifications.taskIds must have at most {MOST_TASKS} ids")
    return Filter(tuple(dict.fromkeys(task_ids)), tools_list_changed)


class Subscription:
    """Writes what is told on one stream, all of it under the id of the request that opened it."""

    def __init__(self, request_id: int | str) -> None:
        self._meta = {SUBSCRIPTION_ID: request_id}
        self._head = notification("notifications/tasks", {"_meta": self._meta}).removesuffix(b"}}") + b","

    def acknowledged(self, agreed: Filter) -> bytes:
        """What the client will be told. It says nothing of whether a task exists."""
        notifications: dict[str, Any] = {}
        if agreed.task_ids is not None:
            notifications["taskIds"] = agreed.task_ids
        if agreed.tools_list_changed:
            notifications["toolsListChanged"] = True
        params = {"_meta": self._meta, "notifications": notifications}
        return notification("notifications/subscriptions/acknowledged", params)

    def tools_list_changed(self) -> bytes:
        """The tools of the client are others now."""
        return notification("notifications/tools/list_changed", {"_meta": self._meta})

    def task(self, members: bytes) -> tuple[bytes, bytes, bytes]:
        """A task as it stands, in pieces, as `members` may be large and those of many streams."""
        return self._head, members, b"}}"
