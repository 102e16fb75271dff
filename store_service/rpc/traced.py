"""A span for each call that comes with a trace context; whatever the store does for it is within."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import grpc

from store_service.rpc.handlers import Stream, Unary, wrap

if TYPE_CHECKING:
    from store_service.telemetry.traces import Traces

_NAMES: Final = ("traceparent", "tracestate")
_FAULTS: Final = frozenset(("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"))
"""The codes that say that the server failed, and not that it refused. Source: OpenTelemetry's conventions for gRPC."""


class Traced(grpc.aio.ServerInterceptor):
    """Wraps every method that answers once. Streams last for as long as their callers do, and have none."""

    def __init__(self, traces: "Traces") -> None:
        self._traces = traces

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method.removeprefix("/")
        carrier = {
            key: value
            for key, value in handler_call_details.invocation_metadata or ()
            if key in _NAMES and isinstance(value, str)
        }
        if handler is None or not method.startswith("taskstore.") or not self._traces.names_span(carrier):
            return handler
        return wrap(handler, unary=partial(self._unary, method, carrier), stream=_unchanged, read=handler.request_deserializer)

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
