"""TenantService."""

from typing import Any

import grpc
from taskstore.v1 import tenants_pb2, tenants_pb2_grpc

from store_service.model.limits import check_name
from store_service.operations.tenants import Tenants
from store_service.rpc import reading, writing

Context = grpc.aio.ServicerContext[Any, Any]


class TenantService(tenants_pb2_grpc.TenantServiceServicer):
    """See `tenants.proto`."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

    async def SetTenantPolicy(
        self, request: tenants_pb2.SetTenantPolicyRequest, context: Context
    ) -> tenants_pb2.SetTenantPolicyResponse:
        tenant_id = check_name("tenant_id", request.tenant_id)
        tenant = await self._tenants.set_tenant_policy(tenant_id, reading.read_policy(request.policy))
        return tenants_pb2.SetTenantPolicyResponse(tenant=writing.to_tenant(tenant))

    async def GetTenant(self, request: tenants_pb2.GetTenantRequest, context: Context) -> tenants_pb2.GetTenantResponse:
        tenant = await self._tenants.get_tenant(check_name("tenant_id", request.tenant_id))
        return tenants_pb2.GetTenantResponse(tenant=writing.to_tenant(tenant))
