"""Rows of holds. Source of the texts: `holds.sql`."""

import asyncpg

from store_service.db.pool import Database
from store_service.db.queries import Queries
from store_service.db.records import value_of
from store_service.model.retention import Hold


class HoldRows:
    """The statements on what must be kept."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = Queries("holds.sql")

    async def place_hold(self, tenant_id: str, task_id: str, reason: str, principal: str) -> tuple[str, Hold | None, bool]:
        """The outcome, the hold, and whether there was one."""
        rows = await self._database.write(self._queries["place_hold"], tenant_id, task_id, reason, principal)
        return rows[0]["outcome"], _hold(rows[0]), rows[0]["replayed"]

    async def release_hold(self, tenant_id: str, number: int, principal: str) -> tuple[str, Hold | None]:
        """The outcome and the hold."""
        rows = await self._database.write(self._queries["release_hold"], tenant_id, number, principal)
        return rows[0]["outcome"], _hold(rows[0])

    async def list_holds(
        self, tenant_id: str, after_number: int, limit: int, *, active: bool, task_id: str | None
    ) -> list[Hold]:
        """A page of holds, by rising number."""
        asked = tenant_id, after_number, limit, active
        if task_id is None:
            rows = await self._database.read(self._queries["list_holds"], *asked)
        else:
            rows = await self._database.read(self._queries["list_holds_of_task"], *asked, task_id)
        return [hold for row in rows if (hold := _hold(row))]


def _hold(row: asyncpg.Record) -> Hold | None:
    if row["number"] is None:
        return None
    return value_of(Hold, row, task_id=str(row["task_id"]))
