"""Reading an archive: from the last receipt back to the first batch, each proved by the one after it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from store_service.archive.batches import BatchId, Destination, Receipt
from store_service.archive.documents import Contents
from store_service.archive.errors import ArchiveError, Fault


@dataclass(frozen=True, slots=True)
class Broken:
    """A batch that is missing, or is not what it was."""

    batch_id: BatchId
    reason: str


async def read_chain(destination: Destination, last: Receipt | None) -> AsyncIterator[Contents | Broken]:
    """All batches up to one, the last one first, and in the place of each that is not as it was, what is wrong with it.

    Below a broken batch it goes on with what is found there; that is proved by the digests of its tombstones alone.
    Raises ArchiveError when the destination cannot be read.
    """
    wanted, receipt = last.batch_id if last is not None else None, last
    while wanted is not None:
        found = await _read(destination, wanted, receipt)
        yield found
        if isinstance(found, Contents):
            receipt = found.previous
            wanted = receipt.batch_id if receipt is not None else None
        else:
            receipt, wanted = None, await _before(destination, wanted)


async def _read(destination: Destination, batch_id: BatchId, receipt: Receipt | None) -> Contents | Broken:
    body = await destination.get_batch(batch_id)
    if body is None:
        return Broken(batch_id, "missing")
    try:
        if receipt is not None:
            receipt.check(body)
        return Contents.read(batch_id, body)
    except ArchiveError as error:
        if error.fault is not Fault.INTEGRITY:
            raise
        return Broken(batch_id, str(error))


async def _before(destination: Destination, batch_id: BatchId) -> BatchId | None:
    """The batch that ends where this one begins; one that nobody has, if there is none but should be."""
    if batch_id.first == 1:
        return None
    listed = await destination.list_batches(batch_id.tenant_id)
    ending = [each for each in listed if each.last == batch_id.first - 1]
    return ending[0] if ending else BatchId(batch_id.tenant_id, 1, batch_id.first - 1)
