"""What a claim costs, and a look for what fell due, depends neither on how much waits, nor on how many tenants there are, nor
on what is over. Source: contract, section 5."""

import json
from collections.abc import Sequence
from datetime import datetime

import asyncpg
import pytest
from taskstore.v1 import leases_pb2, tasks_pb2, tenants_pb2

from store_service.db.queries import Queries
from tests.conftest import Clock, Stubs
from tests.store.builders import TENANT, claim, complete, holding, new_task, set_policy

ONE_OF_ANYBODY = ("r", "w1", ["report"], [1], None, [30_000], 1, 10, False, 4_000_000)
OLD_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT FROM tenure.tenant"


async def create_many(store: Stubs, count: int, *, tenants: int) -> None:
    items = [new_task(tenant_id=f"t{number % tenants:03}") for number in range(count)]
    for first in range(0, count, 500):
        answer = await store.tasks.CreateTasks(tasks_pb2.CreateTasksRequest(items=items[first : first + 500]))
        assert not [item for item in answer.items if item.HasField("refused")]


async def pages_of(database: asyncpg.Connection, statement: str, *arguments: object) -> int:
    """How many pages a statement looks at that finds one row, all that it calls included. What it does is taken back."""
    await database.execute("ANALYZE")
    pages = []
    for _ in range(3):  # the first one reads catalogs, too, and so does one that is planned anew, as after another ANALYZE
        transaction = database.transaction()
        await transaction.start()
        plan = json.loads(await database.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", *arguments))[0][
            "Plan"
        ]
        await transaction.rollback()
        assert plan["Actual Rows"] == 1
        pages.append(int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]))
    return min(pages)


async def pages_of_a_claim(database: asyncpg.Connection) -> int:
    return await pages_of(database, Queries("leases.sql")["claim_tasks"], *ONE_OF_ANYBODY)


async def pages_of_a_look(database: asyncpg.Connection, *, since: datetime | None) -> int:
    return await pages_of(database, Queries("chores.sql")["promote_due"], 500, 30_000, 20, since)


async def test_a_claim_costs_the_same_with_a_backlog_and_with_many_tenants(store: Stubs, database: asyncpg.Connection) -> None:
    await create_many(store, 4, tenants=2)
    small = await pages_of_a_claim(database)
    await create_many(store, 4_000, tenants=2)
    backlog = await pages_of_a_claim(database)
    await create_many(store, 1_000, tenants=500)
    many = await pages_of_a_claim(database)
    assert max(backlog, many) < 2 * small, (small, backlog, many)


async def work(store: Stubs, count: int, priorities: Sequence[int]) -> None:
    """Creates so many tasks, of these priorities in turn, and ends all that wait but one."""
    items = [new_task(priority=priorities[number % len(priorities)]) for number in range(count)]
    await store.tasks.CreateTasks(tasks_pb2.CreateTasksRequest(items=items))
    left = (await store.tenants.GetTenant(tenants_pb2.GetTenantRequest(tenant_id=TENANT))).tenant.outstanding - 1
    while left:
        taken = (await store.leases.LeaseTasks(claim(limit=left))).tasks
        done = [complete(task.lease) for task in taken]
        await store.leases.CompleteTasks(leases_pb2.CompleteTasksRequest(items=done))
        left -= len(taken)


@pytest.mark.parametrize("priorities", [[0], [0, 3, 9]])
async def test_a_claim_costs_the_same_while_no_vacuum_may_remove_what_was_taken(
    store: Stubs, database: asyncpg.Connection, dsn: str, priorities: list[int]
) -> None:
    await set_policy(store, outstanding=1_000, leased=1_000)
    await work(store, 3, priorities)
    before = await pages_of_a_claim(database)
    async with holding(dsn, OLD_SNAPSHOT):
        for _ in range(20):
            await work(store, 50, priorities)
        assert await pages_of_a_claim(database) < 2 * before


async def test_a_look_for_what_fell_due_costs_the_same_while_no_vacuum_may_remove_what_was(
    store: Stubs, database: asyncpg.Connection, clock: Clock, dsn: str
) -> None:
    await set_policy(store, outstanding=1_000, leased=1_000)
    await work(store, 3, [0])
    before = await pages_of_a_look(database, since=None)
    async with holding(dsn, OLD_SNAPSHOT):
        for _ in range(20):
            await work(store, 50, [0])
        await clock.advance(seconds=60)
        since = await database.fetchval("SELECT tenure.task_now()")
        assert await pages_of_a_look(database, since=since) < 2 * before
        assert await pages_of_a_look(database, since=None) > 10 * before
