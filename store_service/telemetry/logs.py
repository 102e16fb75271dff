"""Structured logs: one line an event, on standard error."""

import logging
import sys
from typing import Literal

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
    render: structlog.typing.Processor
    render = (
        structlog.processors.JSONRenderer() if format == "json" else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    threshold = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                render,
            ],
        )
    )
    logging.basicConfig(level=threshold, handlers=[handler], force=True)
