"""A batch: what is written at once, under an id of its own, and the receipt for it."""

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol, Self

from store_service.archive.errors import ArchiveError, Fault

MOST_BYTES: Final = 64 * 1024 * 1024
"""The largest batch that is read. Those that are written are far smaller."""
_ID: Final = re.compile(r"([A-Za-z0-9_.-]{1,128})/([0-9]{19})-([0-9]{19})", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class BatchId:
    """Which tombstones of which tenant: those from the cursor `first` to `last`. The same ones have the same id, always."""

    tenant_id: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.tenant_id}/{self.first:019}-{self.last:019}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads what `str` wrote. Raises ValueError."""
        found = _ID.fullmatch(text)
        if found is None or not 1 <= int(found[2]) <= int(found[3]):
            raise ValueError(f"{text!r} is no id of a batch")
        return cls(found[1], int(found[2]), int(found[3]))

    @property
    def path(self) -> str:
        """Where it lies in a destination. Sorted, these are in the order of cursors. No tenant's name leads out of it."""
        return f"tenant={self.tenant_id}/{self.first:019}-{self.last:019}.jsonl"

    @classmethod
    def from_path(cls, path: str) -> Self | None:
        """The id of what lies there; None for what is no batch."""
        if not (path.startswith("tenant=") and path.endswith(".jsonl")):
            return None
        try:
            return cls.parse(path.removeprefix("tenant=").removesuffix(".jsonl"))
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Receipt:
    """That a batch is kept, and with which bytes."""

    batch_id: BatchId
    sha256: str

    def __str__(self) -> str:
        return f"{self.batch_id} sha256:{self.sha256}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads what `str` wrote. Raises ValueError."""
        batch_id, _, sha256 = text.partition(" sha256:")
        if not re.fullmatch("[0-9a-f]{64}", sha256):
            raise ValueError(f"{text!r} is no receipt")
        return cls(BatchId.parse(batch_id), sha256)

    def check(self, body: bytes) -> None:
        """Raises ArchiveError INTEGRITY for other bytes than those that the receipt is for."""
        if (found := hashlib.sha256(body).hexdigest()) != self.sha256:
            raise ArchiveError(Fault.INTEGRITY, f"{self.batch_id} is kept with the digest {found}, not with {self.sha256}")


@dataclass(frozen=True)
class Batch:
    """What is to be kept."""

    id: BatchId
    body: bytes

    @cached_property
    def receipt(self) -> Receipt:
        """What whoever keeps it answers with."""
        return Receipt(self.id, hashlib.sha256(self.body).hexdigest())


class Destination(Protocol):
    """What keeps batches, each under its id, once."""

    async def put_batch(self, batch: Batch) -> Receipt:
        """Keeps a batch, all of it or nothing, and reads it back. One that is kept with these very bytes stays, and its receipt
        is returned. Safe to repeat. Raises ArchiveError; INTEGRITY when other bytes are kept under this id."""

    async def get_batch(self, batch_id: BatchId) -> bytes | None:
        """The bytes that are kept, or None. Raises ArchiveError."""

    async def list_batches(self, tenant_id: str) -> list[BatchId]:
        """The ids of what is kept for a tenant, sorted. Raises ArchiveError."""

    async def close(self) -> None:
        """Lets go of what it holds."""
