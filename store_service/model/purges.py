"""What may be forgotten for good, as values."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class TombstoneExport:
    """That all tombstones up to a cursor are kept elsewhere."""

    tenant_id: str
    through_cursor: int
    receipt: str
    confirmed_by: str
    confirmed_at: datetime


class PurgeState(StrEnum):
    """Where a purge stands. CLAIMED and EXPIRED come and go with the time."""

    PENDING = "PENDING"
    CLAIMED = "CLAIMED"
    APPROVED = "APPROVED"
    REJECTED = "REJECTED"
    EXPIRED = "EXPIRED"
    EXECUTED = "EXECUTED"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPurge:
    """A wish to forget a tenant's oldest tombstones: at most `limit`, whose tasks were removed `retention_ms` ago at least."""

    request_id: str
    retention_ms: int
    limit: int
    approval_ms: int


@dataclass(frozen=True, slots=True)
class Purge:
    """Tombstones that may be forgotten for good."""

    tenant_id: str
    number: int
    state: PurgeState
    prepared_by: str
    prepared_at: datetime
    deadline_at: datetime
    tombstones: int
    first_cursor: int
    last_cursor: int
    watermark: int
    fingerprint: bytes
    reviewer: str | None
    claim_token: int
    claim_expires_at: datetime | None
    decided_by: str | None
    decided_at: datetime | None
    rejection: str | None


@dataclass(frozen=True, slots=True)
class PurgeEvidence:
    """That tombstones were forgotten for good, and which."""

    tenant_id: str
    number: int
    prepared_by: str
    prepared_at: datetime
    approved_by: str
    approved_at: datetime
    executed_by: str
    executed_at: datetime
    cleanup_token: int
    tombstones: int
    first_cursor: int
    last_cursor: int
    watermark: int
    receipt: str
    fingerprint: bytes
