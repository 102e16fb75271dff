"""Rows of what time does. Source of the texts: `chores.sql`."""

from collections.abc import Sequence
from datetime import datetime

import asyncpg

from store_service.db.moves import read_unfinished
from store_service.db.pool import Database
from store_service.db.queries import Queries
from store_service.model.moves import UnfinishedMove


class ChoreRows:
    """The statements of the loops that tidy."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = Queries("chores.sql")
        self._moves_under_way = Queries("moves.sql")["moves_under_way"]

    async def promote_due(
        self, limit: int, *, grace_ms: int, max_crashes: int, since: datetime | None = None
    ) -> tuple[Sequence[asyncpg.Record], datetime]:
        """Brings along what has fallen due, since then or ever. Rows: tenant_id, task_id, event, worker_id, opened; and the
        moment before which nothing is due."""
        rows = await self._database.write(self._queries["promote_due"], limit, grace_ms, max_crashes, since)
        return [row for row in rows if row["task_id"] is not None], rows[0]["due_from"]

    async def forget_claims(self, older_than_ms: int, limit: int) -> None:
        """Forgets what workers took long ago."""
        await self._database.write(self._queries["forget_claims"], older_than_ms, limit)

    async def queue_figures(self, lanes: int) -> asyncpg.Record:
        """How much work there is. Columns: ready, leased, other, oldest_ready_ms."""
        return (await self._database.read(self._queries["queue_figures"], lanes))[0]

    async def has_other_timeline(self) -> bool:
        """Whether the database failed over or was restored since its epoch was raised."""
        return bool((await self._database.read(self._queries["has_other_timeline"]))[0]["other"])

    async def removal_figures(self, after_tenant_id: str, tenants: int, tasks: int) -> asyncpg.Record:
        """What is to be removed of the next tenants. Columns: removable, oldest_ms, next_tenant."""
        return (await self._database.read(self._queries["removal_figures"], after_tenant_id, tenants, tasks))[0]

    async def purges_waiting(self) -> int:
        """How many purges wait for a decision."""
        waiting: int = (await self._database.read(self._queries["purges_waiting"]))[0]["waiting"]
        return waiting

    async def moves_under_way(self, tenants: int) -> Sequence[UnfinishedMove]:
        """Moves that have not come to their end, those first that have stood still for longest."""
        return read_unfinished(await self._database.read(self._moves_under_way, tenants))

    async def analyze_outgrown(self) -> None:
        """Has Postgres look at tables of whose rows it knows none, or a tenth; sessions plan anew thereupon. Writes no row."""
        await self._database.read(self._queries["analyze_outgrown"])

    async def ping(self) -> None:
        """Asks the database whether it takes writes. Raises STORAGE_UNAVAILABLE, and gives the connection up, if not."""
        await self._database.read(self._queries["ping"])
