"""Rows of tombstones. Source of the texts: `retention.sql`."""

from collections.abc import Iterable

import asyncpg

from store_service.db.pool import Database
from store_service.db.queries import Queries
from store_service.model.states import TaskState
from store_service.model.tasks import Tombstone


class RetentionRows:
    """The statements on what is removed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = Queries("retention.sql")

    async def remove_tasks(self, tenant_id: str, limit: int) -> list[Tombstone]:
        """Removes what is over; returns the tombstones written."""
        return _tombstones(await self._database.write(self._queries["remove_tasks"], tenant_id, limit))

    async def list_tombstones(self, tenant_id: str, after_cursor: int, limit: int) -> list[Tombstone]:
        """A page of tombstones, by rising cursor."""
        return _tombstones(await self._database.read(self._queries["list_tombstones"], tenant_id, after_cursor, limit))

    async def get_tombstone(self, tenant_id: str, task_id: str) -> Tombstone | None:
        """The tombstone of a task, if there is one."""
        found = _tombstones(await self._database.read(self._queries["get_tombstone"], tenant_id, task_id))
        return found[0] if found else None


def _tombstones(rows: Iterable[asyncpg.Record]) -> list[Tombstone]:
    return [Tombstone(**{**row, "task_id": str(row["task_id"]), "state": TaskState(row["state"])}) for row in rows]
