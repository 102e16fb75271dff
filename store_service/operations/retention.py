"""What is over is put away and leaves its proof."""

from store_service.db.retention import RetentionRows
from store_service.model.refusals import Reason, Refusal
from store_service.model.tasks import Tombstone


class Retention:
    """Removal and tombstones."""

    def __init__(self, rows: RetentionRows) -> None:
        self._rows = rows

    async def remove_tasks(self, tenant_id: str, *, limit: int) -> list[Tombstone]:
        """Removes tasks past their handle and their retention, oldest first, a tombstone for each in the same step."""
        return await self._rows.remove_tasks(tenant_id, limit)

    async def list_tombstones(self, tenant_id: str, *, after_cursor: int, limit: int) -> list[Tombstone]:
        """A page of tombstones."""
        return await self._rows.list_tombstones(tenant_id, after_cursor, limit)

    async def get_tombstone(self, tenant_id: str, task_id: str) -> Tombstone:
        """The tombstone of a task."""
        tombstone = await self._rows.get_tombstone(tenant_id, task_id)
        if tombstone is None:
            raise Refusal(Reason.TOMBSTONE_NOT_FOUND)
        return tombstone
