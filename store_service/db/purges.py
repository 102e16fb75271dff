"""Rows of exports, purges and their evidence. Source of the texts: `purges.sql`."""

from collections.abc import Sequence

import asyncpg

from store_service.db.cleanup import cleanup_fence
from store_service.db.pool import Database
from store_service.db.queries import Queries
from store_service.db.records import value_of
from store_service.model.purges import NewPurge, Purge, PurgeEvidence, PurgeState, TombstoneExport
from store_service.model.retention import CleanupLease


class PurgeRows:
    """The statements on what may be forgotten for good. What is changed comes with an outcome."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = Queries("purges.sql")

    async def confirm_export(
        self, tenant_id: str, through_cursor: int, receipt: str, principal: str
    ) -> tuple[str, TombstoneExport | None]:
        """Notes that tombstones are kept elsewhere."""
        rows = await self._database.write(self._queries["confirm_export"], tenant_id, through_cursor, receipt, principal)
        row = rows[0]
        if row["through_cursor"] is None:
            return row["outcome"], None
        return row["outcome"], value_of(TombstoneExport, row)

    async def list_unexported_tenants(self, after_tenant_id: str, limit: int) -> list[tuple[str, bool]]:
        """The tenants that were looked at, and whether they have tombstones that are not kept elsewhere yet."""
        rows = await self._database.read(self._queries["list_unexported_tenants"], after_tenant_id, limit)
        return [(row["tenant_id"], row["unexported"]) for row in rows]

    async def prepare_purge(self, lease: CleanupLease, new: NewPurge, digest: bytes) -> tuple[str, Purge | None]:
        """Prepares a purge; with the digest by which a repetition is known."""
        query = self._queries["prepare_purge"]
        wish = new.request_id, digest, new.retention_ms, new.limit, new.approval_ms
        return _outcome(await self._database.write(query, *cleanup_fence(lease), *wish))

    async def list_purges(self, tenant_id: str, after_number: int, limit: int, states: Sequence[PurgeState]) -> list[Purge]:
        """A page of purges, by rising number."""
        rows = await self._database.read(self._queries["list_purges"], tenant_id, after_number, limit, list(states))
        return [_purge(row) for row in rows]

    async def claim_purge(self, tenant_id: str, number: int, principal: str, lease_ms: int) -> tuple[str, Purge | None]:
        """Takes one that waits for a decision."""
        return _outcome(await self._database.write(self._queries["claim_purge"], tenant_id, number, principal, lease_ms))

    async def decide_purge(
        self, tenant_id: str, number: int, claim_token: int, principal: str, rejection: str | None
    ) -> tuple[str, Purge | None]:
        """Rejects it for this reason, or approves it."""
        query = self._queries["decide_purge"]
        return _outcome(await self._database.write(query, tenant_id, number, claim_token, principal, rejection))

    async def execute_purge(self, lease: CleanupLease, number: int) -> tuple[str, PurgeEvidence | None]:
        """Deletes its tombstones, all or none."""
        rows = await self._database.write(self._queries["execute_purge"], *cleanup_fence(lease), number)
        return rows[0]["outcome"], value_of(PurgeEvidence, rows[0]) if rows[0]["number"] is not None else None

    async def get_purge_evidence(self, tenant_id: str, number: int) -> PurgeEvidence | None:
        """What it left, if it was executed."""
        rows = await self._database.read(self._queries["get_purge_evidence"], tenant_id, number)
        return value_of(PurgeEvidence, rows[0]) if rows else None


def _outcome(rows: Sequence[asyncpg.Record]) -> tuple[str, Purge | None]:
    return rows[0]["outcome"], _purge(rows[0]) if rows[0]["number"] is not None else None


def _purge(row: asyncpg.Record) -> Purge:
    return value_of(Purge, row, state=PurgeState(row["state"]))
