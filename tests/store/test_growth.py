"""A store plans by what its tables hold by now, long before Postgres looks at them."""

from typing import Final

import asyncpg
import pytest
from taskstore.v1 import tasks_pb2

from tests.conftest import Stubs
from tests.databases import EMPTY
from tests.store.builders import TENANT, claim, complete, new_task, set_policy, until
from tests.store.plans import fill

BATCH: Final = 500
BATCHES: Final = 5
READ: Final = """
SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes) AS read,
       (SELECT n_tup_ins FROM pg_stat_user_tables WHERE relid = 'tenure.history'::regclass) AS lines
"""
"""How many entries of indexes were read, and what was done for that."""


@pytest.fixture
def dsn(unvisited: str) -> str:
    """Postgres looks at no table by itself."""
    return unvisited


class Load:
    """Batches that are created, and one task of each that is worked on."""

    def __init__(self, store: Stubs, database: asyncpg.Connection) -> None:
        self._store = store
        self._database = database

    async def becomes_little(self) -> bool:
        """Whether after a first batch one of the next reads no more than what it is about. Later, sessions are others, and plan
        anew."""
        await set_policy(self._store, outstanding=100_000, leased=BATCH)
        await self._work()
        return min([await self._work() for _ in range(BATCHES)]) < 2 * BATCH

    async def _work(self) -> int:
        """One batch. Returns how many entries of indexes were read for it."""
        before = await self._database.fetchrow(READ)
        await self._store.tasks.CreateTasks(tasks_pb2.CreateTasksRequest(items=[new_task() for _ in range(BATCH)]))
        (task,) = (await self._store.leases.LeaseTasks(claim(limit=1, tenant_ids=[TENANT]))).tasks
        await self._store.leases.CompleteTask(complete(task.lease))

        async def is_told() -> bool:
            await self._database.execute("SELECT pg_stat_clear_snapshot()")
            row = await self._database.fetchrow(READ)
            return bool(row["lines"] >= before["lines"] + BATCH + 2)

        await until(is_told, "the figures of the batch are told")
        return int((await self._database.fetchrow(READ))["read"] - before["read"])


@pytest.fixture
def load(store: Stubs, database: asyncpg.Connection) -> Load:
    """On a store that serves already."""
    return Load(store, database)


async def test_a_store_whose_tables_were_empty_does_not_keep_the_plans_that_it_made_then(load: Load) -> None:
    assert await load.becomes_little()


@pytest.mark.parametrize("left", [0, 3])
async def test_tables_that_held_little_when_they_were_analyzed_are_not_taken_for_small_as_they_fill(
    load: Load, dsn: str, left: int
) -> None:
    await fill(dsn, tasks=3_000, tenants=30, then=f"{EMPTY} ANALYZE")
    if left:
        await fill(dsn, tasks=left, tenants=1, then="ANALYZE")
    assert await load.becomes_little()
