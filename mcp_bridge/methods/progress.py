"""Progress of held work, told to the client that waits for it. Source: contract, section 10.10."""

from collections.abc import Iterable
from typing import Any

from taskstore.v1 import types_pb2

from mcp_bridge.methods.calls import Call
from mcp_bridge.wire.mcp import progress_token


class ProgressRelay:
    """Tells each report once and in order, but none whose value is not above the last one told."""

    def __init__(self, call: Call, *, after: int) -> None:
        self._outbox = call.outbox
        self._token = progress_token(call.meta.members)
        self.last = after
        """The number of the last report that the call was shown, in its earlier rounds too."""
        self._value: float | None = None

    def relay(self, reports: Iterable[types_pb2.Progress]) -> None:
        """Tells the reports of one answer of a watch, if the client asked for them."""
        for report in reports:
            if report.sequence > self.last:
                self.last = report.sequence
                self._tell(report)

    def _tell(self, report: types_pb2.Progress) -> None:
        if self._outbox is None or self._token is None or (self._value is not None and report.value <= self._value):
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
