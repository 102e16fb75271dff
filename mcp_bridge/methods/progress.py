"""Progress of held work, told to the client that waits for it. Source: contract, section 10.10."""

from typing import Any

from taskstore.v1 import types_pb2

from mcp_bridge.methods.calls import Call
from mcp_bridge.wire.mcp import progress_token


class ProgressRelay:
    """Tells each report that is seen once and in order, and none that is not above the last one told."""

    def __init__(self, call: Call) -> None:
        self._outbox = call.outbox
        self._token = progress_token(call.meta.members)
        self._sequence = 0
        self._value: float | None = None

    def relay(self, task: types_pb2.Task) -> None:
        """Tells the task's last report, if it is news and the client asked for it."""
        report = task.progress
        if self._outbox is None or self._token is None or report.sequence <= self._sequence:
            return
        self._sequence = report.sequence
        if self._value is not None and report.value <= self._value:
            return
        self._value = report.value
        params: dict[str, Any] = {"progressToken": self._token, "progress": _number(report.value)}
        if report.HasField("total"):
            params["total"] = _number(report.total)
        if report.message:
            params["message"] = report.message
        self._outbox.notify("notifications/progress", params)


def _number(value: float) -> float | int:
    return int(value) if value.is_integer() and abs(value) < 2**53 else value
