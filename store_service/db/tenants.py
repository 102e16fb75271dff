"""Rows of tenants. Source of the texts: `tenants.sql`."""

from collections.abc import Sequence

from store_service.db.pool import Database
from store_service.db.queries import Queries
from store_service.db.records import value_of
from store_service.model.limits import PAUSES_PER_TENANT
from store_service.model.pauses import Pause, WorkScope
from store_service.model.tasks import Tenant, TenantPolicy


class TenantRows:
    """The statements on tenants."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = Queries("tenants.sql")

    async def set_tenant_policy(self, tenant_id: str, policy: TenantPolicy) -> Sequence[str]:
        """Sets the policy; returns the lanes that opened."""
        rows = await self._database.write(
            self._queries["set_tenant_policy"],
            tenant_id,
            policy.max_outstanding,
            policy.max_leased,
            policy.retention_ms,
            policy.max_input_bytes,
            policy.max_creates_per_second,
        )
        opened: Sequence[str] = rows[0]["opened"]
        return opened

    async def get_tenant(self, tenant_id: str) -> Tenant | None:
        """The tenant, if there is one."""
        rows = await self._database.read(self._queries["get_tenant"], tenant_id)
        if not rows:
            return None
        policy = value_of(TenantPolicy, rows[0])
        pauses = tuple(
            Pause(WorkScope(row["workflow"], row["version"]), row["actor"], row["reason"], row["paused_at"])
            for row in rows
            if row["workflow"] is not None
        )
        return Tenant(
            tenant_id=tenant_id, policy=policy, outstanding=rows[0]["outstanding"], leased=rows[0]["leased"], pauses=pauses
        )

    async def pause_work(self, tenant_id: str, scope: WorkScope, actor: str, reason: str) -> str:
        """Holds work back. Returns the outcome."""
        rows = await self._database.write(
            self._queries["pause_work"], tenant_id, scope.workflow, scope.version, actor, reason, PAUSES_PER_TENANT
        )
        outcome: str = rows[0]["outcome"]
        return outcome

    async def resume_work(self, tenant_id: str, scope: WorkScope) -> Sequence[str] | None:
        """Takes a pause away; returns the lanes that opened, None where there is no such tenant."""
        rows = await self._database.write(self._queries["resume_work"], tenant_id, scope.workflow, scope.version)
        opened: Sequence[str] | None = rows[0]["opened"]
        return opened
