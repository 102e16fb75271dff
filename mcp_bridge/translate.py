"""Between the store and MCP: a task as it is shown, and a refusal as it is answered. The one table of each.

Source: contract, sections 5, 10.7 and 10.16.
"""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
from taskstore.v1 import types_pb2

from mcp_bridge.wire import failures, results
from mcp_bridge.wire.failures import Failure
from mcp_bridge.wire.questions import Question, input_requests

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from store_service.client import StoreError

_STATUSES: Final = {
    types_pb2.TASK_STATE_QUEUED: b"working",
    types_pb2.TASK_STATE_LEASED: b"working",
    types_pb2.TASK_STATE_WAITING: b"working",
    types_pb2.TASK_STATE_COMPLETED: b"completed",
    types_pb2.TASK_STATE_FAILED: b"failed",
    types_pb2.TASK_STATE_CANCELLED: b"cancelled",
}
_TERMINAL: Final = frozenset((types_pb2.TASK_STATE_COMPLETED, types_pb2.TASK_STATE_FAILED, types_pb2.TASK_STATE_CANCELLED))
_JSON: Final = ("", "application/json")
_NEVER_MS: Final = 2**53
_QUIET_PER_POLL: Final = 10

# Refusals that waiting may cure. An empty reason: the answer did not come from the store itself.
_TROUBLE: Final = frozenset(("", "STORAGE_UNAVAILABLE", "OUTCOME_UNKNOWN", "DRAINING", "OVERLOADED", "TENANT_MOVED"))


def is_terminal(task: types_pb2.Task) -> bool:
    """Whether nothing leaves the task's state."""
    return task.state in _TERMINAL


def open_questions(task: types_pb2.Task) -> tuple[Question, ...]:
    """The questions that a waiting task has asked and nobody has answered, in the order asked; of any other task, none."""
    if task.state != types_pb2.TASK_STATE_WAITING:
        return ()
    return tuple(Question(one.key, one.method, one.params.data) for one in task.wait.input.requests)


def clock_ms(task: types_pb2.Task) -> int:
    """The database's clock when the task was read, in milliseconds of the epoch."""
    return _ms(task.read_at)


def waits_until_ms(task: types_pb2.Task) -> int:
    """When what the task waits for is over, in milliseconds of the epoch; later than any time if it has no end."""
    return _ms(task.wait.until) if task.wait.HasField("until") else _NEVER_MS


def is_expired(task: types_pb2.Task) -> bool:
    """Whether the task's handle has ended, so that the task is not found any more."""
    return task.HasField("handle_expires_at") and _order(task.handle_expires_at) <= _order(task.read_at)


def poll_interval_ms(task: types_pb2.Task, longest_ms: int) -> int:
    """How long the caller is asked to wait before it looks again: a tenth of the time for which nothing was seen to
    change, between the route's bounds. Progress is a change. Source: contract, section 5."""
    least = task.contract.poll_interval_ms
    quiet_ms = max(0, _ms(task.read_at) - _ms(task.changed_at))
    if is_terminal(task):
        return least
    return max(least, min(quiet_ms // _QUIET_PER_POLL, longest_ms))


def ttl_ms(task: types_pb2.Task) -> int:
    """How long from its creation the handle is usable. A live task never outlives its handle."""
    if task.HasField("handle_expires_at"):
        return _ms(task.handle_expires_at) - _ms(task.created_at)
    return max(0, _ms(task.read_at) - _ms(task.created_at)) + task.contract.ttl_ms


def task_members(task: types_pb2.Task, questions: Sequence[Question], poll_ms: int) -> bytes:
    """The members of a task without its outcome, for `Results.write`: what a created task is answered with.

    `questions` are those that are open and the reader's to answer. To others the task is one that works. `poll_ms` is its
    `poll_interval_ms`.
    """
    members = b'"taskId":"%b","status":"%b","createdAt":"%b","lastUpdatedAt":"%b","ttlMs":%d,"pollIntervalMs":%d' % (
        task.task_id.encode(),
        b"input_required" if questions else _STATUSES[task.state],
        _text(task.created_at),
        _text(task.changed_at),
        ttl_ms(task),
        poll_ms,
    )
    if task.HasField("error"):
        message = task.error.message
    elif is_terminal(task) or not (message := task.progress.message):
        return members
    return members + b',"statusMessage":' + msgspec.json.encode(message)


def detailed_task_members(task: types_pb2.Task, questions: Sequence[Question], poll_ms: int) -> tuple[results.Piece, ...]:
    """The members of a task with its result, its error or the `questions`: what `tasks/get` is answered with, in pieces."""
    members = task_members(task, questions, poll_ms)
    if questions:
        return members, b',"inputRequests":', input_requests(questions)
    match task.WhichOneof("outcome"):
        case "result":
            return members, b',"result":', *results.inlined(tool_result(task))
        case "error":
            return members, b',"error":', msgspec.json.encode(_error(task.error))
        case _:
            return (members,)


def tool_result(task: types_pb2.Task) -> bytes:
    """The `CallToolResult` of a completed task, byte for byte what the worker handed over if that was one."""
    if task.result.media_type not in _JSON:
        return results.tool_error("The tool answered with something that is not JSON and cannot be shown")
    return results.as_tool_result(task.result.data)


def failure_of(task: types_pb2.Task) -> Failure:
    """The JSON-RPC error of a failed task, as the answer of a call that waited for it. What a task came to is no fault
    of the HTTP request, so the status is 200, but for a missing capability, for which MCP asks for 400."""
    error = task.error
    status = 400 if error.code == failures.MISSING_CAPABILITY else 200
    return Failure(error.code, error.message, data=_error(error).get("data"), status=status)


def failure_from(error: "StoreError") -> Failure | None:
    """The answer for a refusal of the store; None for one that no caller can cause."""
    seconds = (error.retry_after_ms or 1000) / 1000
    match error.reason:
        case "TASK_NOT_FOUND":
            return failures.task_not_found()
        case "REQUEST_ID_CONFLICT":
            return Failure(failures.KEY_CONFLICT, "The idempotency key was used for another call; use a new key")
        case "OUTSTANDING_LIMIT" | "CREATE_RATE":
            return failures.too_many("Too many tasks; try again later", seconds)
        case "INPUT_TOO_LARGE":
            return failures.invalid_params("the arguments are larger than is allowed here")
        case reason if reason in _TROUBLE:
            return failures.unavailable(math.ceil(seconds))
        case _:
            return None


def _error(error: types_pb2.TaskError) -> dict[str, Any]:
    fields: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.HasField("data") and error.data.media_type in _JSON:
        fields["data"] = msgspec.Raw(error.data.data)
    return fields


def _ms(time: "Timestamp") -> int:
    return time.seconds * 1000 + time.nanos // 1_000_000


def _order(time: "Timestamp") -> tuple[int, int]:
    return time.seconds, time.nanos


def _text(time: "Timestamp") -> bytes:
    """RFC 3339 in UTC with milliseconds."""
    return b"%b.%03dZ" % (_second(time.seconds), time.nanos // 1_000_000)


@lru_cache(maxsize=4096)
def _second(seconds: int) -> bytes:
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19].encode()
