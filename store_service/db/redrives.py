"""Rows of redrives. Source of the texts: `redrives.sql`."""

from typing import Final

import asyncpg

from store_service.db.pool import Database
from store_service.db.queries import Queries
from store_service.model.redrives import Redrive

MEMORY_MS: Final = 30 * 86_400_000


class RedriveRows:
    """The statement that redrives."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = Queries("redrives.sql")

    async def redrive_tasks(self, item: Redrive, digest: bytes) -> asyncpg.Record:
        """Sends failed tasks back. Row: outcome, task_ids, outcomes, replayed, opened."""
        rows = await self._database.write(
            self._queries["redrive_tasks"],
            item.tenant_id,
            item.request_id,
            digest,
            item.actor,
            item.scope.workflow or None,
            item.scope.version or None,
            list(item.reasons) or None,
            item.failed_from,
            item.failed_before,
            list(item.task_ids) or None,
            item.limit,
            item.dry_run,
            MEMORY_MS,
        )
        return rows[0]
