"""Floor 4: what is told of each call, to its log, its figures and its audit; and the answer for what went wrong in it."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import msgspec
import structlog

from mcp_bridge.access.callers import Caller
from mcp_bridge.metrics import Metrics
from mcp_bridge.spans import Spans
from mcp_bridge.translate import failure_from
from mcp_bridge.wire.failures import UNAVAILABLE, Failure, internal_error
from mcp_bridge.wire.headers import Headers
from mcp_bridge.wire.jsonrpc import Notification, Request
from mcp_bridge.wire.trace import TraceContext
from store_service.client import StoreError

if TYPE_CHECKING:
    from store_service.telemetry.traces import Begun

_CHANGING: Final = frozenset(("tools/call", "tasks/update", "tasks/cancel", "notifications/cancelled"))
"""The methods of which the audit log tells."""


class Entry(msgspec.Struct):
    """What is known of a call so far."""

    request_id: int | str | None = None
    method: str = ""
    caller: Caller | None = None
    outcome: str = "DISCONNECTED"
    noted: dict[str, object] = msgspec.field(default_factory=dict)
    started: float = msgspec.field(default_factory=time.perf_counter)
    span: "Begun | None" = None
    trace: TraceContext | None = None
    """Where its span stands; None without one."""


class Journal:
    """One log line and one measurement a call, and with traces one span. Never a payload."""

    def __init__(self, metrics: Metrics, spans: Spans | None) -> None:
        self._metrics = metrics
        self._spans = spans
        self._log = structlog.get_logger().bind()

    def hear(self, entry: Entry, message: Request | Notification, headers: Headers | None) -> None:
        """It is known what a call is: what is done for it from here on is within its span."""
        entry.method = message.method
        if self._spans is not None:
            entry.span = self._spans.begin(message, headers, time.perf_counter() - entry.started)
            entry.trace = self._spans.context(entry.span)

    def tell(self, entry: Entry, more: Mapping[str, object]) -> None:
        """Tells of a call that has ended, and of who changed what by it."""
        seconds = time.perf_counter() - entry.started
        self._metrics.tell(entry.method, entry.outcome, seconds)
        tell = self._log.warning if entry.outcome == str(UNAVAILABLE) else self._log.info
        tell(
            "call",
            id=entry.request_id,
            method=entry.method,
            tenant=entry.caller.tenant if entry.caller else None,
            outcome=entry.outcome,
            **more,
            ms=round(seconds * 1000, 2),
            **entry.noted,
        )
        if entry.method in _CHANGING and entry.caller is not None and not entry.caller.is_development:
            self._audit(entry, entry.caller)
        if entry.span is not None:
            Spans.end(entry.span, entry.outcome, entry.noted)

    def _audit(self, entry: Entry, caller: Caller) -> None:
        """One line for each call that may change something: who did what to which task by which credential."""
        self._log.info(
            "audit",
            action=entry.method,
            tenant=caller.tenant,
            issuer=caller.issuer,
            subject=caller.subject,
            token_id=caller.token_id,
            tool=entry.noted.get("tool"),
            task_id=entry.noted.get("task_id"),
            outcome=entry.outcome,
        )


def failure_for(error: Exception) -> Failure:
    """The answer for whatever was raised. Of a fault of ours the log has the whole, under an id that the caller is told."""
    if isinstance(error, Failure):
        # Whoever keeps it is in its own traceback. Together they would stay in memory with all that was read of the body.
        error.__traceback__ = error.__context__ = error.__cause__ = None
        return error
    known = failure_from(error) if isinstance(error, StoreError) else None
    if known is not None:
        return known
    correlation_id = uuid4().hex
    structlog.get_logger().error("call_failed", correlation_id=correlation_id, exc_info=error)
    return internal_error(correlation_id)
