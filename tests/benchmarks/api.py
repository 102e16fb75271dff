"""The store's API, and what the benchmarks ask of it again and again."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final
from uuid import uuid4

import grpc
import grpc.aio
from taskstore.v1 import leases_pb2, leases_pb2_grpc, tasks_pb2, tasks_pb2_grpc, tenants_pb2, tenants_pb2_grpc, types_pb2

from mcp_bridge.access.issuers import DEVELOPMENT_ISSUER

TENANT: Final = "dev"
OWNER: Final = types_pb2.Owner(issuer=DEVELOPMENT_ISSUER, subject="dev")
BATCH: Final = 100
_LIMITS: Final = [("grpc.max_receive_message_length", 6 * 2**20), ("grpc.max_send_message_length", 6 * 2**20)]


class Api:
    """The store's services."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.tasks: tasks_pb2_grpc.TaskServiceAsyncStub = tasks_pb2_grpc.TaskServiceStub(channel)
        self.leases: leases_pb2_grpc.LeaseServiceAsyncStub = leases_pb2_grpc.LeaseServiceStub(channel)
        self.tenants: tenants_pb2_grpc.TenantServiceAsyncStub = tenants_pb2_grpc.TenantServiceStub(channel)

    async def lift_limits(self, tenant_id: str = TENANT) -> None:
        """Lets a tenant have as many tasks as a benchmark needs."""
        policy = tenants_pb2.TenantPolicy(max_outstanding=10_000_000, max_leased=10_000, retention_ms=86_400_000)
        await self.tenants.SetTenantPolicy(tenants_pb2.SetTenantPolicyRequest(tenant_id=tenant_id, policy=policy))

    async def outstanding(self, tenant_id: str = TENANT) -> int:
        """How many tasks of a tenant have not ended."""
        return (await self.tenants.GetTenant(tenants_pb2.GetTenantRequest(tenant_id=tenant_id))).tenant.outstanding

    async def until_ended(self, tenant_id: str = TENANT) -> None:
        """Waits until every task of a tenant has ended."""
        while await self.outstanding(tenant_id):
            await asyncio.sleep(0.01)

    async def create(self, count: int, *, workflow: str, tenant_id: str = TENANT, poll_ms: int = 10) -> list[str]:
        """Creates tasks and returns their ids."""
        made: list[str] = []
        for first in range(0, count, BATCH):
            items = [new_task(workflow, tenant_id, poll_ms) for _ in range(first, min(first + BATCH, count))]
            answer = await self.tasks.CreateTasks(tasks_pb2.CreateTasksRequest(items=items))
            made += [item.created.task.task_id for item in answer.items]
        assert all(made), "a creation was refused"
        return made

    async def claim(self, limit: int, *, workflow: str, worker_id: str = "bench") -> list[leases_pb2.LeasedTask]:
        """Takes what there is, and does not wait."""
        request = leases_pb2.LeaseTasksRequest(
            request_id=uuid4().hex, worker_id=worker_id, limit=limit, lease_ms=60_000,
            workflows=[leases_pb2.WorkflowVersion(workflow=workflow, version=1)],
        )  # fmt: skip
        return list((await self.leases.LeaseTasks(request)).tasks)

    async def finish(self, taken: list[leases_pb2.LeasedTask], result: bytes = b'{"content":[]}') -> None:
        """Ends tasks with this result."""
        payload = types_pb2.Payload(data=result)
        items = [leases_pb2.CompleteTaskRequest(lease=task.lease, result=payload) for task in taken]
        answer = await self.leases.CompleteTasks(leases_pb2.CompleteTasksRequest(items=items))
        assert all(item.HasField("completed") for item in answer.items), "a completion was refused"

    async def complete(self, count: int, result: bytes, *, workflow: str) -> None:
        """Takes so many tasks and ends them with this result."""
        left, fits = count, max(1, min(BATCH, 4 * 2**20 // (len(result) + 1000)))
        while left:
            taken = await self.claim(min(left, fits), workflow=workflow)
            await self.finish(taken, result)
            left -= len(taken)


def new_task(workflow: str, tenant_id: str = TENANT, poll_ms: int = 10, data: bytes = b"{}") -> tasks_pb2.CreateTaskRequest:
    """A creation."""
    contract = types_pb2.TaskContract(
        tool="job", workflow=workflow, workflow_version=1, owner=OWNER, poll_interval_ms=poll_ms, ttl_ms=86_400_000
    )
    return tasks_pb2.CreateTaskRequest(
        tenant_id=tenant_id, request_id=uuid4().hex, contract=contract, input=types_pb2.Payload(data=data)
    )


@contextlib.asynccontextmanager
async def api(address: str) -> AsyncIterator[Api]:
    """The API of the store at an address."""
    async with grpc.aio.insecure_channel(address, options=_LIMITS) as channel:
        yield Api(channel)
