"""What the code of a workflow raises to say how its task ends."""

from typing import Any, Final

INTERNAL_ERROR: Final = -32603
"""The JSON-RPC code of what went wrong on our side."""

_INT32: Final = range(-(2**31), 2**31)


class ToolError(Exception):
    """The work came to nothing, and this text tells its caller why.

    The task completes with a tool result whose `isError` is true, which the caller's model reads and may act on.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class ProtocolError(Exception):
    """The task fails with this JSON-RPC error, and is not tried again.

    `message` and `data` (JSON) are shown to the caller. A message longer than 1,024 bytes is cut.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{code}: {message}")
        if code not in _INT32:
            raise ValueError("code must be a 32-bit integer")
        self.code = code
        self.message = message
        self.data = data


class Cancelled(BaseException):
    """The run shall stop. Let it pass, after cleaning up.

    It is no Exception, as `asyncio.CancelledError` is none, so that `except Exception` does not hold it back.
    """


class SignalTimeout(ToolError):  # noqa: N818 (reads as what happened)
    """A signal did not come in time. Not caught, the task completes with this text as its error."""

    def __init__(self, signal_name: str) -> None:
        super().__init__(f"The signal {signal_name!r} did not come in time.")
        self.signal_name = signal_name


class InputTimeout(ToolError):  # noqa: N818 (as above)
    """A question was not answered in time. Not caught, the task completes with this text as its error."""

    def __init__(self, question: str) -> None:
        super().__init__(f"The question {question!r} was not answered in time.")
        self.question = question


class StepFailed(Exception):  # noqa: N818 (reads as what happened)
    """A step tried by `ctx.with_retry` failed for the last time. This is its outcome, which is saved and final.

    Not caught, it ends the task, which is not tried again. `reason` names the last exception; it is not shown to callers.
    """

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(f"step {step!r} failed: {reason}")
        self.step = step
        self.reason = reason


class NotDone(Exception):  # noqa: N818 (reads as what happened)
    """What a step of `ctx.once` is for certainly did not happen: the run is tried again, and begins it anew."""


class Suspended(BaseException):
    """The run ends here, as its task waits; it is run again when the wait is over. For the library.

    It is no Exception, so that `except Exception` does not hold it back. `finally` runs, with the lease still held.
    """
