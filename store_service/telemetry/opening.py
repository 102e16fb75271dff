"""Traces, where they are wished for and their packages are installed."""

import importlib
from typing import TYPE_CHECKING, Any, cast

import structlog

if TYPE_CHECKING:
    from store_service.telemetry.traces import Traces


class TracesNotInstalled(ImportError):  # noqa: N818 (it says what is the matter)
    """Traces are wished for, and what they take is not there. The message says what to install."""


def open_traces(service: str) -> "Traces":
    """The spans of this process, sent to a collector as the variables OTEL_* say, under the name of `service`.

    Raises TracesNotInstalled without the packages of the extra `traces`.
    """
    return cast("Traces", _traces().Traces.exported(service))


def log_ids() -> structlog.typing.Processor:
    """What adds to a log line where it stands in its trace. Raises TracesNotInstalled."""
    return cast("structlog.typing.Processor", _traces().log_ids)


def _traces() -> Any:
    try:
        return importlib.import_module("store_service.telemetry.traces")
    except ModuleNotFoundError as missing:
        raise TracesNotInstalled(f"{missing.name} is not installed; run: pip install 'tenure[traces]'") from None
