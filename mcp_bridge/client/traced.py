"""The span of a request, where an application has traces: the server goes on from it. Source: the specification's `_meta` keys
`traceparent` and `tracestate`; OpenTelemetry's conventions for MCP clients."""

from collections.abc import Mapping
from typing import Any, Literal, Protocol, Self
from urllib.parse import urlsplit

from mcp_bridge.wire.mcp import VERSION


class Traces(Protocol):
    """What `store_service.client.open_traces` gives."""

    def start(self, name: str, kind: Literal["client"], attributes: Mapping[str, str | int]) -> Any:
        """A span under way, of whatever is under way in the caller's code."""

    def carrier(self, span: Any) -> dict[str, str]:
        """`traceparent` and `tracestate` of a span."""

    def end(self, span: Any, error: str = "") -> None:
        """Ends a span; `error` is the kind of its failure."""


class RequestSpan:
    """The span of one request, from before it is sent to its answer, or to the end of its stream. Without traces it is none.

    It names the method, the tool and the task. Arguments and results are never in it.
    """

    __slots__ = ("_error", "_span", "_traces")

    def __init__(self, traces: Traces | None, url: str, method: str, params: Mapping[str, Any], request_id: int) -> None:
        self._traces, self._error = traces, ""
        if traces is None:
            return
        parts, name = urlsplit(url), method
        attributes: dict[str, str | int] = {
            "mcp.method.name": method,
            "mcp.protocol.version": VERSION,
            "network.transport": "tcp",
            "jsonrpc.request.id": str(request_id),
            "server.address": parts.hostname or "",
            "server.port": parts.port or (443 if parts.scheme == "https" else 80),
        }
        if method == "tools/call":
            name = f"{method} {params['name']}"
            attributes |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": params["name"]}
        if isinstance(task_id := params.get("taskId"), str):
            attributes["tenure.task.id"] = task_id
        self._span = traces.start(name, "client", attributes)

    @property
    def meta(self) -> dict[str, str]:
        """What the request's `_meta` says of it."""
        return {} if self._traces is None else self._traces.carrier(self._span)

    def failed(self, error: str) -> None:
        """The request is answered by an error, or not at all; `error` is its kind, never its text."""
        self._error = error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._traces is not None:
            self._traces.end(self._span, self._error)
