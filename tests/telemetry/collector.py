"""A collector of traces: it takes what processes send by OTLP, and keeps it."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Listens on loopback. Use it as a context."""

    def __init__(self) -> None:
        self.received: list[trace_service_pb2.ExportTraceServiceRequest] = []
        self._came = threading.Condition()
        self._server = grpc.server(ThreadPoolExecutor(2))
        add: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server  # it has no types
        add(self, self._server)
        self._port = self._server.add_insecure_port("127.0.0.1:0")

    @property
    def settings(self) -> dict[str, str]:
        """What makes a process send its traces here, soon."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._port}", "OTEL_BSP_SCHEDULE_DELAY": "50"}

    @property
    def spans(self) -> list[tuple[str, Any]]:
        """The spans, each with the service that sent it."""
        found = []
        for request in list(self.received):
            for sent in request.resource_spans:
                (service,) = [one.value.string_value for one in sent.resource.attributes if one.key == "service.name"]
                found += [(service, span) for scope in sent.scope_spans for span in scope.spans]
        return found

    @property
    def text(self) -> str:
        """All that came, to be searched."""
        return "".join(map(str, list(self.received)))

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Waits for spans until this holds."""
        with self._came:
            assert self._came.wait_for(holds, timeout=60), [(service, span.name) for service, span in self.spans]

    def Export(self, request: Any, context: Any) -> trace_service_pb2.ExportTraceServiceResponse:  # noqa: N802 (of OTLP)
        """See the base class."""
        with self._came:
            self.received.append(request)
            self._came.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.stop(grace=1).wait()
