"""A store that was new plans by what its tables hold by now, long before Postgres looks at them."""

from typing import Final

import asyncpg
from taskstore.v1 import tasks_pb2

from tests.conftest import Stubs
from tests.store.builders import TENANT, claim, complete, new_task, set_policy, until

BATCH: Final = 500
MANY: Final = 3_000
NEVER: Final = """
DO $$ DECLARE t regclass; BEGIN
  FOR t IN SELECT oid FROM pg_class WHERE relnamespace = 'tenure'::regnamespace AND relkind = 'r' LOOP
    EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = false)', t);
  END LOOP;
END $$"""
READ: Final = """
SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE indexrelname IN ('task_created', 'task_listed')) AS read,
       (SELECT n_tup_ins FROM pg_stat_user_tables WHERE relid = 'tenure.task'::regclass) AS created,
       (SELECT n_tup_ins FROM pg_stat_user_tables WHERE relid = 'tenure.outcome'::regclass) AS ended
"""
"""What was read by indexes that are not for looks by key."""


async def test_a_store_whose_tables_were_empty_does_not_keep_the_plans_that_it_made_then(
    store: Stubs, database: asyncpg.Connection
) -> None:
    await database.execute(NEVER)
    await set_policy(store, outstanding=100_000, leased=BATCH)
    made = 0

    async def work() -> int:
        """A batch that is created, and one task that is worked on. Returns how much was read for that."""
        nonlocal made
        before = (await database.fetchrow(READ))["read"]
        made += 1
        await store.tasks.CreateTasks(tasks_pb2.CreateTasksRequest(items=[new_task() for _ in range(BATCH)]))
        (task,) = (await store.leases.LeaseTasks(claim(limit=1, tenant_ids=[TENANT]))).tasks
        await store.leases.CompleteTask(complete(task.lease))

        async def is_told() -> bool:
            await database.execute("SELECT pg_stat_clear_snapshot()")
            row = await database.fetchrow(READ)
            return bool(row["created"] >= made * BATCH and row["ended"] >= made)

        await until(is_told, "the figures of the batch are told")
        return int((await database.fetchrow(READ))["read"] - before)

    async def is_little() -> bool:
        return await work() < 2 * BATCH

    while made < MANY // BATCH:
        await work()
    await until(is_little, "a batch reads no more than what it is about")
