"""A lease is judged by the database's clock, read once the locks are held. Source: contract, decision 1; case 43."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from taskstore.v1 import leases_pb2

from store_service.db.arrays import numbers
from store_service.db.queries import Queries
from tests.conftest import Clock, Stubs
from tests.store.builders import (
    LOCK_TASK,
    LOCK_TENANT,
    TENANT,
    assert_lease_lost,
    blocked,
    checkpoint,
    claim,
    complete,
    create,
    create_and_lease,
    get,
    heartbeat,
    holding,
    release,
)

WAITING_CALLS = {
    "HeartbeatTask": lambda store, held: store.leases.HeartbeatTask(heartbeat(held)),
    "ReportProgress": lambda store, held: store.leases.ReportProgress(leases_pb2.ReportProgressRequest(lease=held, value=1)),
    "AppendCheckpoint": lambda store, held: store.leases.AppendCheckpoint(checkpoint(held)),
    "CompleteTask": lambda store, held: store.leases.CompleteTask(complete(held)),
    "ReleaseTask": lambda store, held: store.leases.ReleaseTask(release(held)),
}


@pytest.mark.parametrize("method", WAITING_CALLS)
async def test_a_write_that_waited_for_its_row_past_the_expiry_is_refused(
    store: Stubs, clock: Clock, database: asyncpg.Connection, dsn: str, method: str
) -> None:
    held = (await create_and_lease(store)).lease
    async with holding(dsn, LOCK_TASK, held.task_id):
        waiting = asyncio.ensure_future(WAITING_CALLS[method](store, held))
        await blocked(database)
        await clock.advance(seconds=30)
    await assert_lease_lost(waiting)
    assert (await get(store, held.task_id)).checkpoints == 0


async def test_a_write_that_waited_less_than_its_lease_is_accepted(
    store: Stubs, clock: Clock, database: asyncpg.Connection, dsn: str
) -> None:
    held = (await create_and_lease(store)).lease
    async with holding(dsn, LOCK_TASK, held.task_id):
        waiting = asyncio.ensure_future(store.leases.HeartbeatTask(heartbeat(held)))
        await blocked(database)
        await clock.advance(seconds=25)
    extended = await waiting
    read = await get(store, held.task_id)
    assert extended.expires_at == read.lease_expires_at
    left = read.lease_expires_at.ToDatetime() - read.read_at.ToDatetime()
    assert timedelta(seconds=25) < left <= timedelta(seconds=30)


async def test_a_claim_that_waited_for_its_tenant_grants_a_full_lease(
    store: Stubs, clock: Clock, database: asyncpg.Connection, dsn: str
) -> None:
    await create(store)
    async with holding(dsn, LOCK_TENANT, TENANT):
        waiting = asyncio.ensure_future(store.leases.LeaseTasks(claim()))
        await blocked(database)
        await clock.advance(seconds=90)
    (leased,) = (await waiting).tasks
    read = await get(store, leased.lease.task_id)
    left = leased.expires_at.ToDatetime() - read.read_at.ToDatetime()
    assert timedelta(seconds=25) < left <= timedelta(seconds=30)


@pytest.mark.parametrize("workflows", [["report"], ["other", "report"]])
async def test_a_claim_waits_for_a_task_that_is_held_without_its_tenant(
    store: Stubs, database: asyncpg.Connection, dsn: str, workflows: list[str]
) -> None:
    """An attachment and a late heartbeat hold a task's row for a moment, and tell nobody when they let go."""
    task = await create(store)
    request = claim(workflow=workflows[0])
    for workflow in workflows[1:]:
        request.workflows.add(workflow=workflow, version=1)
    async with holding(dsn, LOCK_TASK, task.task_id):
        waiting = asyncio.ensure_future(store.leases.LeaseTasks(request))
        await blocked(database)
    assert [one.lease.task_id for one in (await waiting).tasks] == [task.task_id]


async def test_a_heartbeat_extends_and_never_shortens(store: Stubs, clock: Clock) -> None:
    leased = await create_and_lease(store)
    longer = await store.leases.HeartbeatTask(heartbeat(leased.lease, lease_ms=600_000))
    assert longer.expires_at.ToDatetime() > leased.expires_at.ToDatetime() + timedelta(seconds=500)
    same = await store.leases.HeartbeatTask(heartbeat(leased.lease, lease_ms=1_000))
    assert same.expires_at == longer.expires_at
    await clock.advance(seconds=599)
    await store.leases.HeartbeatTask(heartbeat(leased.lease))


async def test_each_workflow_has_its_own_length_of_a_lease(store: Stubs, clock: Clock) -> None:
    done = complete((await create_and_lease(store)).lease)
    await create(store, workflow="long")
    await create(store, workflow="short")
    request = claim(lease_ms=20_000)
    del request.workflows[:]
    request.workflows.add(workflow="long", version=1, lease_ms=60_000)
    request.workflows.add(workflow="short", version=1)
    answer = await store.leases.CompleteAndLeaseTasks(leases_pb2.CompleteAndLeaseTasksRequest(items=[done], lease=request))
    long, short = sorted(answer.tasks, key=lambda task: task.contract.workflow)
    assert (long.lease_ms, short.lease_ms) == (60_000, 20_000)
    assert long.expires_at.ToDatetime() - short.expires_at.ToDatetime() == timedelta(seconds=40)

    await clock.advance(seconds=15)
    for task in (long, short):
        extended = await store.leases.HeartbeatTask(heartbeat(task.lease, lease_ms=0))
        assert extended.expires_at.ToDatetime() >= task.expires_at.ToDatetime() + timedelta(seconds=15)
    await clock.advance(seconds=15)
    again = (await store.leases.LeaseTasks(request)).tasks  # the answer was lost: as long as new ones, each its own
    assert [task.lease_ms for task in again] == [task.lease_ms for task in answer.tasks]
    assert all(task.expires_at.ToDatetime() >= old.expires_at.ToDatetime() + timedelta(seconds=30)
               for task, old in zip(again, answer.tasks, strict=True))  # fmt: skip

    await clock.advance(seconds=20)
    request.request_id, request.worker_id = "next", "w2"
    assert [task.contract.workflow for task in (await store.leases.LeaseTasks(request)).tasks] == ["short"]
    await clock.advance(seconds=40)
    request.request_id = "last"
    assert {task.contract.workflow for task in (await store.leases.LeaseTasks(request)).tasks} == {"long", "short"}


async def test_a_lease_ends_at_the_instant_it_names(store: Stubs, clock: Clock, database: asyncpg.Connection) -> None:
    held = (await create_and_lease(store)).lease
    frozen = "CREATE OR REPLACE FUNCTION tenure.task_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$ {} $$"
    at_expiry: Any = "SELECT expires_at - interval '1 us' FROM tenure.task_state"
    stands = await database.fetchval(at_expiry)
    await database.execute(frozen.format(f"SELECT timestamptz '{stands.isoformat()}'"))
    extended = await store.leases.HeartbeatTask(heartbeat(held, lease_ms=1_000))
    await database.execute(frozen.format(f"SELECT timestamptz '{extended.expires_at.ToDatetime().isoformat()}+00'"))
    await assert_lease_lost(store.leases.HeartbeatTask(heartbeat(held)))


async def test_heartbeats_stay_in_their_page(store: Stubs, database: asyncpg.Connection) -> None:
    held = [(await create_and_lease(store, abandon_ms=60_000)).lease for _ in range(3)]
    columns: list[Any] = [
        [one.tenant_id for one in held], [UUID(one.task_id) for one in held], [one.worker_id for one in held],
        numbers(one.token for one in held), numbers(one.epoch for one in held),
    ]  # fmt: skip
    leases, tasks, nobody = Queries("leases.sql"), Queries("tasks.sql"), [None] * 3
    repeated = [
        (leases["heartbeat_tasks"], (*columns, numbers([30_000] * 3))),
        (leases["report_progress"], (*columns, [1.0] * 3, nobody, [""] * 3)),
        (tasks["attach_tasks"], (*columns[:2], nobody, nobody, [90_000] * 3)),
    ]
    for _ in range(20):
        for query, arguments in repeated:
            async with database.transaction():
                rows = await database.fetch(query, *arguments)
                assert {row["outcome"] for row in rows} == {"OK"}
                all_updates, in_page = await database.fetchrow(  # since this session last told them
                    "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relid = 'tenure.task_state'::regclass"
                )
                assert all_updates == in_page >= 3, query
