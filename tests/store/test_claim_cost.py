"""What a claim costs depends neither on how much waits nor on how many tenants there are. Source: contract, section 5."""

import json

import asyncpg
from taskstore.v1 import tasks_pb2

from store_service.db.queries import Queries
from tests.conftest import Stubs
from tests.store.builders import new_task

ONE_OF_ANYBODY = ("r", "w1", ["report"], [1], None, [30_000], 1, 10, False, 4_000_000)


async def create_many(store: Stubs, count: int, *, tenants: int) -> None:
    items = [new_task(tenant_id=f"t{number % tenants:03}") for number in range(count)]
    for first in range(0, count, 500):
        answer = await store.tasks.CreateTasks(tasks_pb2.CreateTasksRequest(items=items[first : first + 500]))
        assert not [item for item in answer.items if item.HasField("refused")]


async def pages_of_a_claim(database: asyncpg.Connection) -> int:
    """How many pages a claim of one task looks at, all that it calls included. What it takes is given back."""
    await database.execute("ANALYZE")
    for _ in range(2):  # the first one reads catalogs, too
        transaction = database.transaction()
        await transaction.start()
        query = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {Queries('leases.sql')['claim_tasks']}"
        plan = json.loads(await database.fetchval(query, *ONE_OF_ANYBODY))[0]["Plan"]
        await transaction.rollback()
    assert plan["Actual Rows"] == 1
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


async def test_a_claim_costs_the_same_with_a_backlog_and_with_many_tenants(store: Stubs, database: asyncpg.Connection) -> None:
    await create_many(store, 4, tenants=2)
    small = await pages_of_a_claim(database)
    await create_many(store, 4_000, tenants=2)
    backlog = await pages_of_a_claim(database)
    await create_many(store, 1_000, tenants=500)
    many = await pages_of_a_claim(database)
    assert max(backlog, many) < 2 * small, (small, backlog, many)
