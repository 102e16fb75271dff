"""Rows of tenants. Source of the texts: `tenants.sql`."""

from collections.abc import Sequence

from store_service.db.pool import Database
from store_service.db.queries import Queries
from store_service.model.tasks import Tenant


class TenantRows:
    """The statements on tenants."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = Queries("tenants.sql")

    async def set_tenant_policy(
        self, tenant_id: str, *, max_outstanding: int, max_leased: int, retention_ms: int
    ) -> Sequence[str]:
        """Sets the policy; returns the lanes that opened."""
        rows = await self._database.write(
            self._queries["set_tenant_policy"], tenant_id, max_outstanding, max_leased, retention_ms
        )
        opened: Sequence[str] = rows[0]["opened"]
        return opened

    async def get_tenant(self, tenant_id: str) -> Tenant | None:
        """The tenant, if there is one."""
        rows = await self._database.read(self._queries["get_tenant"], tenant_id)
        return Tenant(**rows[0]) if rows else None
