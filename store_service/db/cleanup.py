"""Rows of cleanup leases. Source of the texts: `cleanup.sql`."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from store_service.db.pool import Database
from store_service.db.queries import Queries
from store_service.model.retention import CleanupClaim, CleanupLease


def cleanup_fence(lease: CleanupLease) -> tuple[Any, ...]:
    """A lease as a statement takes it: tenant, owner, principal, token, epoch."""
    return lease.tenant_id, lease.owner_id, lease.principal, lease.token, lease.epoch


class CleanupRows:
    """The statements on who may remove."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = Queries("cleanup.sql")

    async def list_cleanup_tenants(
        self, tenant_ids: Sequence[str], after_tenant_id: str, limit: int
    ) -> list[tuple[str, datetime | None]]:
        """The tenants that were looked at, and since when their oldest task is to be removed, if any is."""
        query = self._queries["list_cleanup_tenants"]
        rows = await self._database.read(query, list(tenant_ids), after_tenant_id, limit)
        return [(row["tenant_id"], row["due_since"]) for row in rows]

    async def claim_cleanup(self, tenant_id: str, owner_id: str, principal: str, lease_ms: int) -> tuple[str, CleanupClaim]:
        """The outcome, TAKEN or HELD where there is such a tenant, and what the claim came to."""
        rows = await self._database.write(self._queries["claim_cleanup"], tenant_id, owner_id, principal, lease_ms)
        row, lease = rows[0], None
        if row["token"] is not None:
            lease = CleanupLease(tenant_id, owner_id, principal, row["token"], row["epoch"])
        return row["outcome"], CleanupClaim(lease, row["expires_at"])

    async def heartbeat_cleanup(self, lease: CleanupLease, lease_ms: int) -> datetime | None:
        """Until when the lease is extended; None where it does not hold."""
        rows = await self._database.write(self._queries["heartbeat_cleanup"], *cleanup_fence(lease), lease_ms)
        expires_at: datetime | None = rows[0]["expires_at"]
        return expires_at

    async def release_cleanup(self, lease: CleanupLease) -> bool:
        """Whether the lease held, which is over now."""
        rows = await self._database.write(self._queries["release_cleanup"], *cleanup_fence(lease))
        released: bool = rows[0]["released"]
        return released
