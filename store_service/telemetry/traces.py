"""Spans of a process, by OpenTelemetry. The only module that knows it, and imported only where traces are on.

A span names methods, workflows, functions and ids. What callers and workers say (arguments, results, steps' names, texts of
errors) is never in it. Names: OpenTelemetry's semantic conventions for MCP, RPC and databases; our own begin with `tenure.`.
"""

import atexit
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, Final, Literal, Self

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler, SamplingResult
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.trace import INVALID_SPAN, Link, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

Kind = Literal["server", "client", "consumer", "internal"]
Attributes = Mapping[str, str | int]
Carrier = Mapping[str, str]
"""`traceparent` and `tracestate`, as far as there are."""

CLOSE_SECONDS: Final = 5.0
"""How long a process that ends tries to send what it has."""
_W3C: Final = TraceContextTextMapPropagator()


class Begun:
    """A span that is under way, and the current one where it was begun."""

    def __init__(self, span: Span) -> None:
        self.span = span
        self._token = contexts.attach(trace.set_span_in_context(span))

    def end(self, error: str = "") -> None:
        """Ends it; `error` is the kind of its failure. It is no longer the current one."""
        contexts.detach(self._token)
        Traces.end(self.span, error)


class Traces:
    """Begins spans, and keeps what belongs together in one trace."""

    def __init__(self, provider: trace.TracerProvider) -> None:
        self._tracer = provider.get_tracer("tenure", version("tenure"))

    @classmethod
    def exported(cls, service: str) -> Self:
        """Spans that go where the process already sends its own; or else to a collector, by OTLP over gRPC, as the variables
        OTEL_* say. `service` is who sends them, unless OTEL_SERVICE_NAME says otherwise."""
        if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            return cls(trace.get_tracer_provider())
        exporter = OTLPSpanExporter()
        provider = make_provider(service)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        trace.set_tracer_provider(provider)  # so that what the code of a tool begins goes there, too
        atexit.register(_close, provider, exporter)
        return cls(provider)

    @staticmethod
    def asker() -> Span:
        """The current span: whoever asks for something now."""
        return trace.get_current_span()

    @staticmethod
    def is_within() -> bool:
        """Whether anything is under way that has a trace."""
        return trace.get_current_span().get_span_context().is_valid

    @staticmethod
    def names_span(carrier: Carrier) -> bool:
        """Whether a carrier names one."""
        return _context_of(carrier).get_span_context().is_valid

    def start(
        self,
        name: str,
        kind: Kind,
        attributes: Attributes,
        *,
        parent: Carrier | None = None,
        linked: Carrier | None = None,
        started_ns: int | None = None,
    ) -> Span:
        """A span under way, of what `parent` names; without one, of the current span. It is not the current one."""
        link = _context_of(linked or {}).get_span_context()
        return self._tracer.start_span(
            name,
            None if parent is None else trace.set_span_in_context(_context_of(parent), Context()),
            SpanKind[kind.upper()],
            attributes,
            [Link(link)] if link.is_valid else None,
            started_ns,
            record_exception=False,
            set_status_on_exception=False,
        )

    @staticmethod
    def begin(span: Span) -> Begun:
        """Makes a span the current one until it is ended."""
        return Begun(span)

    @staticmethod
    def carrier(span: Span) -> dict[str, str]:
        """What tells others, in other processes and later, where a span stands."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, trace.set_span_in_context(span, Context()))
        return carrier

    @staticmethod
    def end(span: Span, error: str = "") -> None:
        """Ends a span; `error` is the kind of its failure."""
        if error:
            span.set_attribute(ERROR_TYPE, error)
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    @contextmanager
    def within(self, name: str, kind: Kind, attributes: Attributes) -> Iterator[Begun]:
        """What is done within has a span of its own. An exception is its failure, of which its kind alone is told."""
        begun = Begun(self.start(name, kind, attributes))
        error = ""
        try:
            yield begun
        except Exception as failure:
            error = kind_of(failure)
            raise
        finally:
            begun.end(error)

    @contextmanager
    def current(self, span: Span) -> Iterator[None]:
        """What is begun within is of this span, which goes on."""
        token = contexts.attach(trace.set_span_in_context(span))
        try:
            yield
        finally:
            contexts.detach(token)

    @contextmanager
    def statement(self, name: str) -> Iterator[None]:
        """A statement of the database is run within. One that nobody asked for has no span."""
        if not self.is_within():
            yield
            return
        with self.within(name, "client", {"db.system.name": "postgresql", "db.query.summary": name}):
            yield

    @contextmanager
    def together(self, name: str, askers: Sequence[Span]) -> Iterator[None]:
        """What is begun within is for all who ask. Where there are several it has a span, in the trace of the first that is
        recorded; the spans of all others are linked with it, both ways."""
        several = list(dict.fromkeys(askers))
        first = next((one for one in several if one.get_span_context().trace_flags.sampled), several[0])
        if len(askers) == 1 or not first.get_span_context().trace_flags.sampled:
            with self.current(first):
                yield
            return
        others = [one for one in several if one is not first and one.is_recording()]
        span = self._tracer.start_span(
            f"{name} batch",
            trace.set_span_in_context(first),
            SpanKind.INTERNAL,
            {"tenure.batch.size": len(askers)},
            [Link(one.get_span_context()) for one in others],
        )
        for one in others:
            one.add_link(span.get_span_context())
        try:
            with self.current(span):
                yield
        finally:
            span.end()


def make_provider(service: str) -> TracerProvider:
    """A provider as the variables OTEL_* say, which sends nothing yet."""
    named = Resource.create({SERVICE_NAME: service}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=named, shutdown_on_exit=False)
    if isinstance(provider.sampler, ParentBased):
        provider.sampler = LinkBased(provider.sampler)
    return provider


class LinkBased(Sampler):
    """A root that is linked with a span is recorded if that was, as a child would be; all else is as by another sampler."""

    def __init__(self, other: Sampler) -> None:
        self._other = other

    def should_sample(  # noqa: PLR0917 (of the base class)
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Any = None,
        links: Sequence[Link] | None = None,
        trace_state: Any = None,
    ) -> SamplingResult:
        """See the base class."""
        sampler = self._other
        if links and not trace.get_current_span(parent_context).get_span_context().is_valid:
            sampler = ALWAYS_ON if links[0].context.trace_flags.sampled else ALWAYS_OFF
        return sampler.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def get_description(self) -> str:
        """See the base class."""
        return f"LinkBased{{{self._other.get_description()}}}"


def kind_of(error: BaseException) -> str:
    """What is told of a failure: the reason of a refusal, or else the name of its class. Never its text."""
    reason = getattr(error, "reason", "")
    return str(getattr(reason, "value", reason) or type(error).__qualname__)


def log_ids(_logger: object, _level: str, event: Any) -> Any:
    """A processor of structlog: a line of what has a trace says where it stands in it."""
    where = trace.get_current_span().get_span_context()
    if where.is_valid:
        event.setdefault("trace_id", trace.format_trace_id(where.trace_id))
        event.setdefault("span_id", trace.format_span_id(where.span_id))
    return event


def _context_of(carrier: Carrier) -> Span:
    """The span that a carrier names; an invalid one where it names none."""
    return trace.get_current_span(_W3C.extract(carrier, Context())) if carrier else INVALID_SPAN


def _close(provider: TracerProvider, exporter: OTLPSpanExporter) -> None:
    """Sends what is left. A collector that does not answer keeps no process from ending."""
    giving_up = threading.Timer(CLOSE_SECONDS, exporter.shutdown)
    giving_up.daemon = True
    giving_up.start()
    provider.shutdown()
    giving_up.cancel()
