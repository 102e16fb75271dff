"""Structured logs: one line an event, on standard error."""

import logging
import sys
from typing import Any, Literal

import msgspec
import structlog

LogFormat = Literal["json", "console"]


def configure_logs(*, level: str = "info", format: LogFormat = "json") -> None:  # noqa: A002 (the word of the setting)
    """Sends every log line of this process, those of libraries too, to standard error in one form.

    `level` is one of debug, info, warning, error. `json` is for machines, `console` for people.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render: list[structlog.typing.Processor]
    if format == "json":
        render = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_to_json)]
    else:
        render = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    threshold = logging.getLevelNamesMapping()[level.upper()]
    # Our own lines go straight to the stream; the detour over the standard library, which others take, costs three times.
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    remove = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[remove, *render]))
    logging.basicConfig(level=threshold, handlers=[handler], force=True)


def _to_json(event: Any, **_: Any) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode()
