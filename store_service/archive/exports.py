"""How tombstones come into an archive: a page, its batch, its receipt, and only then the watermark."""

from collections.abc import Sequence
from typing import Protocol

from store_service.archive.batches import Destination, Receipt
from store_service.archive.documents import Record, write_batch
from store_service.archive.errors import ArchiveError, Fault


class Source(Protocol):
    """The store, seen by who exports."""

    async def get_receipt(self, tenant_id: str) -> str:
        """The receipt that was confirmed last; empty where none was."""

    async def list_records(self, tenant_id: str, *, after_cursor: int) -> Sequence[Record]:
        """The page that follows; empty when there is no more."""

    async def confirm_export(self, receipt: Receipt) -> None:
        """Says that all tombstones up to the end of this batch are kept. Safe to repeat."""


async def export_batch(source: Source, destination: Destination, tenant_id: str) -> Receipt | None:
    """Archives the page after the watermark and moves the watermark to its end. Returns None when nothing was left.

    Whoever dies in between has done no harm: the next one makes the same batch, or, where tombstones came since, a longer one
    that has them too. Raises ArchiveError, and whatever the source raises; then the watermark has not moved.
    """
    previous = await last_receipt(source, tenant_id)
    records = await source.list_records(tenant_id, after_cursor=previous.batch_id.last if previous is not None else 0)
    if not records:
        return None
    receipt = await destination.put_batch(write_batch(tenant_id, records, previous))
    await source.confirm_export(receipt)
    return receipt


async def last_receipt(source: Source, tenant_id: str) -> Receipt | None:
    """The receipt of the batch that was confirmed last. Raises ArchiveError for one that is of no archive of ours."""
    text = await source.get_receipt(tenant_id)
    try:
        return Receipt.parse(text) if text else None
    except ValueError as error:
        raise ArchiveError(Fault.CONFIGURATION, f"tombstones were archived by other means: {error}") from None
