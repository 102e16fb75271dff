"""Leases and what is done under them, as values."""

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from store_service.model.payloads import Payload
from store_service.model.tasks import TaskContract
from store_service.model.waits import NewQuestion, WaitKind, Wake


class Lease(Struct, frozen=True, gc=False):
    """A worker's exclusive right to act on a task, as it presents it."""

    tenant_id: str
    task_id: str
    worker_id: str
    token: int
    epoch: int


class WorkflowVersion(Struct, frozen=True, gc=False):
    """A definition that a worker can run, and how long a lease of its tasks lasts."""

    workflow: str
    version: int
    lease_ms: int

    @property
    def lane(self) -> str:
        """The name under which waiting workers are woken for it."""
        return f"{self.workflow}/{self.version}"


class Registration(Struct, frozen=True):
    """A definition that some worker asked for, and when it last did."""

    workflow: str
    version: int
    asked_at: datetime


class Claim(Struct, frozen=True, kw_only=True, gc=False):
    """What a worker asks for."""

    request_id: str
    worker_id: str
    workflows: tuple[WorkflowVersion, ...]
    tenant_ids: tuple[str, ...]
    limit: int
    wait_ms: int
    is_new: bool = False
    """Whether nothing can have been taken under its request id."""


class LeasedTask(Struct, frozen=True, kw_only=True, gc=False):
    """One task taken, with what is needed to run it. `input` and `wake` are None when they did not fit into the answer."""

    lease: Lease
    expires_at: datetime
    contract: TaskContract
    input: Payload | None
    attempts: int
    crashes: int
    retries: int
    checkpoints: int
    cancel_requested: bool
    deadline_at: datetime | None
    created_at: datetime
    wake: Wake | None
    early_answers: int
    lease_ms: int


class Taken(Struct, frozen=True):
    """What a claim took. `is_all` says that it left nothing, nor did others hold anything; otherwise that is not known."""

    tasks: list[LeasedTask]
    is_all: bool


class Heartbeat(Struct, frozen=True, gc=False):
    """A wish to hold a lease for at least `lease_ms` from now; 0 means as long as it was granted for."""

    lease: Lease
    lease_ms: int


class Extended(Struct, frozen=True, gc=False):
    """A lease that was extended."""

    expires_at: datetime
    cancel_requested: bool


class NewCheckpoint(Struct, frozen=True, gc=False):
    """A checkpoint to be appended as `revision`."""

    lease: Lease
    revision: int
    step: str
    payload: Payload


class Report(Struct, frozen=True, gc=False):
    """A progress report."""

    lease: Lease
    value: float
    total: float | None
    message: str


class Disposition(StrEnum):
    """How a worker ends its lease. FAILED with a policy that is not spent rests and is tried again."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    RELEASED = "RELEASED"


class RetryPolicy(Struct, frozen=True, gc=False):
    """When a failed task is tried again: after a random time up to `initial_backoff_ms * 2 ** retries`, capped."""

    max_attempts: int
    initial_backoff_ms: int
    max_backoff_ms: int


class Finish(Struct, frozen=True, kw_only=True, gc=False):
    """The end of a lease. What is set depends on the disposition."""

    lease: Lease
    disposition: Disposition
    payload: Payload | None = None
    error_code: int | None = None
    error_message: str | None = None
    delay_ms: int = 0
    retry: RetryPolicy | None = None


class Finished(Struct, frozen=True, gc=False):
    """A lease that was ended; `retry_at` where its task will be tried again."""

    retry_at: datetime | None


class Suspend(Struct, frozen=True, kw_only=True, gc=False):
    """A wish to suspend a leased task. `delay_ms` is a timer's time or a wait's timeout; 0 means without end."""

    lease: Lease
    step: str
    kind: WaitKind
    delay_ms: int
    signal_name: str | None = None
    questions: tuple[NewQuestion, ...] = ()
    fitting: tuple[str, ...] = ()
    """The keys of early answers that answer their questions."""
