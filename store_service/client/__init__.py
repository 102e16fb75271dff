"""What other processes import: the client of the store, and the worker library."""

from store_service.client.context import Context, SyncContext
from store_service.client.errors import LeaseLost, StoreError
from store_service.client.outcomes import Cancelled, ProtocolError, ToolError
from store_service.client.tasks import TaskStore
from store_service.client.worker import Worker
from store_service.client.workflows import RetryPolicy

__all__ = [
    "Cancelled",
    "Context",
    "LeaseLost",
    "ProtocolError",
    "RetryPolicy",
    "StoreError",
    "SyncContext",
    "TaskStore",
    "ToolError",
    "Worker",
]
