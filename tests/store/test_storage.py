"""What callers are told when the database fails them, and that the store is whole again afterwards."""

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import asyncpg
import grpc
import pytest
from prometheus_client import CollectorRegistry
from taskstore.v1 import leases_pb2, tasks_pb2, types_pb2

from store_service.db import pool
from tests.conftest import Clock, Stubs, serving
from tests.store.builders import (
    LOCK_TASK,
    LOCK_TENANT,
    TENANT,
    blocked,
    checkpoint,
    claim,
    complete,
    create,
    create_and_lease,
    get,
    heartbeat,
    holding,
    refusal_of,
    set_policy,
    until,
)

OURS = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'tenure-store'"
TRANSIENT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN, grpc.StatusCode.RESOURCE_EXHAUSTED)
LOCK_ALL = "LOCK TABLE tenure.task IN ACCESS EXCLUSIVE MODE"

OpenStore = Callable[..., AbstractAsyncContextManager[Stubs]]


@pytest.fixture
def open_store(dsn: str) -> OpenStore:
    """Starts a store with settings of the test's own."""
    return partial(serving, dsn)


async def cut_waiting(database: asyncpg.Connection) -> None:
    """Ends the connections whose statements wait for a lock."""
    await blocked(database)
    await database.execute(f"SELECT pg_terminate_backend(pid) {OURS} AND wait_event_type = 'Lock'")


async def works(store: Stubs) -> None:
    """The store does everything again, within a few tries."""

    async def once() -> bool:
        try:
            await create(store, workflow="probe")
            held = (await store.leases.LeaseTasks(claim(workflow="probe", limit=1))).tasks[0].lease
            await store.leases.CompleteTask(complete(held))
        except grpc.aio.AioRpcError as error:
            if error.code() in TRANSIENT:
                return False
            raise
        return True

    await until(once, "the store works again")


async def test_a_read_whose_connection_is_cut_was_not_applied(store: Stubs, dsn: str, database: asyncpg.Connection) -> None:
    task = await create(store)
    async with holding(dsn, LOCK_ALL):
        call = asyncio.ensure_future(get(store, task.task_id))
        await cut_waiting(database)
        refused = await refusal_of(call)
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "STORAGE_UNAVAILABLE")
    assert refused.retry_after_ms > 0
    assert (await get(store, task.task_id)).change == 1


async def test_the_outcome_of_a_write_whose_connection_is_cut_is_unknown_and_asked_for_again(
    store: Stubs, dsn: str, database: asyncpg.Connection
) -> None:
    held = (await create_and_lease(store)).lease
    async with holding(dsn, LOCK_TASK, held.task_id):
        call = asyncio.ensure_future(store.leases.CompleteTask(complete(held)))
        await cut_waiting(database)
        refused = await refusal_of(call)
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNKNOWN, "OUTCOME_UNKNOWN")
    await store.leases.CompleteTask(complete(held))
    await store.leases.CompleteTask(complete(held))
    assert (await get(store, held.task_id)).state == types_pb2.TASK_STATE_COMPLETED


async def test_the_text_of_the_database_is_never_told(store: Stubs, dsn: str, database: asyncpg.Connection) -> None:
    held = (await create_and_lease(store)).lease
    async with holding(dsn, LOCK_TASK, held.task_id):
        call = asyncio.ensure_future(store.leases.HeartbeatTask(heartbeat(held)))
        await cut_waiting(database)
        refused = await refusal_of(call)
    assert "terminat" not in refused.message
    assert "pg_" not in refused.message


async def test_a_store_recovers_when_all_its_connections_are_cut(store: Stubs, database: asyncpg.Connection) -> None:
    for _ in range(3):
        await database.execute(f"SELECT pg_terminate_backend(pid) {OURS}")
        await works(store)


async def test_a_statement_that_waits_too_long_for_a_lock_was_not_applied(
    open_store: OpenStore, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(pool.SETTINGS, "lock_timeout", "100ms")
    async with open_store() as store:
        held = (await create_and_lease(store)).lease
        async with holding(dsn, LOCK_TASK, held.task_id):
            refused = await refusal_of(store.leases.HeartbeatTask(heartbeat(held)))
            assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "STORAGE_UNAVAILABLE")
        await store.leases.HeartbeatTask(heartbeat(held))


@pytest.mark.row("P5")
async def test_a_statement_that_takes_too_long_was_not_applied(
    open_store: OpenStore, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(pool.SETTINGS, "statement_timeout", "1s")
    async with open_store() as store:
        task = await create(store)
        async with holding(dsn, LOCK_ALL):
            assert (await refusal_of(get(store, task.task_id))).reason == "STORAGE_UNAVAILABLE"
        await get(store, task.task_id)


async def test_a_pool_in_use_refuses_soon_and_is_whole_afterwards(
    open_store: OpenStore, dsn: str, database: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = partial(pool.open_database, acquire_seconds=0.3)
    monkeypatch.setattr("store_service.server.open_database", short)
    async with open_store(pool_size=2) as store:
        task = await create(store)
        async with holding(dsn, LOCK_ALL):
            hogs = [asyncio.ensure_future(get(store, task.task_id)), asyncio.ensure_future(create(store))]
            await blocked(database, count=2)
            refused = await refusal_of(store.leases.LeaseTasks(claim()))
            assert not any(hog.done() for hog in hogs), "it did not wait for them"
            assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
            assert refused.retry_after_ms > 0
        await asyncio.gather(*hogs)
        await works(store)
        assert await database.fetchval(f"SELECT count(*) {OURS}") <= 2


async def test_claims_of_one_worker_leave_connections_to_others(
    open_store: OpenStore, dsn: str, database: asyncpg.Connection
) -> None:
    async with open_store(pool_size=4) as store:
        async with holding(dsn, "SELECT pg_advisory_xact_lock(1, hashtext('w1'))"):  # as a claim of the same worker does
            claims = [asyncio.ensure_future(store.leases.LeaseTasks(claim())) for _ in range(8)]
            await blocked(database, count=2)
            await create(store)
        await asyncio.gather(*claims)


async def _set_policy(store: Stubs) -> Any:
    await create(store)
    return partial(set_policy, store, leased=7)


async def _fork(store: Stubs) -> Any:
    request = tasks_pb2.ForkTaskRequest(tenant_id=TENANT, request_id="f", source_task_id=(await create(store)).task_id)
    return partial(store.tasks.ForkTask, request)


@pytest.mark.parametrize(("prepare", "read"), [(_set_policy, "pause"), (_fork, "outcome")])
async def test_a_write_whose_answer_cannot_be_read_is_not_told_to_be_not_applied(
    store: Stubs, dsn: str, database: asyncpg.Connection, prepare: Callable[[Stubs], Any], read: str
) -> None:
    begin = await prepare(store)
    async with holding(dsn, f"LOCK TABLE tenure.{read} IN ACCESS EXCLUSIVE MODE"):
        call = asyncio.ensure_future(begin())
        await cut_waiting(database)
        refused = await refusal_of(call)
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNKNOWN, "OUTCOME_UNKNOWN")
    again = await begin()
    assert again.replayed if read == "outcome" else again.policy.max_leased == 7


@pytest.mark.row("G7")
async def test_calls_that_hang_up_leave_no_connection_behind(
    open_store: OpenStore, dsn: str, database: asyncpg.Connection
) -> None:
    chance = random.Random(1)
    async with open_store(pool_size=3) as store:
        held = (await create_and_lease(store)).lease
        async with holding(dsn, LOCK_TENANT, TENANT):
            calls: list[Any] = []
            for _ in range(100):
                seconds = chance.uniform(0.005, 0.3)
                read = tasks_pb2.GetTaskRequest(tenant_id=TENANT, task_id=held.task_id)
                calls += [
                    store.tasks.GetTask(read, timeout=seconds),
                    store.leases.LeaseTasks(claim(worker_id=f"w{chance.random()}"), timeout=seconds),
                    store.leases.AppendCheckpoint(checkpoint(held, revision=chance.randrange(3)), timeout=seconds),
                ]
            await asyncio.gather(*calls, return_exceptions=True)
        await works(store)

        async def is_quiet() -> bool:
            busy: int = await database.fetchval(f"SELECT count(*) {OURS} AND state <> 'idle'")
            return busy == 0

        await until(is_quiet, "no statement is under way")
        assert await database.fetchval(f"SELECT count(*) {OURS}") <= 3
        await asyncio.gather(*(get(store, held.task_id) for _ in range(20)))
    assert await database.fetch("SELECT * FROM tenure.audit") == []


@pytest.mark.row("G7")
async def test_nothing_is_idle_in_a_transaction(store: Stubs, database: asyncpg.Connection) -> None:
    await works(store)
    await refusal_of(store.tasks.CreateTask(tasks_pb2.CreateTaskRequest()))
    assert await database.fetchval(f"SELECT count(*) {OURS} AND state LIKE 'idle in transaction%'") == 0
    assert await database.fetchval(f"SELECT count(*) {OURS}") >= 1


async def test_a_deadlock_is_tried_again_inside(store: Stubs, dsn: str, database: asyncpg.Connection) -> None:
    held = (await create_and_lease(store)).lease
    async with holding(dsn, LOCK_TASK, held.task_id) as other:
        await other.execute("SET LOCAL deadlock_timeout = '30s'")  # so that the store is the victim
        call = asyncio.ensure_future(store.leases.CompleteTask(complete(held)))
        await blocked(database)
        await other.execute(LOCK_TENANT, TENANT)  # against the order in which all others lock
    await call
    assert (await get(store, held.task_id)).state == types_pb2.TASK_STATE_COMPLETED


async def test_an_item_that_the_database_chokes_on_spoils_no_other(store: Stubs, database: asyncpg.Connection) -> None:
    held = [(await create_and_lease(store)).lease for _ in range(5)]
    await database.execute(
        f"ALTER TABLE tenure.task_state ADD CONSTRAINT choke CHECK (state <> 'COMPLETED' OR task_id <> '{held[2].task_id}')"
    )
    request = leases_pb2.CompleteTasksRequest(items=[complete(one) for one in held])
    answer = await store.leases.CompleteTasks(request)
    assert [item.HasField("completed") for item in answer.items] == [True, True, False, True, True]
    await database.execute("ALTER TABLE tenure.task_state DROP CONSTRAINT choke")
    await store.leases.CompleteTask(complete(held[2]))


async def test_a_session_in_another_time_zone_changes_nothing(
    dsn: str, database: asyncpg.Connection, clock: Clock, open_store: OpenStore
) -> None:
    """Case 44."""
    name = await database.fetchval("SELECT current_database()")
    await database.execute(f"ALTER DATABASE {name} SET timezone = 'Pacific/Auckland'")
    async with open_store() as store:
        leased = await create_and_lease(store)
        left = leased.expires_at.ToNanoseconds() - leased.created_at.ToNanoseconds()
        assert 29 < left / 10**9 < 60
        await clock.advance(seconds=29)
        await store.leases.HeartbeatTask(heartbeat(leased.lease))


async def test_a_caller_that_leaves_does_not_cancel_its_statement(dsn: str, database: asyncpg.Connection) -> None:
    async with holding(dsn, "SELECT pg_advisory_xact_lock(7)"):
        opened = await pool.open_database(dsn, size=1, registry=CollectorRegistry())
        reading = asyncio.create_task(opened.read("SELECT pg_advisory_lock(7)"))
        await blocked(database)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    async def is_granted() -> bool:
        granted: bool = await database.fetchval(
            f"SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid IN (SELECT pid {OURS}))"
        )
        return granted

    await until(is_granted, "the statement runs to its end")
    assert [row["one"] for row in await opened.read("SELECT 1 AS one")] == [1]
    await opened.close()
