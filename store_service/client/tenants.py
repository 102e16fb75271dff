"""The client of TenantService: what operators decide for a tenant."""

from types import TracebackType
from typing import Self

import grpc.aio
from taskstore.v1 import tenants_pb2, tenants_pb2_grpc

from store_service.client.calls import call
from store_service.client.channel import open_channel
from store_service.client.tls import Tls


class TenantStore:
    """Tenants as their operators see them, with the messages of `taskstore.v1` as they are.

    Every call has a deadline and is repeated with the same content until then. Refusals and failures are raised as StoreError.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._stub = tenants_pb2_grpc.TenantServiceStub(channel)

    @classmethod
    def connect(cls, address: str, *, tls: Tls | None = None) -> Self:
        """A client for the running event loop. It connects at the first call, and again whenever it must."""
        return cls(open_channel(address, tls))

    async def close(self) -> None:
        """Gives the connection back. Calls under way end with an error."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def set_tenant_policy(
        self, request: tenants_pb2.SetTenantPolicyRequest, *, timeout_seconds: float = 10
    ) -> tenants_pb2.Tenant:
        """Sets a tenant's whole policy. Returns the tenant as it stands then."""
        return (await call(self._stub.SetTenantPolicy, request, timeout_seconds=timeout_seconds)).tenant

    async def get_tenant(self, request: tenants_pb2.GetTenantRequest, *, timeout_seconds: float = 10) -> tenants_pb2.Tenant:
        """Reads a tenant: its policy, its use, its pauses."""
        return (await call(self._stub.GetTenant, request, timeout_seconds=timeout_seconds)).tenant

    async def pause_work(self, request: tenants_pb2.PauseWorkRequest, *, timeout_seconds: float = 10) -> tenants_pb2.Tenant:
        """Holds back work that is not leased yet. Returns the tenant as it stands then."""
        return (await call(self._stub.PauseWork, request, timeout_seconds=timeout_seconds)).tenant

    async def resume_work(self, request: tenants_pb2.ResumeWorkRequest, *, timeout_seconds: float = 10) -> tenants_pb2.Tenant:
        """Takes one pause away. Returns the tenant as it stands then."""
        return (await call(self._stub.ResumeWork, request, timeout_seconds=timeout_seconds)).tenant

    async def list_registrations(
        self, request: tenants_pb2.ListRegistrationsRequest, *, timeout_seconds: float = 10
    ) -> tenants_pb2.ListRegistrationsResponse:
        """Lists what workers asked for on behalf of a tenant during the last day."""
        return await call(self._stub.ListRegistrations, request, timeout_seconds=timeout_seconds)

    async def redrive_tasks(
        self, request: tenants_pb2.RedriveTasksRequest, *, timeout_seconds: float = 30
    ) -> tenants_pb2.RedriveTasksResponse:
        """Sends failed tasks back to work, or tells which it would. What a lost answer did is told again."""
        return await call(self._stub.RedriveTasks, request, timeout_seconds=timeout_seconds)
