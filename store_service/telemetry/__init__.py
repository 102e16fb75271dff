"""What every process of Tenure shows of itself: its log lines, its health and its metrics."""

from store_service.telemetry.admin import AdminServer
from store_service.telemetry.logs import configure_logs

__all__ = ["AdminServer", "configure_logs"]
