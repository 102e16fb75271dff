"""Rows that change all the time stay in their pages, and the indexes of what waits stay as small as what waits."""

from collections.abc import Awaitable, Callable
from typing import Final

import asyncpg
from taskstore.v1 import leases_pb2, tasks_pb2

from tests.conftest import Stubs
from tests.store.builders import TENANT, claim, complete, heartbeat, new_task, set_policy, until

WORKED: Final = 400
UPDATES: Final = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = $1::text::regclass"
SIZES: Final = "SELECT pg_relation_size(x::regclass) FROM unnest($1::text[]) x"
PAGE: Final = 8_192
VACUUMED_AFTER: Final = """
SELECT c.relname, coalesce(o.threshold, 50) + coalesce(o.scale, 0.2) * 1000000 AS rows
FROM pg_class c
CROSS JOIN LATERAL (
  SELECT max(option_value::float8) FILTER (WHERE option_name = 'autovacuum_vacuum_threshold') AS threshold,
         max(option_value::float8) FILTER (WHERE option_name = 'autovacuum_vacuum_scale_factor') AS scale
  FROM pg_options_to_table(c.reloptions)) o
WHERE c.oid = ANY ('{tenure.task_state,tenure.tenant,tenure.lane}'::regclass[])
"""
"""Of those that every task changes: after how many dead rows, where they have a million."""
OF_WHAT_WAITS: Final = ("tenure.task_ready", "tenure.task_due", "tenure.lane_turn")


async def lease_all(store: Stubs) -> list[leases_pb2.LeasedTask]:
    """Tasks that were created and taken."""
    items = [new_task() for _ in range(WORKED)]
    await store.tasks.CreateTasks(tasks_pb2.CreateTasksRequest(items=items))
    taken: list[leases_pb2.LeasedTask] = []
    while len(taken) < WORKED:
        taken += (await store.leases.LeaseTasks(claim(limit=WORKED, tenant_ids=[TENANT]))).tasks
    return taken


async def updates(database: asyncpg.Connection, table: str, least: int) -> tuple[int, int]:
    """How many updates there were, once there were so many, and how many of them stayed in their page."""

    async def are_told() -> bool:
        await database.execute("SELECT pg_stat_clear_snapshot()")
        return bool((await database.fetchrow(UPDATES, table))[0] >= least)

    await until(are_told, f"{least} updates of {table} are told")
    row = await database.fetchrow(UPDATES, table)
    return row[0], row[1]


async def until_they_stay(
    database: asyncpg.Connection, table: str, change: Callable[[], Awaitable[None]], *, times: int, each: int
) -> None:
    """Changes rows again and again, until nine in ten updates of a stretch stay in their page: whoever reads meanwhile, as a
    chore or an ANALYZE, keeps pages from being cleared; with an index on what changes none would."""

    async def they_stay() -> bool:
        before = await updates(database, table, 0)
        for _ in range(times):
            await change()
        after = await updates(database, table, before[0] + times * each)
        return after[1] - before[1] > 0.9 * (after[0] - before[0])

    await until(they_stay, f"updates of {table} stay in their pages")


async def test_heartbeats_of_many_tasks_stay_in_their_pages(store: Stubs, database: asyncpg.Connection) -> None:
    await set_policy(store, outstanding=WORKED, leased=WORKED)
    items = [heartbeat(task.lease) for task in await lease_all(store)]
    await updates(database, "tenure.task_state", WORKED)

    async def beat() -> None:
        await store.leases.HeartbeatTasks(leases_pb2.HeartbeatTasksRequest(items=items))

    await until_they_stay(database, "tenure.task_state", beat, times=20, each=WORKED)


async def test_the_counters_of_a_tenant_stay_in_their_page(store: Stubs, database: asyncpg.Connection) -> None:
    await set_policy(store, outstanding=WORKED)

    async def count() -> None:
        await store.tasks.CreateTask(new_task())

    await until_they_stay(database, "tenure.tenant", count, times=100, each=1)


async def test_indexes_of_what_waits_do_not_grow_with_what_is_over(store: Stubs, database: asyncpg.Connection) -> None:
    await set_policy(store, outstanding=WORKED, leased=WORKED)
    sizes: list[list[int]] = []
    for _ in range(8):
        done = [complete(task.lease) for task in await lease_all(store)]
        await store.leases.CompleteTasks(leases_pb2.CompleteTasksRequest(items=done))
        await database.execute("VACUUM tenure.task_state, tenure.lane")
        sizes.append([row[0] for row in await database.fetch(SIZES, OF_WHAT_WAITS)])
    assert all(late <= early + 2 * PAGE for early, late in zip(sizes[1], sizes[-1], strict=True)), sizes


async def test_tables_whose_rows_change_are_vacuumed_long_before_much_of_them_is_over(database: asyncpg.Connection) -> None:
    for table, after in await database.fetch(VACUUMED_AFTER):
        assert after <= 20_000, table
