"""What operators decide for tenants."""

from store_service.db.tenants import TenantRows
from store_service.db.wakeups import Wakeups, tells
from store_service.model.pauses import WorkScope
from store_service.model.refusals import Reason, Refusal, reading_back
from store_service.model.tasks import Tenant, TenantPolicy


class Tenants:
    """Policies and their use, and pauses."""

    def __init__(self, rows: TenantRows, wakeups: Wakeups) -> None:
        self._rows = rows
        self._wakeups = wakeups

    @tells
    async def set_tenant_policy(self, tenant_id: str, policy: TenantPolicy) -> Tenant:
        """Sets a tenant's policy; wakes the workers that a wider one has work for."""
        opened = await self._rows.set_tenant_policy(tenant_id, policy)
        self._wakeups.wake_lanes(opened)
        with reading_back():
            return await self.get_tenant(tenant_id)

    async def pause_work(self, tenant_id: str, scope: WorkScope, *, actor: str, reason: str) -> Tenant:
        """Holds back work that is not leased yet, until it is resumed."""
        outcome = await self._rows.pause_work(tenant_id, scope, actor, reason)
        if outcome != "OK":
            raise Refusal(Reason(outcome))
        with reading_back():
            return await self.get_tenant(tenant_id)

    @tells
    async def resume_work(self, tenant_id: str, scope: WorkScope) -> Tenant:
        """Takes one pause away; wakes the workers that there is work for again."""
        opened = await self._rows.resume_work(tenant_id, scope)
        if opened is None:
            raise Refusal(Reason.TENANT_NOT_FOUND)
        self._wakeups.wake_lanes(opened)
        with reading_back():
            return await self.get_tenant(tenant_id)

    async def get_tenant(self, tenant_id: str) -> Tenant:
        """A tenant as it stands."""
        tenant = await self._rows.get_tenant(tenant_id)
        if tenant is None:
            raise Refusal(Reason.TENANT_NOT_FOUND)
        return tenant
