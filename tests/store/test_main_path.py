"""The main path of a task, as a caller and a worker see it."""

from taskstore.v1 import types_pb2

from tests.conftest import Stubs
from tests.store.builders import assert_lease_lost, claim, complete, create, get, lease


async def test_a_task_is_created_leased_completed_and_read_byte_for_byte(store: Stubs) -> None:
    created = await create(store)
    leased = await lease(store)
    assert leased.lease.task_id == created.task_id
    assert leased.input.data == b'{"a": 1}'
    result = b'{"big": 123456789012345678901234567890, "nul": "\\u0000", "z":1.0,"a":1}'
    await store.leases.CompleteTask(complete(leased.lease, result))
    read = await get(store, created.task_id)
    assert read.state == types_pb2.TASK_STATE_COMPLETED
    assert read.result.data == result


async def test_a_late_worker_is_refused_after_another_took_over(store: Stubs) -> None:
    await create(store)
    first = await lease(store, lease_ms=1_000)
    second = (await store.leases.LeaseTasks(claim(worker_id="w2", wait_ms=10_000))).tasks[0]
    assert second.lease.token == first.lease.token + 1
    await assert_lease_lost(store.leases.CompleteTask(complete(first.lease)))
