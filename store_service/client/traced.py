"""A span for each call to the store that is made for something that has a trace; the store goes on from it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc.aio

if TYPE_CHECKING:
    from store_service.telemetry.traces import Traces


class Traced(grpc.aio.UnaryUnaryClientInterceptor):
    """Gives calls a span, and the store its context. What nobody asked for, such as claims and heartbeats, has none."""

    def __init__(self, traces: "Traces", address: str) -> None:
        self._traces = traces
        self._attributes = _server(address)

    async def intercept_unary_unary(
        self,
        continuation: Callable[[Any, Any], Any],
        client_call_details: Any,
        request: Any,
    ) -> Any:
        """See the base class."""
        if not self._traces.is_within():
            return await continuation(client_call_details, request)
        named = client_call_details.method
        method: str = (named.decode() if isinstance(named, bytes) else named).removeprefix("/")
        attributes = {"rpc.system.name": "grpc", "rpc.method": method, **self._attributes}
        span, code = self._traces.start(method, "client", attributes), "CANCELLED"
        try:
            sent = (*(client_call_details.metadata or ()), *self._traces.carrier(span).items())
            call = await continuation(client_call_details._replace(metadata=grpc.aio.Metadata(*sent)), request)
            try:
                code = (await call.code()).name
            except BaseException:
                call.cancel()
                raise
            return call
        finally:
            span.set_attribute("rpc.response.status_code", code)
            self._traces.end(span, "" if code in ("OK", "CANCELLED") else code)


def _server(address: str) -> dict[str, str | int]:
    """`host:port` or `dns:///host:port`, in parts."""
    host, separator, port = address.rpartition("/")[2].rpartition(":")
    if not (separator and port.isdecimal()):
        return {"server.address": address}
    return {"server.address": host.strip("[]"), "server.port": int(port)}
