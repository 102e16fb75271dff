"""Tasks and what surrounds them, as values."""

from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Final

from msgspec import Struct

from store_service.model.pauses import Pause
from store_service.model.payloads import Payload
from store_service.model.states import TaskState
from store_service.model.waits import Answer, Wait

CREATED_CHANGE: Final = 1
"""The `change` of a task that was created and nothing else."""


class Owner(Struct, frozen=True, gc=False):
    """The principal that created a task."""

    issuer: str
    subject: str


class TaskContract(Struct, frozen=True, kw_only=True, gc=False):
    """What was agreed when a task was created."""

    tool: str
    workflow: str
    workflow_version: int
    owner: Owner
    client_capabilities: bytes
    output_schema: bytes
    ttl_ms: int
    poll_interval_ms: int
    execution_deadline_ms: int
    trace_parent: str
    trace_state: str
    baggage: str


class NewTask(Struct, frozen=True, kw_only=True, gc=False):
    """A task to be created."""

    tenant_id: str
    request_id: str
    contract: TaskContract
    priority: int
    input: Payload
    abandon_after_ms: int
    early_answers: tuple[Answer, ...] = ()
    content_digest: bytes = b""
    reference: str = ""
    asked_before: tuple[str, ...] = ()


class Created(Struct, frozen=True, gc=False):
    """A task that a creation made, or found made."""

    task: "Task"
    replayed: bool


class Progress(Struct, frozen=True, gc=False):
    """A report of how far a task has come."""

    sequence: int
    value: float
    total: float | None
    message: str


class FailureReason(StrEnum):
    """Who decided that a task failed."""

    WORKER = "WORKER"
    CRASH_LIMIT = "CRASH_LIMIT"
    EXECUTION_DEADLINE = "EXECUTION_DEADLINE"


class TaskError(Struct, frozen=True, gc=False):
    """Why a task failed, in the form of a JSON-RPC error."""

    code: int
    message: str
    data: Payload | None
    reason: FailureReason


class TaskView(IntEnum):
    """How much of a task is read."""

    BASIC = 1
    OUTCOME = 2
    FULL = 3


class Task(Struct, frozen=True, kw_only=True, gc=False):
    """One task as it stands at `read_at`."""

    tenant_id: str
    task_id: str
    state: TaskState
    contract: TaskContract
    priority: int
    created_at: datetime
    changed_at: datetime
    ended_at: datetime | None
    read_at: datetime
    change: int
    reports: tuple[Progress, ...]
    """The last ones, oldest first: one where no more were asked for."""
    cancel_requested: bool
    attempts: int
    crashes: int
    retries: int
    checkpoints: int
    worker_id: str | None
    token: int
    lease_expires_at: datetime | None
    input: Payload | None
    outcome: Payload | TaskError | None
    wait: Wait | None = None
    forked_from: str | None = None
    forked_checkpoints: int = 0
    redriven_at: datetime | None = None
    """When it was first sent back to work."""


class TaskRef(Struct, frozen=True, gc=False):
    """Which task is meant; with an owner, only that owner's."""

    tenant_id: str
    task_id: str
    owner: Owner | None = None


class TaskRead(Struct, frozen=True, gc=False):
    """A wish to read a task."""

    ref: TaskRef
    view: TaskView
    reports_after: int | None = None
    """The number of the report after which all that are kept are read too; None reads the last one alone."""


class CancelOutcome(StrEnum):
    """What a cancellation found."""

    CANCELLED = "CANCELLED"
    REQUESTED = "REQUESTED"
    ALREADY_TERMINAL = "ALREADY_TERMINAL"


class HistoryEvent(StrEnum):
    """What happened at a line of a task's history."""

    CREATED = "CREATED"
    LEASED = "LEASED"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    RELEASED = "RELEASED"
    RETRIED = "RETRIED"
    CANCEL_REQUESTED = "CANCEL_REQUESTED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    SUSPENDED = "SUSPENDED"
    WOKEN = "WOKEN"
    REDRIVEN = "REDRIVEN"


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """One line of a task's history."""

    line: int
    event: HistoryEvent
    at: datetime
    worker_id: str | None
    token: int | None
    detail: str


class Checkpoint(Struct, frozen=True, gc=False):
    """One step that is done."""

    revision: int
    step: str
    payload: Payload
    token: int
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Which of a tenant's tasks are listed."""

    tenant_id: str
    states: tuple[TaskState, ...]
    workflow: str | None
    created_from: datetime | None
    created_before: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantPolicy:
    """What a tenant may use. `max_creates_per_second` is 0 where as many may be created as come."""

    max_outstanding: int
    max_leased: int
    retention_ms: int
    max_input_bytes: int
    max_creates_per_second: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A tenant's policy, its use, and what is held back of its work."""

    tenant_id: str
    policy: TenantPolicy
    outstanding: int
    leased: int
    pauses: tuple[Pause, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Answers to questions of one task."""

    ref: TaskRef
    answered_by: Owner | None
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSignal:
    """A signal to be published."""

    ref: TaskRef
    signal_id: str
    name: str
    payload: Payload


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """A wish for a task that starts with the first checkpoints of another."""

    source: TaskRef
    request_id: str
    checkpoints: int
