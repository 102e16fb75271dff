"""Rows of tombstones. Source of the texts: `retention.sql`."""

from collections.abc import Iterable, Mapping
from typing import Any

import asyncpg

from store_service.db.cleanup import cleanup_fence
from store_service.db.pool import Database
from store_service.db.queries import Queries
from store_service.db.records import value_of
from store_service.model.limits import ANSWER_BYTES
from store_service.model.purges import TombstoneExport
from store_service.model.retention import CleanupLease, TenantRetention, Tombstone
from store_service.model.states import TaskState


class RetentionRows:
    """The statements on what is removed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = Queries("retention.sql")

    async def remove_tasks(self, lease: CleanupLease, limit: int) -> list[Tombstone] | None:
        """Removes what is over; returns the tombstones written, None where the lease does not hold."""
        rows = await self._database.write(self._queries["remove_tasks"], *cleanup_fence(lease), limit)
        return None if rows[0]["outcome"] != "OK" else _tombstones(row for row in rows if row["cursor"] is not None)

    async def list_tombstones(
        self, tenant_id: str, after_cursor: int, limit: int, *, with_history: bool = False
    ) -> list[Tombstone]:
        """A page of tombstones, by rising cursor."""
        query = self._queries["list_tombstones"]
        rows = await self._database.read(query, tenant_id, after_cursor, limit, with_history, ANSWER_BYTES)
        return _tombstones(rows)

    async def get_tombstone(self, tenant_id: str, task_id: str) -> Tombstone | None:
        """The tombstone of a task, if there is one."""
        found = _tombstones(await self._database.read(self._queries["get_tombstone"], tenant_id, task_id))
        return found[0] if found else None

    async def get_retention(self, tenant_id: str) -> TenantRetention | None:
        """How far it has come; None where there is no such tenant."""
        rows = await self._database.read(self._queries["get_retention"], tenant_id)
        if not rows:
            return None
        row, exported = rows[0], None
        if row["through_cursor"] is not None:
            exported = TombstoneExport(
                tenant_id, row["through_cursor"], row["receipt"], row["confirmed_by"], row["confirmed_at"]
            )
        return TenantRetention(
            tenant_id=row["tenant_id"],
            due_since=row["due_since"],
            last_cursor=row["last_cursor"],
            exported=exported,
            cleanup_owner_id=row["owner_id"],
            cleanup_expires_at=row["expires_at"],
            purges_waiting=row["purges_waiting"],
            holds=row["holds"],
        )


def _tombstones(rows: Iterable[asyncpg.Record]) -> list[Tombstone]:
    return [_tombstone(row) for row in rows]


def _tombstone(row: Mapping[str, Any]) -> Tombstone:
    return value_of(Tombstone, row, task_id=str(row["task_id"]), state=TaskState(row["state"]))
