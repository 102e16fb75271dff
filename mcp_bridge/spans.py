"""Floor 4: the span of a call, by OpenTelemetry's conventions for MCP servers. Arguments and results are never in it."""

import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from mcp_bridge.wire.headers import Headers
from mcp_bridge.wire.jsonrpc import Notification, Request
from mcp_bridge.wire.mcp import CANCELLED, PROTOCOL_VERSION, SUPPORTED_VERSIONS
from mcp_bridge.wire.trace import TraceContext, read_trace

if TYPE_CHECKING:
    from store_service.telemetry.traces import Begun, Traces

_OTHER: Final = "_OTHER"
"""Stands for methods that are not served, whose names are anybody's."""


class Spans:
    """Begins and ends the spans of calls."""

    def __init__(self, traces: "Traces", methods: Collection[str]) -> None:
        self._traces = traces
        self._methods = frozenset((*methods, CANCELLED))

    def begin(self, message: Request | Notification, headers: Headers | None, seconds: float) -> "Begun":
        """The span of a call that came so many seconds ago. It is the current one from here on.

        Its parent is what `_meta` names, or else the HTTP headers; where both do, it is linked with what the headers name.
        """
        meta = message.params.get("_meta")
        members = meta if isinstance(meta, dict) else {}
        parent = read_trace(members, headers)
        ambient = read_trace({}, headers)
        method = message.method if message.method in self._methods else _OTHER
        attributes: dict[str, str | int] = {
            "mcp.method.name": method,
            "network.transport": "pipe" if headers is None else "tcp",
        }
        if isinstance(message, Request):
            attributes["jsonrpc.request.id"] = str(message.id)
        if members.get(PROTOCOL_VERSION) in SUPPORTED_VERSIONS:
            attributes["mcp.protocol.version"] = members[PROTOCOL_VERSION]
        if method == "tools/call":
            attributes["gen_ai.operation.name"] = "execute_tool"
        return self._traces.begin(
            self._traces.start(
                method,
                "server",
                attributes,
                parent=_carrier(parent),
                linked=_carrier(ambient) if ambient.parent != parent.parent else None,
                started_ns=time.time_ns() - round(seconds * 1e9),
            )
        )

    def context(self, begun: "Begun") -> TraceContext | None:
        """Where a call stands, to be kept with its task; None where OpenTelemetry is told to do nothing."""
        carrier = self._traces.carrier(begun.span)
        return TraceContext(carrier["traceparent"], carrier.get("tracestate", "")) if carrier else None

    @staticmethod
    def end(begun: "Begun", outcome: str, noted: dict[str, object]) -> None:
        """Ends the span of a call, with what was found out about it."""
        if isinstance(tool := noted.get("tool"), str):
            begun.span.update_name(f"tools/call {tool}")
            begun.span.set_attribute("gen_ai.tool.name", tool)
        if isinstance(task_id := noted.get("task_id"), str):
            begun.span.set_attribute("tenure.task.id", task_id)
        if outcome not in ("OK", "DISCONNECTED"):
            begun.span.set_attribute("rpc.response.status_code", outcome)
        begun.end("" if outcome in ("OK", "DISCONNECTED") else outcome)


def _carrier(trace: TraceContext) -> dict[str, str]:
    return {"traceparent": trace.parent, "tracestate": trace.state} if trace.parent else {}
