"""The main path of a task, as a caller and a worker see it."""

from uuid import RFC_4122, UUID

import pytest
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


@pytest.mark.row("T3")
@pytest.mark.must("T-39")
async def test_ids_are_random_and_tell_nothing(store: Stubs) -> None:
    ids = [UUID((await create(store)).task_id) for _ in range(32)]
    assert {(one.version, one.variant) for one in ids} == {(4, RFC_4122)}
    for byte in range(16):
        assert len({one.bytes[byte] & 0x0F for one in ids} | {one.bytes[byte] & 0xF0 for one in ids}) > 4, "it repeats"
    assert ids != sorted(ids)


async def test_a_late_worker_is_refused_after_another_took_over(store: Stubs) -> None:
    await create(store)
    first = await lease(store, lease_ms=1_000)
    second = (await store.leases.LeaseTasks(claim(worker_id="w2", wait_ms=10_000))).tasks[0]
    assert second.lease.token == first.lease.token + 1
    await assert_lease_lost(store.leases.CompleteTask(complete(first.lease)))
