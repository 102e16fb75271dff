"""What a batch says: a header, then a tombstone a line, each with its history. JSON Lines in UTF-8."""

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Final, Self

import msgspec

from store_service.archive.batches import Batch, BatchId, Receipt
from store_service.archive.errors import ArchiveError, Fault

VERSION: Final = 1


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A tombstone, and the history that its digest is of. See `Tombstone` in `retention.proto`."""

    cursor: int
    task_id: str
    tool: str
    workflow: str
    workflow_version: int
    state: str
    created_at: datetime
    ended_at: datetime
    removed_at: datetime
    removed_by: str
    history_lines: int
    history_digest: str
    """In hexadecimal digits."""
    history: str
    """Empty where it was too long to be kept."""

    @property
    def is_proved(self) -> bool | None:
        """Whether the history has the digest; None where it was not kept."""
        if not self.history:
            return None
        return hashlib.sha256(self.history.encode()).hexdigest() == self.history_digest


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """Which batch it is, and which one came before: by it, the last receipt proves all batches of a tenant."""

    version: int = VERSION
    tenant_id: str
    first: int
    last: int
    previous: str | None
    """The receipt of the batch before; none for the first."""


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that was read."""

    batch_id: BatchId
    previous: Receipt | None
    records: tuple[Record, ...]

    @classmethod
    def read(cls, batch_id: BatchId, body: bytes) -> Self:
        """Reads what `write_batch` wrote. Raises ArchiveError INTEGRITY for anything else."""
        try:
            head, *lines = body.removesuffix(b"\n").split(b"\n")
            header = msgspec.json.decode(head, type=Header)
            previous = Receipt.parse(header.previous) if header.previous is not None else None
            records = tuple(msgspec.json.decode(line, type=Record) for line in lines)
        except (msgspec.DecodeError, ValueError) as error:
            raise ArchiveError(Fault.INTEGRITY, f"{batch_id} is no batch: {error}") from None
        told = (header.version, BatchId(header.tenant_id, header.first, header.last), [each.cursor for each in records])
        if told != (VERSION, batch_id, list(range(batch_id.first, batch_id.last + 1))) or not _follows(batch_id, previous):
            raise ArchiveError(Fault.INTEGRITY, f"{batch_id} says that it is another batch, or has not all of its tombstones")
        return cls(batch_id=batch_id, previous=previous, records=records)


def write_batch(tenant_id: str, records: Sequence[Record], previous: Receipt | None) -> Batch:
    """A batch of these records, which follow those of the batch before without a gap. The same ones make the same bytes."""
    batch_id = BatchId(tenant_id, records[0].cursor, records[-1].cursor)
    cursors = [each.cursor for each in records]
    if not _follows(batch_id, previous) or cursors != list(range(batch_id.first, batch_id.last + 1)):
        raise ArchiveError(Fault.INTEGRITY, f"{batch_id} does not follow {previous or 'the beginning'} without a gap")
    header = Header(
        tenant_id=tenant_id, first=batch_id.first, last=batch_id.last, previous=str(previous) if previous is not None else None
    )
    return Batch(batch_id, b"".join(msgspec.json.encode(each) + b"\n" for each in (header, *records)))


def _follows(batch_id: BatchId, previous: Receipt | None) -> bool:
    if previous is None:
        return batch_id.first == 1
    return (previous.batch_id.tenant_id, previous.batch_id.last + 1) == (batch_id.tenant_id, batch_id.first)
