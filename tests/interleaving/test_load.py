"""Cases 37 and 53 through the store itself: many at once, and a recovery that is itself interrupted."""

import asyncio
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any, Final

import asyncpg
import grpc
import pytest
from taskstore.v1 import leases_pb2, tasks_pb2, types_pb2

from store_service.db.migrate import migrate
from store_service.embedded import EmbeddedPostgres
from tests.conftest import MOVABLE_CLOCK, Clock, Stubs, serving
from tests.pair import metrics_at
from tests.store.builders import (
    cancel,
    checkpoint,
    claim,
    complete,
    heartbeat,
    history,
    new_task,
    publish,
    release,
    set_policy,
    suspend,
)

CLIENTS: Final = 16
ROUNDS: Final = 40
TASKS: Final = 120


@pytest.fixture
async def stores(store: Stubs, dsn: str) -> AsyncIterator[list[Stubs]]:
    """Two stores on one database."""
    async with serving(dsn) as second:
        yield [store, second]


async def retries_of(store: Stubs) -> float:
    """How many statements of a store were repeated after a deadlock or a serialization failure."""
    text = await asyncio.to_thread(metrics_at, store.admin_port)
    found = re.search(r"^tenure_store_statement_retries_total ([0-9.]+)$", text, re.MULTILINE)
    assert found
    return float(found[1])


async def allowing_lost_leases(call: Awaitable[Any]) -> str:
    """Makes a call; a lease that a cancel took away is the one refusal that is no error."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
            raise
        return "too late"
    return "ok"


async def client(store: Stubs, number: int, known: list[str], seen: "Counter[str]") -> None:
    """Does a bit of everything to one tenant."""
    chance = random.Random(number)
    held: list[types_pb2.Lease] = []
    for turn in range(ROUNDS):
        what = chance.choice(("create", "create", "claim", "claim", "finish", "finish", "cancel", "fork", "suspend", "publish"))
        if what == "create" or not known:
            what = "create"
            known.append((await store.tasks.CreateTask(new_task())).task.task_id)
        elif what == "claim":
            found = await store.leases.LeaseTasks(claim(worker_id=f"w{number}", limit=3))
            held += [task.lease for task in found.tasks]
        elif what in ("finish", "suspend"):
            if not held:
                continue
            lease = held.pop(chance.randrange(len(held)))
            done = suspend(lease, signal="go") if what == "suspend" else chance.choice((complete(lease), release(lease)))
            match done:
                case leases_pb2.SuspendTaskRequest():
                    what += " " + await allowing_lost_leases(store.leases.SuspendTask(done))
                case leases_pb2.CompleteTaskRequest():
                    what += " " + await allowing_lost_leases(store.leases.CompleteTask(done))
                case leases_pb2.ReleaseTaskRequest():
                    what += " " + await allowing_lost_leases(store.leases.ReleaseTask(done))
        elif what == "cancel":
            await store.tasks.CancelTask(cancel(chance.choice(known), force=chance.random() < 0.5))
        elif what == "fork":
            source = chance.choice(known)
            request = tasks_pb2.ForkTaskRequest(tenant_id="acme", request_id=f"f{number}-{turn}", source_task_id=source)
            known.append((await store.tasks.ForkTask(request)).task.task_id)
        else:
            await publish(store, chance.choice(known), name="go")
        seen[what] += 1


async def test_53_one_tenant_takes_every_kind_of_call_at_once(stores: list[Stubs], database: asyncpg.Connection) -> None:
    await set_policy(stores[0], outstanding=10_000, leased=1_000)
    known: list[str] = []
    seen: Counter[str] = Counter()
    await asyncio.gather(*(client(stores[number % 2], number, known, seen) for number in range(CLIENTS)))
    assert await database.fetch("SELECT * FROM tenure.audit") == []
    assert [await retries_of(store) for store in stores] == [0, 0]
    assert {"create", "claim", "cancel", "fork", "publish", "finish ok", "suspend ok"} <= seen.keys(), seen


async def test_53_batches_cross_two_tenants_from_two_stores(stores: list[Stubs], database: asyncpg.Connection) -> None:
    async def cross(store: Stubs, name: str, tenants: list[str]) -> None:
        for _ in range(10):
            items = [new_task(tenant_id=tenant) for tenant in tenants * 3]
            created = await store.tasks.CreateTasks(tasks_pb2.CreateTasksRequest(items=items))
            assert all(item.HasField("created") for item in created.items)
            found = (await store.leases.LeaseTasks(claim(worker_id=name, limit=20))).tasks
            leases = sorted((task.lease for task in found), key=lambda lease: tenants.index(lease.tenant_id))
            calls: list[tuple[Any, Any]] = [
                (store.leases.HeartbeatTasks, leases_pb2.HeartbeatTasksRequest(items=[heartbeat(one) for one in leases])),
                (
                    store.leases.AppendCheckpoints,
                    leases_pb2.AppendCheckpointsRequest(items=[checkpoint(one) for one in leases]),
                ),
                (store.leases.CompleteTasks, leases_pb2.CompleteTasksRequest(items=[complete(one) for one in leases])),
            ]
            for call, asked in calls if leases else ():
                answer = await call(asked)
                assert not any(item.HasField("refused") for item in answer.items), call

    crossing = [
        cross(store, f"w{number}-{part}", ["a", "b"][:: 1 if number % 2 else -1])
        for number in range(3)
        for part, store in enumerate(stores)
    ]
    await asyncio.gather(*crossing)
    assert await database.fetch("SELECT * FROM tenure.audit") == []
    assert [await retries_of(store) for store in stores] == [0, 0]


async def recover(store: Stubs, name: str, done: "Counter[tuple[str, int]]") -> None:
    """A worker that ends whatever it is given, and goes on when the store cannot be asked."""
    while True:
        try:
            found = (await store.leases.LeaseTasks(claim(worker_id=name, limit=8, wait_ms=100))).tasks
        except grpc.aio.AioRpcError:
            continue
        for task in found:
            while True:
                try:
                    await store.leases.CompleteTask(complete(task.lease, name.encode().join((b'"', b'"'))))
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                        continue  # perhaps it was done: the same end by the same lease is answered again
                else:
                    done[task.lease.task_id, task.lease.token] += 1
                break


async def test_37_a_recovery_that_is_interrupted_is_taken_up_again(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "postgres", durable=False) as server:
        await migrate(server.dsn)
        database = await asyncpg.connect(server.dsn)
        await database.execute(MOVABLE_CLOCK)
        async with serving(server.dsn) as store:
            await set_policy(store, outstanding=10_000, leased=1_000)
            items = [new_task() for _ in range(TASKS)]
            created = await store.tasks.CreateTasks(tasks_pb2.CreateTasksRequest(items=items))
            lost = await store.leases.LeaseTasks(claim(worker_id="lost", limit=TASKS))
            assert len(lost.tasks) == TASKS
            await Clock(database).advance(seconds=31)
            done: Counter[tuple[str, int]] = Counter()
            workers = [asyncio.ensure_future(recover(store, name, done)) for name in ("r1", "r2")]
            while len(done) < TASKS // 6:
                await asyncio.wait(workers, timeout=0.001)
            await database.close()
            await asyncio.to_thread(server.stop, "immediate")
            workers[1].cancel()  # one of the two does not come back
            await asyncio.to_thread(server.start)
            database = await asyncpg.connect(server.dsn)
            await Clock(database).advance(seconds=31)
            async with asyncio.timeout(60):
                while await database.fetchval("SELECT outstanding FROM tenure.tenant"):
                    await asyncio.wait(workers[:1], timeout=0.01)
            for worker in workers:
                worker.cancel()
            await asyncio.wait(workers)
            assert await database.fetch("SELECT * FROM tenure.audit") == []
            assert set(done.values()) == {1}
            for item in created.items:
                events = await history(store, item.created.task.task_id)
                leased = [events[at - 1] for at, event in enumerate(events) if event == "LEASED"]
                assert events[-1] == "COMPLETED", events
                assert set(leased[1:]) == {"LEASE_EXPIRED"}, f"two owners at once: {events}"
        await database.close()
