"""Who hears of work where there are several stores: who idles at the store that it came by; else, and of what is left, all."""

import asyncio
import re

import asyncpg
import pytest
from taskstore.v1 import tasks_pb2

from tests.conftest import Stubs
from tests.pair import metrics_at
from tests.store.builders import LOCK_TENANT, blocked, create, holding, new_task, set_policy, until
from tests.store.hints import create_unheard, in_time, waiting_claim


@pytest.fixture(autouse=True)
def rare_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """No claim that waits looks by itself before its end."""
    monkeypatch.setattr("store_service.operations.leases.CLAIM_POLL_SECONDS", 600.0)


async def looks(store: Stubs) -> int:
    """How often somebody looked for work at a store."""
    metrics = await asyncio.to_thread(metrics_at, store.admin_port)
    found = re.search(r"^tenure_store_claim_seconds_count (\d+)", metrics, re.MULTILINE)
    assert found
    return int(found[1])


async def test_work_that_somebody_idles_for_is_looked_for_by_no_other_store(
    store: Stubs, second_store: Stubs, listening: None
) -> None:
    there = await waiting_claim(second_store, worker_id="there")
    here = await waiting_claim(store, worker_id="here")

    async def all_wait() -> bool:
        return await looks(store) == await looks(second_store) == 4  # three of them nobody's

    await until(all_wait, "all have looked")
    await create(store)
    assert len((await in_time(here)).tasks) == 1
    await create(store)
    assert len((await in_time(there)).tasks) == 1
    assert (await looks(store), await looks(second_store)) == (5, 5)


async def test_what_a_claim_leaves_is_taken_at_another_store(store: Stubs, second_store: Stubs, listening: None) -> None:
    await set_policy(store)
    there = await waiting_claim(second_store, worker_id="there")
    here = await waiting_claim(store, worker_id="here", limit=1)
    await store.tasks.CreateTasks(tasks_pb2.CreateTasksRequest(items=[new_task(), new_task()]))
    assert [len((await in_time(call)).tasks) for call in (here, there)] == [1, 1]


async def test_work_is_taken_at_another_store_while_the_claim_here_waits_for_a_lock(
    store: Stubs, second_store: Stubs, listening: None, database: asyncpg.Connection, dsn: str
) -> None:
    there = await waiting_claim(second_store, worker_id="there")
    await create_unheard(database, tenant_id="held")
    async with holding(dsn, LOCK_TENANT, "held"):
        here = await waiting_claim(store, worker_id="here")
        await blocked(database)
        task = await create(store)
        assert [one.lease.task_id for one in (await in_time(there)).tasks] == [task.task_id]
    assert len((await in_time(here)).tasks) == 1
