"""Spans, kept as they end."""

import asyncio
from collections.abc import Callable, Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from store_service.telemetry.traces import Traces, make_provider


class Kept(SpanExporter):
    """The spans of several processes that are one here, each under the name of its service."""

    def __init__(self) -> None:
        self.all: list[ReadableSpan] = []
        self._loop = asyncio.get_running_loop()
        self._came = asyncio.Event()

    def traces(self, service: str) -> Traces:
        """Traces whose spans are kept here."""
        provider = make_provider(service)
        provider.add_span_processor(SimpleSpanProcessor(self))
        return Traces(provider)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See the base class."""
        self.all.extend(spans)
        self._loop.call_soon_threadsafe(self._came.set)
        return SpanExportResult.SUCCESS

    def of(self, service: str) -> list[ReadableSpan]:
        """Those of one service."""
        return [one for one in self.all if one.resource.attributes["service.name"] == service]

    def named(self, name: str) -> list[ReadableSpan]:
        """Those of one name."""
        return [one for one in self.all if one.name == name]

    def children(self, span: ReadableSpan) -> list[ReadableSpan]:
        """Those that a span is the parent of."""
        return [one for one in self.all if one.parent is not None and one.parent.span_id == id_of(span)]

    async def one(self, name: str) -> ReadableSpan:
        """The one of this name, once it has ended."""
        (span,) = await self.some(name, 1)
        return span

    async def some(self, name: str, count: int) -> list[ReadableSpan]:
        """Those of this name, once there are so many."""
        await self.until(lambda: len(self.named(name)) >= count)
        return self.named(name)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Waits for spans until this holds."""
        async with asyncio.timeout(60):
            while not holds():
                self._came.clear()
                await self._came.wait()


def id_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def trace_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id


def links_of(span: ReadableSpan) -> list[int]:
    """The ids of the spans that one is linked with."""
    return [link.context.span_id for link in span.links]
