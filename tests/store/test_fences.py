"""A write under a lease that does not hold is refused, whatever the write and whatever is wrong with the lease."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from uuid import uuid4

import asyncpg
import pytest
from taskstore.v1 import leases_pb2, types_pb2

from store_service.db.migrate import bump_epoch
from tests.conftest import Clock, Stubs
from tests.store.builders import (
    LOCK_TENANT,
    TENANT,
    assert_lease_lost,
    bring_along,
    cancel,
    checkpoint,
    complete,
    create,
    create_and_lease,
    fail,
    get,
    heartbeat,
    holding,
    lease,
    refusal_in,
    release,
    retry_policy,
    suspend,
)

Call = Callable[[Stubs, types_pb2.Lease], Awaitable[Any]]

FENCED: Final[Mapping[str, Call]] = {
    "HeartbeatTask": lambda store, held: store.leases.HeartbeatTask(heartbeat(held)),
    "ReportProgress": lambda store, held: store.leases.ReportProgress(leases_pb2.ReportProgressRequest(lease=held, value=1)),
    "LoadInput": lambda store, held: store.leases.LoadInput(leases_pb2.LoadInputRequest(lease=held)),
    "LoadEarlyAnswers": lambda store, held: store.leases.LoadEarlyAnswers(leases_pb2.LoadEarlyAnswersRequest(lease=held)),
    "LoadCheckpoints": lambda store, held: store.leases.LoadCheckpoints(leases_pb2.LoadCheckpointsRequest(lease=held)),
    "AppendCheckpoint": lambda store, held: store.leases.AppendCheckpoint(checkpoint(held, revision=1)),
    "CompleteTask": lambda store, held: store.leases.CompleteTask(complete(held, b'"late"')),
    "FailTask": lambda store, held: store.leases.FailTask(fail(held, message="late")),
    "FailTask, to be retried": lambda store, held: store.leases.FailTask(fail(held, message="late", retry=retry_policy())),
    "ReleaseTask": lambda store, held: store.leases.ReleaseTask(release(held, delay_ms=77)),
    "ConfirmCancel": lambda store, held: store.leases.ConfirmCancel(leases_pb2.ConfirmCancelRequest(lease=held)),
    "SuspendTask": lambda store, held: store.leases.SuspendTask(suspend(held, signal="late")),
    "ReserveBudget": lambda store, held: store.leases.ReserveBudget(leases_pb2.ReserveBudgetRequest(lease=held)),
    "SettleBudget": lambda store, held: store.leases.SettleBudget(leases_pb2.SettleBudgetRequest(lease=held)),
}
BATCHES: Final[Mapping[str, Call]] = {
    "HeartbeatTasks": lambda store, held: store.leases.HeartbeatTasks(
        leases_pb2.HeartbeatTasksRequest(items=[heartbeat(held)])
    ),
    "AppendCheckpoints": lambda store, held: store.leases.AppendCheckpoints(
        leases_pb2.AppendCheckpointsRequest(items=[checkpoint(held, revision=1)])
    ),
    "CompleteTasks": lambda store, held: store.leases.CompleteTasks(
        leases_pb2.CompleteTasksRequest(items=[complete(held, b'"late"')])
    ),
    "FailTasks": lambda store, held: store.leases.FailTasks(leases_pb2.FailTasksRequest(items=[fail(held, message="late")])),
    "ReleaseTasks": lambda store, held: store.leases.ReleaseTasks(
        leases_pb2.ReleaseTasksRequest(items=[release(held, delay_ms=77)])
    ),
}


def test_every_method_that_carries_a_lease_is_tried() -> None:
    methods = [
        method
        for method in leases_pb2.DESCRIPTOR.services_by_name["LeaseService"].methods
        if method.name not in ("LeaseTasks", "CompleteAndLeaseTasks")
    ]
    carrying = {method.name for method in methods if "lease" in method.input_type.fields_by_name}
    assert carrying == {name.partition(",")[0] for name in FENCED}
    assert BATCHES.keys() == {method.name for method in methods if "items" in method.input_type.fields_by_name}


async def assert_all_refused(store: Stubs, held: types_pb2.Lease) -> None:
    """Every method refuses the lease and changes nothing."""
    before = await get(store, held.task_id)
    for method, call in FENCED.items():
        print(method)  # told when one of them fails
        await assert_lease_lost(call(store, held))
    for call in BATCHES.values():
        (item,) = (await call(store, held)).items
        assert refusal_in(item.refused).reason == "LEASE_LOST"
    after = await get(store, held.task_id)
    before.read_at.CopyFrom(after.read_at)
    assert after == before


@pytest.fixture
async def held(store: Stubs) -> types_pb2.Lease:
    """A lease that holds, with one checkpoint written."""
    leased = await create_and_lease(store)
    await store.leases.AppendCheckpoint(checkpoint(leased.lease))
    return leased.lease


async def test_a_lease_with_one_wrong_field_is_lost(store: Stubs, held: types_pb2.Lease) -> None:
    wrong: list[tuple[str, Any]] = [
        ("worker_id", "w2"), ("token", 2), ("token", 0), ("token", -1), ("epoch", 2), ("epoch", 0), ("epoch", 2**62)
    ]  # fmt: skip
    for field, value in wrong:
        forged = types_pb2.Lease()
        forged.CopyFrom(held)
        setattr(forged, field, value)
        await assert_all_refused(store, forged)
    await store.leases.HeartbeatTask(heartbeat(held))


async def test_a_lease_of_a_task_in_another_tenant_is_lost(store: Stubs, held: types_pb2.Lease) -> None:
    for tenant_id in ("globex", "nobody"):
        await create(store, tenant_id="globex")
        forged = types_pb2.Lease(
            tenant_id=tenant_id, task_id=held.task_id, worker_id=held.worker_id, token=held.token, epoch=held.epoch
        )
        for call in FENCED.values():
            await assert_lease_lost(call(store, forged))
    await store.leases.HeartbeatTask(heartbeat(held))


async def test_a_lease_of_a_task_that_never_was_is_lost(store: Stubs, held: types_pb2.Lease) -> None:
    forged = types_pb2.Lease(tenant_id=TENANT, task_id=str(uuid4()), worker_id="w1", token=1, epoch=1)
    for call in FENCED.values():
        await assert_lease_lost(call(store, forged))


async def test_an_expired_lease_is_lost_even_if_nobody_took_over(
    store: Stubs, held: types_pb2.Lease, clock: Clock, dsn: str, database: asyncpg.Connection
) -> None:
    async with holding(dsn, LOCK_TENANT, TENANT):  # which keeps the chores away
        await clock.advance(seconds=30)
        for method in ("HeartbeatTask", "ReportProgress", "LoadInput", "LoadCheckpoints", "AppendCheckpoint"):
            await assert_lease_lost(FENCED[method](store, held))
        assert await database.fetchval("SELECT state FROM tenure.task_state") == "LEASED"
    await bring_along(store, database)  # now, and not while it is looked at
    await assert_all_refused(store, held)


async def test_a_released_lease_is_lost(store: Stubs, held: types_pb2.Lease) -> None:
    await store.leases.ReleaseTask(release(held))
    await assert_all_refused(store, held)


async def test_the_lease_of_a_completed_task_is_lost(store: Stubs, held: types_pb2.Lease) -> None:
    await store.leases.CompleteTask(complete(held))
    await assert_all_refused(store, held)


async def test_the_lease_of_a_failed_task_is_lost(store: Stubs, held: types_pb2.Lease) -> None:
    await store.leases.FailTask(fail(held))
    await assert_all_refused(store, held)


async def test_the_lease_of_a_task_that_rests_is_lost(store: Stubs, held: types_pb2.Lease) -> None:
    await store.leases.FailTask(fail(held, retry=retry_policy()))
    await assert_all_refused(store, held)


async def test_the_lease_of_a_cancelled_task_is_lost(store: Stubs, held: types_pb2.Lease) -> None:
    await store.tasks.CancelTask(cancel(held.task_id, force=True))
    await assert_all_refused(store, held)


async def test_a_lease_is_lost_once_another_worker_took_over(
    store: Stubs, held: types_pb2.Lease, clock: Clock, database: asyncpg.Connection
) -> None:
    await clock.advance(seconds=30)
    await bring_along(store, database)
    taken = await lease(store, worker_id="w2")
    assert taken.lease.token == held.token + 1
    await assert_all_refused(store, held)
    held.worker_id = "w2"
    await assert_all_refused(store, held)


async def test_a_worker_that_takes_its_own_task_again_has_one_lease(store: Stubs, held: types_pb2.Lease) -> None:
    await store.leases.ReleaseTask(release(held))
    again = await lease(store)
    await assert_all_refused(store, held)
    await store.leases.HeartbeatTask(heartbeat(again.lease))


async def test_a_raised_epoch_ends_every_lease_granted_before(store: Stubs, held: types_pb2.Lease, dsn: str) -> None:
    assert await bump_epoch(dsn) == held.epoch + 1
    await assert_all_refused(store, held)
    await store.leases.HeartbeatTask(heartbeat(types_pb2.Lease(
        tenant_id=held.tenant_id, task_id=held.task_id, worker_id=held.worker_id, token=held.token, epoch=held.epoch + 1
    )))  # fmt: skip
    await create(store)
    assert (await lease(store)).lease.epoch == held.epoch + 1
