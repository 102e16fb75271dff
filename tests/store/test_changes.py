"""`changed_at` and `change` move with what callers can see, and with nothing else; neither ever runs backwards."""

import asyncpg
import pytest
from taskstore.v1 import leases_pb2, tasks_pb2, types_pb2

from tests.conftest import Clock, Stubs
from tests.store.builders import (
    TENANT,
    bring_along,
    cancel,
    checkpoint,
    claim,
    complete,
    create,
    create_and_lease,
    fail,
    get,
    heartbeat,
    history,
    lease,
    release,
    retry_policy,
)


def report(held: types_pb2.Lease, *, value: float = 1, message: str = "") -> leases_pb2.ReportProgressRequest:
    return leases_pb2.ReportProgressRequest(lease=held, value=value, message=message)


async def test_each_visible_change_counts_one(store: Stubs, clock: Clock, database: asyncpg.Connection) -> None:
    task = await create(store)
    changes = [task.change]
    times = [task.changed_at.ToDatetime()]

    async def look() -> types_pb2.Task:
        read = await get(store, task.task_id)
        changes.append(read.change)
        times.append(read.changed_at.ToDatetime())
        await clock.advance(seconds=1)
        return read

    await clock.advance(seconds=1)
    held = (await lease(store)).lease
    await look()
    await store.leases.ReportProgress(report(held))
    await look()
    await store.leases.FailTask(fail(held, retry=retry_policy(initial_ms=1, most_ms=1)))
    await look()
    await bring_along(store, database)
    held = (await lease(store)).lease
    await look()
    await store.leases.ReleaseTask(release(held))
    await look()
    held = (await lease(store)).lease
    await look()
    await clock.advance(seconds=31)
    await bring_along(store, database)
    await look()
    held = (await lease(store)).lease
    await look()
    await store.tasks.CancelTask(cancel(task.task_id))
    await look()
    await store.leases.CompleteTask(complete(held))
    last = await look()
    assert changes == list(range(1, 12))
    assert times == sorted(set(times))
    assert last.ended_at == last.changed_at


async def test_heartbeats_checkpoints_and_renewals_move_nothing(store: Stubs, clock: Clock) -> None:
    held = (await create_and_lease(store, abandon_ms=60_000)).lease
    before = await get(store, held.task_id)
    for revision in range(3):
        await clock.advance(seconds=5)
        await store.leases.HeartbeatTask(heartbeat(held))
        await store.leases.AppendCheckpoint(checkpoint(held, revision=revision))
        attach = tasks_pb2.AttachTaskRequest(tenant_id=TENANT, task_id=held.task_id, abandon_after_ms=60_000)
        await store.tasks.AttachTask(attach)
        await store.leases.LoadInput(leases_pb2.LoadInputRequest(lease=held))
        await store.leases.LoadCheckpoints(leases_pb2.LoadCheckpointsRequest(lease=held))
    after = await get(store, held.task_id)
    assert after.lease_expires_at != before.lease_expires_at
    for task in (before, after):  # what moves without a change
        for field in ("read_at", "checkpoints", "lease_expires_at"):
            task.ClearField(field)
    assert after == before


async def test_a_clock_that_steps_back_does_not_take_changes_back(
    store: Stubs, clock: Clock, database: asyncpg.Connection
) -> None:
    task = await create(store)
    times = [task.changed_at.ToDatetime()]

    async def step_back_and_look() -> None:
        times.append((await get(store, task.task_id)).changed_at.ToDatetime())
        await clock.advance(seconds=-30)

    await step_back_and_look()
    held = (await lease(store)).lease
    await step_back_and_look()
    await store.leases.ReportProgress(report(held))
    await step_back_and_look()
    await store.tasks.CancelTask(cancel(task.task_id))
    await step_back_and_look()
    await store.leases.CompleteTask(complete(held))
    await step_back_and_look()
    read = await get(store, task.task_id)
    times.append(read.changed_at.ToDatetime())
    assert times == sorted(times)
    assert read.ended_at.ToDatetime() >= read.created_at.ToDatetime()
    assert read.ended_at == read.changed_at
    assert await history(store, task.task_id) == ["CREATED", "LEASED", "CANCEL_REQUESTED", "COMPLETED"]
    await bring_along(store, database)


async def test_a_clock_that_stepped_back_only_makes_leases_longer(store: Stubs, clock: Clock) -> None:
    leased = await create_and_lease(store)
    await clock.advance(seconds=-3_600)
    extended = await store.leases.HeartbeatTask(heartbeat(leased.lease))
    assert extended.expires_at == leased.expires_at
    assert not (await store.leases.LeaseTasks(claim(worker_id="w2"))).tasks


@pytest.mark.must("P-06")
async def test_the_last_progress_is_read_and_sixteen_are_kept(store: Stubs, database: asyncpg.Connection) -> None:
    held = (await create_and_lease(store)).lease
    assert not (await get(store, held.task_id)).HasField("progress")
    for number in range(1, 41):
        request = report(held, value=number, message=f"step {number}")
        if number % 2:
            request.total = 40
        assert (await store.leases.ReportProgress(request)).sequence == number
        read = (await get(store, held.task_id)).progress
        assert (read.sequence, read.value, read.message) == (number, number, f"step {number}")
        assert read.HasField("total") == bool(number % 2)
    kept = await database.fetch("SELECT sequence FROM tenure.progress ORDER BY sequence")
    assert [row["sequence"] for row in kept] == list(range(25, 41))
    await store.leases.ReleaseTask(release(held))
    again = (await lease(store)).lease
    assert (await store.leases.ReportProgress(report(again, value=0))).sequence == 41
    await store.leases.CompleteTask(complete(again))
    assert (await get(store, held.task_id)).progress.sequence == 41
