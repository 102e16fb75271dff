"""The main path of a task, as a caller and a worker see it."""

from uuid import uuid4

import grpc
import pytest
from taskstore.v1 import leases_pb2, tasks_pb2, types_pb2

from tests.conftest import Stubs


def new_task(*, workflow: str = "report", tenant_id: str = "acme", data: bytes = b'{"a": 1}') -> tasks_pb2.CreateTaskRequest:
    return tasks_pb2.CreateTaskRequest(
        tenant_id=tenant_id,
        request_id=uuid4().hex,
        contract=types_pb2.TaskContract(
            tool="report", workflow=workflow, workflow_version=1, owner=types_pb2.Owner(issuer="test", subject="ann")
        ),
        input=types_pb2.Payload(data=data),
    )


def claim(*, workflow: str = "report", worker_id: str = "w1", wait_ms: int = 0, lease_ms: int = 30_000) -> leases_pb2.LeaseTasksRequest:
    return leases_pb2.LeaseTasksRequest(
        request_id=uuid4().hex,
        worker_id=worker_id,
        workflows=[leases_pb2.WorkflowVersion(workflow=workflow, version=1)],
        limit=10,
        lease_ms=lease_ms,
        wait_ms=wait_ms,
    )


async def test_a_task_is_created_leased_completed_and_read_byte_for_byte(store: Stubs) -> None:
    created = (await store.tasks.CreateTask(new_task())).task
    leased = (await store.leases.LeaseTasks(claim())).tasks[0]
    assert leased.lease.task_id == created.task_id
    assert leased.input.data == b'{"a": 1}'
    result = b'{"big": 123456789012345678901234567890, "nul": "\\u0000", "z":1.0,"a":1}'
    await store.leases.CompleteTask(leases_pb2.CompleteTaskRequest(lease=leased.lease, result=types_pb2.Payload(data=result)))
    request = tasks_pb2.GetTaskRequest(tenant_id="acme", task_id=created.task_id, view=types_pb2.TASK_VIEW_OUTCOME)
    read = (await store.tasks.GetTask(request)).task
    assert read.state == types_pb2.TASK_STATE_COMPLETED
    assert read.result.data == result


async def test_a_late_worker_is_refused_after_another_took_over(store: Stubs) -> None:
    await store.tasks.CreateTask(new_task())
    first = (await store.leases.LeaseTasks(claim(lease_ms=1_000))).tasks[0]
    second = (await store.leases.LeaseTasks(claim(worker_id="w2", wait_ms=10_000))).tasks[0]
    assert second.lease.token == first.lease.token + 1
    late = leases_pb2.CompleteTaskRequest(lease=first.lease, result=types_pb2.Payload(data=b"1"))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await store.leases.CompleteTask(late)
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
