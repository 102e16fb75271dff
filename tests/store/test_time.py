"""What time does to tasks: lost workers, crash limits, deadlines, abandonment. And what it must not do twice or for ever."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
from taskstore.v1 import leases_pb2, tasks_pb2, types_pb2

from tests.conftest import Clock, Stubs, serving
from tests.store.builders import (
    LOCK_TASK,
    LOCK_TENANT,
    TENANT,
    bring_along,
    checkpoint,
    claim,
    complete,
    create,
    create_and_lease,
    fail,
    get,
    heartbeat,
    history,
    holding,
    lease,
    new_task,
    release,
    retry_policy,
    set_policy,
    until,
)

PROMOTE = "SELECT event FROM tenure.promote_due(500, 30000, 20) WHERE task_id IS NOT NULL"


async def lose_worker(store: Stubs, database: asyncpg.Connection, clock: Clock, *, lived: bool) -> leases_pb2.LeasedTask:
    """Takes the task, is heard of or not, and lets the lease run out."""
    leased = await lease(store)
    if lived:
        await store.leases.HeartbeatTask(heartbeat(leased.lease))
    await clock.advance(seconds=31)
    await bring_along(store, database)
    return leased


async def test_a_lost_worker_counts_as_a_crash_once_it_was_heard_of(
    store: Stubs, clock: Clock, database: asyncpg.Connection
) -> None:
    task = await create(store)
    await lose_worker(store, database, clock, lived=False)
    assert (await get(store, task.task_id)).crashes == 0
    signs: list[Callable[[types_pb2.Lease], Awaitable[Any]]] = [
        lambda held: store.leases.HeartbeatTask(heartbeat(held)),
        lambda held: store.leases.AppendCheckpoint(checkpoint(held)),
        lambda held: store.leases.ReportProgress(leases_pb2.ReportProgressRequest(lease=held, value=1)),
    ]
    for number, sign in enumerate(signs):
        await sign((await lease(store)).lease)
        await clock.advance(seconds=31)
        await bring_along(store, database)
        assert (await get(store, task.task_id)).crashes == number + 1
    leased = await lease(store)
    assert (leased.attempts, leased.crashes, leased.retries, leased.checkpoints) == (5, 3, 0, 1)


async def test_releases_and_retries_are_no_crashes(store: Stubs, clock: Clock, database: asyncpg.Connection) -> None:
    task = await create(store)
    for number in range(30):
        held = (await lease(store)).lease
        await store.leases.HeartbeatTask(heartbeat(held))
        if number % 2:
            await store.leases.ReleaseTask(release(held))
        else:
            await store.leases.FailTask(fail(held, retry=retry_policy(max_attempts=100, initial_ms=1, most_ms=1)))
            await clock.advance(seconds=1)
            await bring_along(store, database)
    read = await get(store, task.task_id)
    assert (read.state, read.attempts, read.crashes, read.retries) == (types_pb2.TASK_STATE_QUEUED, 30, 0, 15)


async def test_a_task_that_loses_its_workers_too_often_fails(store: Stubs, clock: Clock, database: asyncpg.Connection) -> None:
    task = await create(store)
    other = await create(store, workflow="other")
    for _ in range(20):
        await lose_worker(store, database, clock, lived=True)
    read = await get(store, task.task_id)
    assert (read.state, read.crashes) == (types_pb2.TASK_STATE_QUEUED, 20)
    await lose_worker(store, database, clock, lived=True)
    read = await get(store, task.task_id)
    assert (read.state, read.crashes, read.attempts) == (types_pb2.TASK_STATE_FAILED, 21, 21)
    assert read.error.reason == types_pb2.FAILURE_REASON_CRASH_LIMIT
    assert read.error.code == -32603
    assert "lost" in read.error.message
    assert (await history(store, task.task_id))[-2:] == ["LEASED", "FAILED"]
    assert (await get(store, other.task_id)).state == types_pb2.TASK_STATE_QUEUED


async def test_a_task_that_kills_its_workers_before_their_first_word_fails_in_the_end(
    store: Stubs, clock: Clock, database: asyncpg.Connection
) -> None:
    task = await create(store)
    for number in range(41):
        assert (await get(store, task.task_id)).crashes == max(0, number - 20)
        await lose_worker(store, database, clock, lived=False)
    read = await get(store, task.task_id)
    assert (read.state, read.attempts) == (types_pb2.TASK_STATE_FAILED, 41)
    assert read.error.reason == types_pb2.FAILURE_REASON_CRASH_LIMIT


async def test_the_crash_limit_is_the_operators(dsn: str, clock: Clock, database: asyncpg.Connection) -> None:
    async with serving(dsn, max_crashes=0) as store:
        task = await create(store)
        await lose_worker(store, database, clock, lived=False)
        assert (await get(store, task.task_id)).state == types_pb2.TASK_STATE_QUEUED
        await lose_worker(store, database, clock, lived=True)
        assert (await get(store, task.task_id)).state == types_pb2.TASK_STATE_FAILED


async def test_work_past_its_deadline_fails_wherever_it_stands(
    store: Stubs, clock: Clock, database: asyncpg.Connection
) -> None:
    await set_policy(store, leased=2)
    tasks = [await create(store, deadline_ms=60_000) for _ in range(3)]
    held = (await store.leases.LeaseTasks(claim(limit=2, lease_ms=900_000))).tasks
    assert held[0].deadline_at.seconds - held[0].created_at.seconds == 60
    await store.leases.FailTask(fail(held[1].lease, retry=retry_policy(initial_ms=80_000_000, most_ms=80_000_000)))
    await clock.advance(seconds=59)
    await bring_along(store, database)
    assert {(await get(store, task.task_id)).HasField("ended_at") for task in tasks} == {False}
    await clock.advance(seconds=2)
    await bring_along(store, database)
    for task in tasks:
        read = await get(store, task.task_id)
        assert (read.state, read.error.reason) == (types_pb2.TASK_STATE_FAILED, types_pb2.FAILURE_REASON_EXECUTION_DEADLINE)
        assert (await history(store, task.task_id))[-1] == "FAILED"
    assert not (await store.leases.LeaseTasks(claim())).tasks
    assert (
        (await store.leases.HeartbeatTasks(leases_pb2.HeartbeatTasksRequest(items=[heartbeat(held[0].lease)])))
        .items[0]
        .HasField("refused")
    )


async def attach(store: Stubs, task_id: str, *, abandon_ms: int) -> None:
    await store.tasks.AttachTask(tasks_pb2.AttachTaskRequest(tenant_id=TENANT, task_id=task_id, abandon_after_ms=abandon_ms))


async def test_a_task_that_nobody_waits_for_is_cancelled(store: Stubs, clock: Clock, database: asyncpg.Connection) -> None:
    names = ("forgotten", "renewed", "kept", "unbounded")
    tasks = {name: await create(store, workflow=name, abandon_ms=0 if name == "unbounded" else 10_000) for name in names}
    await clock.advance(seconds=9)
    await attach(store, tasks["renewed"].task_id, abandon_ms=10_000)
    await attach(store, tasks["kept"].task_id, abandon_ms=0)
    await clock.advance(seconds=9)
    await bring_along(store, database)
    states = {name: (await get(store, task.task_id)).state for name, task in tasks.items()}
    live = types_pb2.TASK_STATE_QUEUED
    assert states == {"forgotten": types_pb2.TASK_STATE_CANCELLED, "renewed": live, "kept": live, "unbounded": live}
    await clock.advance(seconds=2)
    await bring_along(store, database)
    assert (await get(store, tasks["renewed"].task_id)).state == types_pb2.TASK_STATE_CANCELLED
    await attach(store, tasks["renewed"].task_id, abandon_ms=1)
    assert await history(store, tasks["renewed"].task_id) == ["CREATED", "CANCELLED"]
    await clock.advance(seconds=100_000)
    await bring_along(store, database)
    assert (await get(store, tasks["kept"].task_id)).state == live


async def test_a_task_whose_id_was_handed_out_is_never_abandoned_whoever_attaches_later(
    store: Stubs, clock: Clock, database: asyncpg.Connection
) -> None:
    at_once, later = await create(store), await create(store, abandon_ms=10_000)
    await attach(store, later.task_id, abandon_ms=0)
    for task in (at_once, later):
        await attach(store, task.task_id, abandon_ms=5_000)
    await clock.advance(seconds=100_000)
    await bring_along(store, database)
    for task in (at_once, later):
        assert (await get(store, task.task_id)).state == types_pb2.TASK_STATE_QUEUED


async def test_an_attachment_forgets_nothing_else_that_is_timed(
    store: Stubs, clock: Clock, database: asyncpg.Connection
) -> None:
    for abandon_ms in (0, 900_000):
        late = await create(store, workflow="late", deadline_ms=60_000)
        lost = await create(store)
        await lease(store)
        for task in (late, lost):
            await attach(store, task.task_id, abandon_ms=abandon_ms)
        await clock.advance(seconds=61)
        await bring_along(store, database)
        assert (await get(store, late.task_id)).state == types_pb2.TASK_STATE_FAILED
        assert await history(store, lost.task_id) == ["CREATED", "LEASED", "LEASE_EXPIRED"]
        await store.leases.CompleteTask(complete((await lease(store)).lease))


async def test_the_worker_of_an_abandoned_task_is_told_and_may_finish(
    store: Stubs, clock: Clock, database: asyncpg.Connection
) -> None:
    for finishes in (True, False):
        task = await create(store, abandon_ms=10_000)
        held = (await lease(store, lease_ms=900_000)).lease
        await clock.advance(seconds=11)
        await bring_along(store, database)
        assert (await store.leases.HeartbeatTask(heartbeat(held, lease_ms=900_000))).cancel_requested
        await attach(store, task.task_id, abandon_ms=10_000)  # too late: the wish stands
        assert (await get(store, task.task_id)).cancel_requested
        if finishes:
            await store.leases.CompleteTask(complete(held))
        else:
            await clock.advance(seconds=31)
            await bring_along(store, database)
        last = "COMPLETED" if finishes else "CANCELLED"
        assert await history(store, task.task_id) == ["CREATED", "LEASED", "CANCEL_REQUESTED", last]


async def test_an_abandoned_task_whose_worker_is_lost_is_cancelled(
    store: Stubs, clock: Clock, database: asyncpg.Connection
) -> None:
    task = await create(store, abandon_ms=10_000)
    await lease(store, lease_ms=5_000)
    await clock.advance(seconds=11)
    await bring_along(store, database)
    assert await history(store, task.task_id) == ["CREATED", "LEASED", "CANCELLED"]


async def test_what_was_looked_at_in_vain_is_not_due_any_more(store: Stubs, clock: Clock, database: asyncpg.Connection) -> None:
    await create(store, workflow="other", deadline_ms=900_000, abandon_ms=10_000)
    await attach(store, (await create(store, abandon_ms=10_000)).task_id, abandon_ms=0)
    held = (await lease(store)).lease
    await store.leases.HeartbeatTask(heartbeat(held, lease_ms=600_000))
    for row in await database.fetch("SELECT task_id FROM tenure.task_state"):
        await attach(store, str(row["task_id"]), abandon_ms=300_000)
    await clock.advance(seconds=60)
    await bring_along(store, database)
    assert await database.fetch(PROMOTE) == []
    due = await database.fetch("SELECT check_at - tenure.task_now() AS left FROM tenure.task_state ORDER BY 1")
    abandonment, lease_end = (row["left"].total_seconds() for row in due)
    assert 230 < abandonment <= 240
    assert 530 < lease_end <= 540


async def test_the_chores_look_past_a_tenant_that_others_hold(
    store: Stubs, clock: Clock, dsn: str, database: asyncpg.Connection
) -> None:
    await set_policy(store, tenant_id="hog", outstanding=1_000, leased=1_000)
    for first in range(0, 600, 300):  # more than one look takes
        items = [new_task(tenant_id="hog", deadline_ms=1_000 + first + number) for number in range(300)]
        await store.tasks.CreateTasks(tasks_pb2.CreateTasksRequest(items=items))
    last = await create(store, deadline_ms=5_000)
    async with holding(dsn, LOCK_TENANT, "hog"):
        await clock.advance(seconds=20)

        async def has_failed() -> bool:
            await store.leases.LeaseTasks(claim(workflow="nobody's"))
            return (await get(store, last.task_id)).state == types_pb2.TASK_STATE_FAILED

        await until(has_failed, "the other tenant's task fails")
    await bring_along(store, database)


async def test_the_chores_judge_a_row_as_it_is_under_its_lock(
    store: Stubs, clock: Clock, dsn: str, database: asyncpg.Connection
) -> None:
    """Case 30: a rescuer that acted on an earlier look would take the lease that was extended meanwhile."""
    held = (await create_and_lease(store)).lease
    await clock.advance(seconds=29)
    async with holding(dsn, LOCK_TASK, held.task_id) as other:
        await clock.advance(seconds=2)
        assert await database.fetch(PROMOTE, timeout=5) == []  # the row is held: nobody waits for it
        await other.execute("UPDATE tenure.task_state SET expires_at = expires_at + interval '60 s'")
    await bring_along(store, database)
    await store.leases.HeartbeatTask(heartbeat(held))
    assert await history(store, held.task_id) == ["CREATED", "LEASED"]


async def test_a_finish_and_an_expiry_at_once_leave_one_of_the_two(
    store: Stubs, clock: Clock, database: asyncpg.Connection, dsn: str
) -> None:
    for _ in range(10):
        held = (await create_and_lease(store)).lease
        async with holding(dsn, LOCK_TENANT, TENANT):
            finish = asyncio.ensure_future(store.leases.CompleteTask(complete(held)))
            await clock.advance(seconds=29.99)
        answer = (await asyncio.gather(finish, return_exceptions=True))[0]
        await clock.advance(seconds=1)
        await bring_along(store, database)
        lines = await history(store, held.task_id)
        if isinstance(answer, BaseException):
            assert lines == ["CREATED", "LEASED", "LEASE_EXPIRED"]
            await store.leases.CompleteTask(complete((await lease(store)).lease))
        else:
            assert lines == ["CREATED", "LEASED", "COMPLETED"]
