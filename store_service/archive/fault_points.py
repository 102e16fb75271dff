"""The points around what an archive keeps. See `store_service/fault_points.py`."""

from typing import Final

from store_service.archive.batches import Batch, BatchId, Destination, Receipt
from store_service.fault_points import FaultPoints

BEFORE: Final = "store.archive.before_put"
AFTER: Final = "store.archive.after_put"
POINTS: Final = frozenset({BEFORE, AFTER})


class Reaching:
    """A destination that reaches a point before a batch is kept, and one before anybody is told."""

    def __init__(self, points: FaultPoints, destination: Destination) -> None:
        self._points = points
        self._destination = destination

    async def put_batch(self, batch: Batch) -> Receipt:
        """See `Destination`."""
        await self._points.reach(BEFORE)
        receipt = await self._destination.put_batch(batch)
        await self._points.reach(AFTER)
        return receipt

    async def get_batch(self, batch_id: BatchId) -> bytes | None:
        """See `Destination`."""
        return await self._destination.get_batch(batch_id)

    async def list_batches(self, tenant_id: str) -> list[BatchId]:
        """See `Destination`."""
        return await self._destination.list_batches(tenant_id)

    async def close(self) -> None:
        """See `Destination`."""
        await self._destination.close()
