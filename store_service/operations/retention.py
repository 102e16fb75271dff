"""What is over is put away and leaves its proof."""

from collections.abc import Sequence
from datetime import datetime

from store_service.db.cleanup import CleanupRows
from store_service.db.retention import RetentionRows
from store_service.model.refusals import Reason, Refusal
from store_service.model.retention import CleanupClaim, CleanupLease, CleanupTenants, TenantRetention, Tombstone


class Retention:
    """Cleanup leases, removal and tombstones."""

    def __init__(self, rows: RetentionRows, leases: CleanupRows) -> None:
        self._rows = rows
        self._leases = leases

    async def list_cleanup_tenants(
        self, tenant_ids: Sequence[str] = (), *, after_tenant_id: str = "", limit: int
    ) -> CleanupTenants:
        """Looks at so many tenants; none named means all."""
        looked = await self._leases.list_cleanup_tenants(tenant_ids, after_tenant_id, limit)
        due = tuple((tenant_id, since) for tenant_id, since in looked if since is not None)
        return CleanupTenants(due, looked[-1][0] if len(looked) == limit else None)

    async def claim_cleanup(self, tenant_id: str, owner_id: str, *, principal: str, lease_ms: int) -> CleanupClaim:
        """Takes a tenant's cleanup lease, if nobody else holds it."""
        outcome, claim = await self._leases.claim_cleanup(tenant_id, owner_id, principal, lease_ms)
        if outcome not in ("TAKEN", "HELD"):
            raise Refusal(Reason(outcome))
        return claim

    async def heartbeat_cleanup(self, lease: CleanupLease, *, lease_ms: int) -> datetime:
        """Extends a cleanup lease, and never shortens it. Returns until when."""
        expires_at = await self._leases.heartbeat_cleanup(lease, lease_ms)
        if expires_at is None:
            raise Refusal(Reason.LEASE_LOST)
        return expires_at

    async def release_cleanup(self, lease: CleanupLease) -> None:
        """Gives a cleanup lease back."""
        if not await self._leases.release_cleanup(lease):
            raise Refusal(Reason.LEASE_LOST)

    async def remove_tasks(self, lease: CleanupLease, *, limit: int) -> list[Tombstone]:
        """Removes tasks past their handle and their retention, oldest first, a tombstone for each in the same step; fewer
        than `limit` where they have much that goes with them, none where none is due."""
        tombstones = await self._rows.remove_tasks(lease, limit)
        if tombstones is None:
            raise Refusal(Reason.LEASE_LOST)
        return tombstones

    async def get_retention(self, tenant_id: str) -> TenantRetention:
        """How far a tenant's retention has come."""
        found = await self._rows.get_retention(tenant_id)
        if found is None:
            raise Refusal(Reason.TENANT_NOT_FOUND)
        return found

    async def list_tombstones(
        self, tenant_id: str, *, after_cursor: int, limit: int, with_history: bool = False
    ) -> list[Tombstone]:
        """A page of tombstones; with histories, of at most 4 MiB of them."""
        return await self._rows.list_tombstones(tenant_id, after_cursor, limit, with_history=with_history)

    async def get_tombstone(self, tenant_id: str, task_id: str) -> Tombstone:
        """The tombstone of a task."""
        tombstone = await self._rows.get_tombstone(tenant_id, task_id)
        if tombstone is None:
            raise Refusal(Reason.TOMBSTONE_NOT_FOUND)
        return tombstone
