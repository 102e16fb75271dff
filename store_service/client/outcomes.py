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
