"""Failed tasks that are sent back to work, as values."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from store_service.model.pauses import WorkScope
from store_service.model.tasks import FailureReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrive:
    """A wish to send failed tasks of a tenant back to work: those that match all that is given, at most `limit`."""

    tenant_id: str
    request_id: str
    actor: str
    scope: WorkScope
    reasons: tuple[FailureReason, ...]
    failed_from: datetime | None
    failed_before: datetime | None
    task_ids: tuple[str, ...]
    """Only these; none means all that match."""
    limit: int
    dry_run: bool


class RedriveOutcome(StrEnum):
    """What became of one task."""

    REDRIVEN = "REDRIVEN"
    OUTSTANDING_LIMIT = "OUTSTANDING_LIMIT"
    NOT_FAILED = "NOT_FAILED"


@dataclass(frozen=True, slots=True)
class Redriven:
    """What a redrive did to each task, or would do."""

    tasks: tuple[tuple[str, RedriveOutcome], ...]
    replayed: bool
