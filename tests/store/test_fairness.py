"""What is held up for one tenant holds up no other. Security checklist T13; contract, section 4."""

import asyncio
from collections.abc import Awaitable
from typing import Any
from uuid import uuid4

import asyncpg
import grpc
import pytest
from taskstore.v1 import tasks_pb2, types_pb2

from store_service.client import TaskStore
from store_service.db.pool import SETTINGS
from tests.conftest import Stubs
from tests.store.builders import (
    LOCK_TENANT,
    OWNER,
    blocked,
    cancel,
    claim,
    complete,
    create,
    fail,
    holding,
    new_task,
    set_policy,
    suspend,
    until,
)

LESS_THAN_A_LOCK_SECONDS = 16.0
"""Here a statement is given up after 20 s, so whoever is answered within this did not wait for a lock."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statements wait for locks as long as they are waited for themselves."""
    for name in ("lock_timeout", "statement_timeout"):
        monkeypatch.setitem(SETTINGS, name, "60s")


async def leases_of(store: Stubs, tenant_id: str, count: int) -> list[types_pb2.Lease]:
    for _ in range(count):
        await create(store, tenant_id=tenant_id)
    tasks = (await store.leases.LeaseTasks(claim(tenant_ids=[tenant_id], limit=count, worker_id=tenant_id))).tasks
    return [task.lease for task in tasks]


def everything(store: Stubs, held: list[types_pb2.Lease]) -> list[Awaitable[Any]]:
    """A call of each kind that takes the tenant's row, each with a task of its own."""
    tenant_id = held[0].tenant_id
    signal = tasks_pb2.PublishSignalRequest(tenant_id=tenant_id, signal_id=uuid4().hex, task_id=held[0].task_id, name="go")
    signal.payload.data = b"1"
    return [
        store.tasks.CreateTask(new_task(tenant_id=tenant_id)),
        store.leases.CompleteTask(complete(held[1])),
        store.leases.FailTask(fail(held[2])),
        store.leases.SuspendTask(suspend(held[3], timer_ms=60_000)),
        store.tasks.CancelTask(cancel(held[4].task_id, tenant_id=tenant_id, force=True)),
        store.tasks.PublishSignal(signal),
    ]


@pytest.mark.direct("PgBouncer's five connections are fewer than a store shares out among tenants")
@pytest.mark.row("T13")
async def test_a_tenant_whose_row_is_held_keeps_no_other_waiting(store: Stubs, dsn: str, database: asyncpg.Connection) -> None:
    for tenant_id in ("a", "b"):
        await set_policy(store, tenant_id=tenant_id)
    first, second = [await leases_of(store, tenant_id, 35) for tenant_id in ("a", "b")]
    await create(store, tenant_id="a")  # which claims will find, and cannot have
    async with holding(dsn, LOCK_TENANT, "a"):
        stuck: list[asyncio.Future[Any]] = []
        for start in range(0, 30, 5):
            stuck += map(asyncio.ensure_future, everything(store, first[start : start + 5]))
        stuck += [asyncio.ensure_future(store.leases.LeaseTasks(claim(worker_id=f"w{n}", wait_ms=20_000))) for n in range(20)]
        await blocked(database, count=3)
        async with asyncio.timeout(LESS_THAN_A_LOCK_SECONDS):
            for start in range(0, 30, 5):  # one after the other, each among those that are stuck
                more = [asyncio.ensure_future(store.tasks.CreateTask(new_task(tenant_id="a"))) for _ in range(3)]
                await asyncio.gather(*everything(store, second[start : start + 5]))
                stuck += more
        claims = stuck[36:56]

        async def is_taken() -> bool:
            return any(one.done() for one in claims)

        await until(is_taken, "its work is taken meanwhile")
        claimed = [one for one in claims if one.done()]
        assert {task.lease.tenant_id for one in claimed for task in one.result().tasks} == {"b"}
        assert not any(one.done() for one in stuck if one not in claimed)
    outcomes = await asyncio.gather(*stuck, return_exceptions=True)
    assert {one.code() for one in outcomes if isinstance(one, grpc.aio.AioRpcError)} <= {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }


@pytest.mark.row("T13")
async def test_in_a_batch_of_several_tenants_only_the_held_ones_are_put_off(store: Stubs, dsn: str) -> None:
    names = ["b", "a", "c", "d", "a"]
    items = [new_task(tenant_id=name) for name in names]
    for name in names[:4]:
        await set_policy(store, tenant_id=name)
    async with holding(dsn, LOCK_TENANT, "a"):
        async with asyncio.timeout(LESS_THAN_A_LOCK_SECONDS):
            answer = (await store.tasks.CreateTasks(tasks_pb2.CreateTasksRequest(items=items))).items
        assert [item.HasField("created") for item in answer] == [True, False, True, True, False]
    again = (await store.tasks.CreateTasks(tasks_pb2.CreateTasksRequest(items=items))).items
    assert [item.created.task.tenant_id for item in again] == names
    assert [item.created.replayed for item in again if item.created.task.tenant_id != "a"] == [True] * 3


@pytest.mark.row("T13")
async def test_a_client_of_all_tenants_is_not_kept_by_one(store: Stubs, dsn: str) -> None:
    for name in ("a", "b"):
        await set_policy(store, tenant_id=name)
    async with TaskStore.connect(store.address) as client, holding(dsn, LOCK_TENANT, "a"):
        stuck: list[asyncio.Task[Any]] = []
        async with asyncio.timeout(LESS_THAN_A_LOCK_SECONDS):
            for _ in range(12):
                stuck.append(asyncio.create_task(client.create_task(new_task(tenant_id="a"), timeout_seconds=20)))
                task = (await client.create_task(new_task(tenant_id="b"), timeout_seconds=20)).task
                request = tasks_pb2.GetTaskRequest(tenant_id="b", task_id=task.task_id, owner=OWNER)
                assert (await client.get_task(request)).task_id == task.task_id
    await asyncio.gather(*stuck, return_exceptions=True)
