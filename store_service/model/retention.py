"""What is over and put away, as values."""

from dataclasses import dataclass
from datetime import datetime

from store_service.model.purges import TombstoneExport
from store_service.model.states import TaskState


@dataclass(frozen=True, slots=True)
class Tombstone:
    """That a removed task existed and how it ended."""

    tenant_id: str
    cursor: int
    task_id: str
    tool: str
    workflow: str
    version: int
    state: TaskState
    created_at: datetime
    ended_at: datetime
    removed_at: datetime
    removed_by: str
    history_lines: int
    history_digest: bytes
    history: bytes | None
    """None where it was not asked for or not kept."""


@dataclass(frozen=True, slots=True)
class CleanupLease:
    """A right to remove what is over of a tenant, as it is presented."""

    tenant_id: str
    owner_id: str
    principal: str
    token: int
    epoch: int


@dataclass(frozen=True, slots=True)
class CleanupClaim:
    """What a claim came to: no lease while another holds it, until `expires_at`."""

    lease: CleanupLease | None
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class CleanupTenants:
    """Tenants that have tasks to remove, each with since when its oldest one is; and where to look on, None at the end."""

    due: tuple[tuple[str, datetime], ...]
    next_tenant_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRetention:
    """How far a tenant's retention has come."""

    tenant_id: str
    due_since: datetime | None
    last_cursor: int
    exported: TombstoneExport | None
    cleanup_owner_id: str | None
    cleanup_expires_at: datetime | None
    purges_waiting: int
    holds: int


@dataclass(frozen=True, slots=True)
class Hold:
    """That a task must be kept, or its tombstone."""

    tenant_id: str
    number: int
    task_id: str
    generation: int
    reason: str
    placed_by: str
    placed_at: datetime
    released_by: str | None
    released_at: datetime | None
