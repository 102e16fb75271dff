"""Structured logs: one line an event, on standard error."""

import asyncio
import atexit
import functools
import logging
import sys
import threading
import time
from typing import Any, BinaryIO, Final, Literal

import msgspec
import structlog

from store_service.telemetry.opening import log_ids

LogFormat = Literal["json", "console"]
CALL: Final = "call"
"""The event of the line that each call has."""


def configure_logs(
    *,
    level: str = "info",
    format: LogFormat = "json",  # noqa: A002 (the word of the setting)
    traces: bool = False,
) -> None:
    """Sends every log line of this process, those of libraries too, to standard error in one form.

    `level` is one of debug, info, warning, error. `json` is for machines, `console` for people. With `traces`, lines of what
    has a trace have its `trace_id` and `span_id`.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    to_line: structlog.typing.Processor = _to_line
    if traces:
        shared.append(log_ids())
        to_line = _after(log_ids(), _to_line)
    render: list[structlog.typing.Processor]
    if format == "json":
        render = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_to_json)]
    else:
        render = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    threshold = logging.getLevelNamesMapping()[level.upper()]
    # Our own lines go straight to the stream, as JSON in one step; the detour that others' lines take costs five times.
    structlog.configure(
        processors=[to_line] if format == "json" else [*shared, *render],
        wrapper_class=_make_lines(threshold) if format == "json" else structlog.make_filtering_bound_logger(threshold),
        logger_factory=_Output(sys.stderr.buffer).logger if format == "json" else structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    remove = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[remove, *render]))
    handler.addFilter(_has_somebody_to_answer)
    logging.basicConfig(level=threshold, handlers=[handler], force=True)


def _has_somebody_to_answer(record: logging.LogRecord) -> bool:
    """All but what gRPC takes for an error: that the caller of an answer has left. Source: `_handle_exceptions` of grpc.aio."""
    return not record.getMessage().startswith("ExecuteBatchError raised in core by servicer method")


def _after(first: structlog.typing.Processor, then: structlog.typing.Processor) -> structlog.typing.Processor:
    def both(logger: Any, level: str, event: structlog.typing.EventDict) -> Any:
        first(logger, level, event)
        return then(logger, level, event)

    return both


def _make_lines(threshold: int) -> type[structlog.typing.FilteringBoundLogger]:
    """A logger whose events become lines by its one processor, without what serves several."""
    filtering: Any = structlog.make_filtering_bound_logger(threshold)

    class Lines(filtering):  # type: ignore[misc] # made by a function
        def _proxy_to_logger(self, method_name: str, event: str | None = None, **members: Any) -> Any:
            try:
                line = self._processors[0](None, method_name, {**self._context, **members, "event": event})
            except structlog.DropEvent:
                return None
            return self._logger.later(line) if event == CALL else self._logger.msg(line)

    return Lines


class _Output:
    """Where lines go. Those of calls that end within one turn of the event loop go out in one write after it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._waiting: list[bytes] = []
        atexit.register(self._flush)

    def logger(self, *_: Any) -> "_Output":
        """What structlog gives its lines to."""
        return self

    def msg(self, line: bytes) -> None:
        """Writes a line, and before it those that wait."""
        with self._lock:
            self._waiting.append(line)
        self._flush()

    def later(self, line: bytes) -> None:
        """Writes a line soon, with those that wait already; at once where none do and no event loop runs."""
        with self._lock:
            self._waiting.append(line)
            is_first = len(self._waiting) == 1
        if not is_first:
            return
        try:
            asyncio.get_running_loop().call_soon(self._flush)
        except RuntimeError:
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            if self._waiting:
                self._stream.write(b"\n".join((*self._waiting, b"")))
                self._stream.flush()
                self._waiting.clear()


def _to_line(_logger: Any, level: str, event: structlog.typing.EventDict) -> bytes:
    """An event of ours as its line: what `shared` and `render` make of it, at once."""
    context = structlog.contextvars.get_contextvars()
    if context:
        event = {**context, **event}
    event["level"] = "error" if level == "exception" else level
    event["timestamp"] = _stamp(time.time())
    if "exc_info" in event:
        event = dict(structlog.processors.format_exc_info(_logger, level, event))
    return msgspec.json.encode(event, enc_hook=str)


def _stamp(now: float) -> str:
    seconds = int(now)
    return f"{_second(seconds)}.{int((now - seconds) * 1e6):06d}Z"


@functools.lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def _to_json(event: Any, **_: Any) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode()
