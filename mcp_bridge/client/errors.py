"""What can go wrong, each with its own type. All of them are `ClientError`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp_bridge.client.messages import InputRequest, TaskHandle, ToolResult


class ClientError(Exception):
    """Anything that this client raises."""


class TransportError(ClientError):
    """No answer that can be read came back. `is_unknown`: the request may have been carried out all the same."""

    def __init__(
        self, message: str, *, status: int | None = None, is_unknown: bool = False, challenge: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status, if there was one."""
        self.is_unknown = is_unknown
        self.challenge = challenge
        """See ProtocolFailure, here and below."""
        self.retry_after_seconds: float | None = None


class ProtocolFailure(ClientError):  # noqa: N818 (it is an answer)
    """The server answered with a JSON-RPC error."""

    def __init__(
        self, code: int, message: str, data: object = None, *, status: int | None = None, challenge: str | None = None
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.data = data
        self.status = status
        self.challenge = challenge
        """`WWW-Authenticate`, if there was one: where tokens come from, and the scopes that one must have."""
        self.retry_after_seconds: float | None = None
        """`Retry-After`, if there was one: how long the server asks not to be asked again."""


class HandleExpired(ClientError):  # noqa: N818 (it says what happened)
    """The server knows no such task of this caller: the handle's time is over, or it never was one."""

    def __init__(self, task_id: str) -> None:
        super().__init__(f"task {task_id} is not found: its handle has expired, or it is not one of this caller's")
        self.task_id = task_id


class DeadlineExceeded(ClientError):  # noqa: N818 (it says what happened)
    """The operation's deadline came first. A task goes on; `handle`, if there is one, is as good as before."""

    def __init__(self, message: str, *, handle: "TaskHandle | None" = None) -> None:
        super().__init__(message)
        self.handle = handle


class TaskFailed(ClientError):  # noqa: N818 (it says what happened)
    """The task ended in a protocol error, which it carries."""

    def __init__(self, handle: "TaskHandle", code: int, message: str, data: object = None) -> None:
        super().__init__(f"task {handle.task_id} failed: {code}: {message}")
        self.handle = handle
        self.code = code
        self.message = message
        self.data = data


class TaskCancelled(ClientError):  # noqa: N818 (it says what happened)
    """The task was cancelled."""

    def __init__(self, handle: "TaskHandle") -> None:
        super().__init__(f"task {handle.task_id} was cancelled")
        self.handle = handle


class ToolError(ClientError):
    """The tool ran and says that it went wrong. `result` is what it says, made for a model to read."""

    def __init__(self, result: "ToolResult") -> None:
        super().__init__(result.text or "the tool went wrong and does not say how")
        self.result = result


class InvalidResult(ClientError):  # noqa: N818 (it says what came)
    """The result does not keep to the tool's own output schema."""

    def __init__(self, tool: str, reason: str) -> None:
        super().__init__(f"the result of {tool} does not keep to its output schema: {reason}")
        self.tool = tool
        self.reason = reason


class ToolRefused(ClientError):  # noqa: N818 (it says what happened)
    """The tool's definition breaks a rule that protects its callers, so this client does not call it."""

    def __init__(self, tool: str, reason: str) -> None:
        super().__init__(f"{tool} is not called: {reason}")
        self.tool = tool
        self.reason = reason


class InputNeeded(ClientError):  # noqa: N818 (it says what is needed)
    """There are questions for which this client has no handler.

    With `handle`, they are a task's: answer them by `update_task` and wait on. Without, a held call's: call again with
    handlers.
    """

    def __init__(self, requests: Mapping[str, "InputRequest"], *, handle: "TaskHandle | None" = None) -> None:
        kinds = sorted({request.method for request in requests.values()})
        super().__init__(f"no handler for {', '.join(kinds)}; asked under {', '.join(sorted(requests))}")
        self.requests = dict(requests)
        self.handle = handle
