"""What every process of Tenure shows of itself: its log lines, its health and its metrics."""

from store_service.telemetry.admin import AdminServer
from store_service.telemetry.calls import CallFigures
from store_service.telemetry.garbage import settle_garbage
from store_service.telemetry.logs import configure_logs

__all__ = ["AdminServer", "CallFigures", "configure_logs", "settle_garbage"]
