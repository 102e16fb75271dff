"""What every process of Tenure shows of itself: its log lines, its health, its metrics and its traces."""

from store_service.telemetry.admin import AdminServer
from store_service.telemetry.calls import CallFigures
from store_service.telemetry.garbage import settle_garbage
from store_service.telemetry.logs import configure_logs
from store_service.telemetry.memory import keep_memory
from store_service.telemetry.opening import TracesNotInstalled, open_traces

__all__ = [
    "AdminServer",
    "CallFigures",
    "TracesNotInstalled",
    "configure_logs",
    "keep_memory",
    "open_traces",
    "settle_garbage",
]
