"""A span for each call that comes with a trace context; whatever the store does for it is within."""

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import grpc

from store_service.rpc.handlers import Interceptor, Stream, Unary, wrap

if TYPE_CHECKING:
    from store_service.telemetry.traces import Traces

_NAMES: Final = ("traceparent", "tracestate")
_FAULTS: Final = frozenset(("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"))
"""The codes that say that the server failed, and not that it refused. Source: OpenTelemetry's conventions for gRPC."""


class Traced(Interceptor):
    """Wraps every method that answers once. Streams last for as long as their callers do, and have none."""

    def __init__(self, traces: "Traces") -> None:
        self._traces = traces

    def around(self, handler: Any, service: str, method: str, details: grpc.HandlerCallDetails) -> Any:
        """See `Interceptor`."""
        carrier = {key: value for key, value in details.invocation_metadata or () if key in _NAMES and isinstance(value, str)}
        if not self._traces.names_span(carrier):
            return handler
        unary = partial(self._unary, details.method.removeprefix("/"), carrier)
        return wrap(handler, unary=unary, stream=_unchanged)

    def _unary(self, method: str, carrier: dict[str, str], inner: Unary) -> Unary:
        async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            traces, attributes = self._traces, {"rpc.system.name": "grpc", "rpc.method": method}
            span, code = traces.start(method, "server", attributes, parent=carrier), "CANCELLED"
            try:
                with traces.current(span):
                    answer = await inner(request, context)
                code = "OK"
                return answer
            except Exception:
                code = _code_of(context)
                raise
            finally:
                span.set_attribute("rpc.response.status_code", code)
                traces.end(span, code if code in _FAULTS else "")
                del request  # an aborted call's frames are kept, see `calls.py`

        return call


def _unchanged(inner: Stream) -> Stream:
    return inner


def _code_of(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """What a call was refused with."""
    code: Any = context.code()
    return code.name if isinstance(code, grpc.StatusCode) else "UNKNOWN"
