"""What other processes import: the client of the store, and the worker library."""

from store_service.client.context import Context
from store_service.client.effects import Done
from store_service.client.errors import LeaseLost, StoreError
from store_service.client.outcomes import Cancelled, InputTimeout, NotDone, ProtocolError, SignalTimeout, StepFailed, ToolError
from store_service.client.questions import Answer, Form, Question, Root, Roots, Sample, Sampling, Url
from store_service.client.sync_context import SyncContext
from store_service.client.tasks import TaskStore
from store_service.client.tenants import TenantStore
from store_service.client.tls import Tls
from store_service.client.usage import BudgetAmounts
from store_service.client.worker import Worker
from store_service.client.workflows import RetryPolicy
from store_service.telemetry import open_traces

__all__ = [
    "Answer",
    "BudgetAmounts",
    "Cancelled",
    "Context",
    "Done",
    "Form",
    "InputTimeout",
    "LeaseLost",
    "NotDone",
    "ProtocolError",
    "Question",
    "RetryPolicy",
    "Root",
    "Roots",
    "Sample",
    "Sampling",
    "SignalTimeout",
    "StepFailed",
    "StoreError",
    "SyncContext",
    "TaskStore",
    "TenantStore",
    "Tls",
    "ToolError",
    "Url",
    "Worker",
    "open_traces",
]
