"""TenantService."""

from typing import Any

import grpc
from taskstore.v1 import tenants_pb2, tenants_pb2_grpc

from store_service.model.limits import RETENTION_MS, check_name, check_range
from store_service.operations.tenants import Tenants
from store_service.rpc import writing

Context = grpc.aio.ServicerContext[Any, Any]


class TenantService(tenants_pb2_grpc.TenantServiceServicer):
    """See `tenants.proto`."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

    async def SetTenantPolicy(
        self, request: tenants_pb2.SetTenantPolicyRequest, context: Context
    ) -> tenants_pb2.SetTenantPolicyResponse:
        policy = request.policy
        most = check_range("policy.max_outstanding", policy.max_outstanding, range(1, 2**31))
        tenant = await self._tenants.set_tenant_policy(
            check_name("tenant_id", request.tenant_id),
            max_outstanding=most,
            max_leased=check_range("policy.max_leased", policy.max_leased, range(1, most + 1)),
            retention_ms=check_range("policy.retention_ms", policy.retention_ms, RETENTION_MS),
        )
        return tenants_pb2.SetTenantPolicyResponse(tenant=writing.to_tenant(tenant))

    async def GetTenant(self, request: tenants_pb2.GetTenantRequest, context: Context) -> tenants_pb2.GetTenantResponse:
        tenant = await self._tenants.get_tenant(check_name("tenant_id", request.tenant_id))
        return tenants_pb2.GetTenantResponse(tenant=writing.to_tenant(tenant))
