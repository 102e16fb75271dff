"""Single calls that share a statement: tenants take turns, and each keeps its own deadline and its own caller."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from statistics import median
from typing import Any

import asyncpg
import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from taskstore.v1 import tasks_pb2

from store_service.model.limits import BATCH_ITEMS
from store_service.turns import Turns
from tests.conftest import Stubs, serving
from tests.pair import metrics_at
from tests.store.builders import (
    LOCK_TENANT,
    TENANT,
    assert_invalid,
    blocked,
    claim,
    create,
    holding,
    new_task,
    set_policy,
    until,
)

CREATED_OF = "SELECT count(*) FROM tenure.task WHERE tenant_id = $1"
CREATED_AT = "SELECT count(*) FROM tenure.task WHERE tenant_id = $1 AND created_at = $2"
FEW_AT = "SELECT DISTINCT created_at FROM tenure.task WHERE tenant_id LIKE 'few-%'"
gathers = pytest.mark.batching("it is about calls that wait for others")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No statement is slow, however slow the machine."""
    monkeypatch.setattr("store_service.db.batch.SLOW_SECONDS", 60.0)


@asynccontextmanager
async def two_under_way(store: Stubs, dsn: str, database: asyncpg.Connection) -> AsyncIterator[None]:
    """Two creations that wait for rows that others hold, so that what is asked for meanwhile waits for its statement."""
    names = ("held-0", "held-1")
    for name in names:
        await set_policy(store, tenant_id=name)
    async with AsyncExitStack() as holds:
        for name in names:
            await holds.enter_async_context(holding(dsn, LOCK_TENANT, name))
        calls = [asyncio.ensure_future(store.tasks.CreateTask(new_task(tenant_id=name))) for name in names]
        await blocked(database, count=2)
        yield
    await asyncio.gather(*calls)


async def waiting(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Awaitable[None]]:
    """What returns once so many calls have come to wait, or have waited, since now."""
    come = 0
    add = Turns.add

    def count(self: Turns[Any], call: Any) -> None:
        nonlocal come
        come += 1
        add(self, call)

    monkeypatch.setattr(Turns, "add", count)

    async def wait(so_many: int) -> None:
        async def have_come() -> bool:
            return come >= so_many

        await until(have_come, f"{so_many} calls wait")

    return wait


async def figure(store: Stubs, name: str, operation: str) -> float:
    """One figure of an operation's batches."""
    families = text_string_to_metric_families(await asyncio.to_thread(metrics_at, store.admin_port))
    samples = [one for family in families for one in family.samples if one.name == name]
    return sum(one.value for one in samples if one.labels["operation"] == operation)


@gathers
async def test_tenants_take_turns_when_more_wait_than_one_statement_takes(
    store: Stubs, dsn: str, database: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await set_policy(store, tenant_id="many", outstanding=1_000)
    async with two_under_way(store, dsn, database):
        have_come = await waiting(monkeypatch)
        many = [asyncio.ensure_future(store.tasks.CreateTask(new_task(tenant_id="many"))) for _ in range(BATCH_ITEMS + 200)]
        await have_come(BATCH_ITEMS + 200)
        few = [asyncio.ensure_future(store.tasks.CreateTask(new_task(tenant_id=f"few-{n}"))) for n in range(3)]
        await have_come(BATCH_ITEMS + 203)
    await asyncio.gather(*many, *few)
    (together,) = await database.fetch(FEW_AT)
    assert await database.fetchval(CREATED_AT, "many", together["created_at"]) == BATCH_ITEMS - 3


@gathers
async def test_what_its_caller_gave_up_while_it_waited_is_never_written(
    store: Stubs, dsn: str, database: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_under_way(store, dsn, database):
        have_come = await waiting(monkeypatch)
        stays = asyncio.ensure_future(store.tasks.CreateTask(new_task(tenant_id="stays")))
        left = asyncio.ensure_future(store.tasks.CreateTask(new_task(tenant_id="left")))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await store.tasks.CreateTask(new_task(tenant_id="late"), timeout=1)
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await have_come(3)
        left.cancel()
        await store.leases.LeaseTasks(claim(workflow="nobody's"))  # what was said before has arrived
    await stays
    await create(store, tenant_id="after")  # whatever waited had its statement
    assert [await database.fetchval(CREATED_OF, name) for name in ("stays", "left", "late")] == [1, 0, 0]


async def test_what_its_caller_gave_up_under_way_is_written(store: Stubs, dsn: str, database: asyncpg.Connection) -> None:
    await set_policy(store)
    async with holding(dsn, LOCK_TENANT, TENANT):
        left = asyncio.ensure_future(store.tasks.CreateTask(new_task()))
        await blocked(database)
        left.cancel()
        await store.leases.LeaseTasks(claim(workflow="nobody's"))

    async def is_written() -> bool:
        return bool(await database.fetchval(CREATED_OF, TENANT))

    await until(is_written, "the statement runs to its end")


@gathers
async def test_how_long_calls_wait_is_told(
    store: Stubs, dsn: str, database: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = time.monotonic()
    async with two_under_way(store, dsn, database):
        have_come = await waiting(monkeypatch)
        calls = [asyncio.ensure_future(store.tasks.CreateTask(new_task())) for _ in range(5)]
        await have_come(5)
        waited_from = time.monotonic()
        await store.leases.LeaseTasks(claim(workflow="nobody's"))
        waited_seconds = time.monotonic() - waited_from
    await asyncio.gather(*calls)
    name = "tenure_store_batch_wait_seconds"
    assert await figure(store, f"{name}_count", "create_tasks") == await figure(
        store, "tenure_store_batch_items_count", "create_tasks"
    )
    assert waited_seconds < await figure(store, f"{name}_sum", "create_tasks") < time.monotonic() - started


@gathers
async def test_no_more_calls_wait_than_may(
    store: Stubs, dsn: str, database: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store_service.db.batch.MOST_WAITING", 5)
    async with two_under_way(store, dsn, database):
        calls = [asyncio.ensure_future(store.tasks.CreateTask(new_task())) for _ in range(8)]

        async def are_refused() -> bool:
            return sum(one.done() for one in calls) == 3

        await until(are_refused, "those that come too many are refused")
    answers = await asyncio.gather(*calls, return_exceptions=True)
    refused = [one for one in answers if isinstance(one, grpc.aio.AioRpcError)]
    assert [one.code() for one in refused] == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 3


async def test_without_batching_each_single_call_has_its_statement(dsn: str, database: asyncpg.Connection) -> None:
    async with serving(dsn, batching=False) as store:
        requests = [new_task(tenant_id=f"t{number % 3}") for number in range(40)]
        invalid = new_task()
        invalid.request_id = ""
        created = [one.task for one in await asyncio.gather(*map(store.tasks.CreateTask, requests))]
        await assert_invalid(store.tasks.CreateTask(invalid), "request_id")
        reads = [tasks_pb2.GetTaskRequest(tenant_id=one.tenant_id, task_id=one.task_id) for one in created]
        found = await asyncio.gather(*map(store.tasks.GetTask, reads))
        assert [one.task.task_id for one in found] == [one.task_id for one in created]
        for operation in ("create_tasks", "get_tasks"):
            assert await figure(store, "tenure_store_batch_items_count", operation) == 40
            assert await figure(store, "tenure_store_batch_items_sum", operation) == 40


async def test_a_call_that_is_alone_is_as_fast_with_batching_as_without(dsn: str) -> None:
    async with serving(dsn, batching=True) as batched, serving(dsn, batching=False) as unbatched:
        seconds: dict[int, list[float]] = {0: [], 1: []}
        for _ in range(150):
            for which, store in enumerate((batched, unbatched)):
                started = time.perf_counter()
                await create(store)
                seconds[which].append(time.perf_counter() - started)
    assert median(seconds[0]) < 2 * median(seconds[1])
