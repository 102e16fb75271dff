"""Trial 50 and what is near to it: databases that are set up otherwise than one would think, or only read."""

import asyncio
import re
import time

import asyncpg
import pytest
from taskstore.v1 import leases_pb2, tasks_pb2

from tests.cases.work import PATIENCE_SECONDS
from tests.conftest import Stubs, serving
from tests.pair import metrics_at, told_at
from tests.store.builders import checkpoint, claim, complete, create, heartbeat, new_task, refusal_of, set_policy, until

OURS = "FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'tenure-%'"


async def everything(store: Stubs, worker_id: str) -> None:
    """Creates and ends tasks of two tenants, a few at a time."""
    for _ in range(5):
        items = [new_task(tenant_id=tenant_id) for tenant_id in ("a", "b") * 2]
        created = await store.tasks.CreateTasks(tasks_pb2.CreateTasksRequest(items=items))
        assert all(item.HasField("created") for item in created.items)
        for task in (await store.leases.LeaseTasks(claim(worker_id=worker_id, limit=4))).tasks:
            await store.leases.AppendCheckpoint(checkpoint(task.lease))
            await store.leases.HeartbeatTasks(leases_pb2.HeartbeatTasksRequest(items=[heartbeat(task.lease)]))
            await store.leases.CompleteTask(complete(task.lease))


@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
async def test_the_isolation_that_a_database_sets_for_its_sessions_changes_nothing(
    dsn: str, database: asyncpg.Connection, level: str
) -> None:
    name = await database.fetchval("SELECT current_database()")
    await database.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = '{level}'")
    async with serving(dsn) as store:
        for tenant_id in ("a", "b"):
            await set_policy(store, tenant_id=tenant_id)
        await asyncio.gather(*(everything(store, f"w{number}") for number in range(10)))
        assert re.search(r"^tenure_store_statement_retries_total 0.0$", metrics_at(store.admin_port), re.MULTILINE)
    assert await database.fetch("SELECT * FROM tenure.audit") == []


async def test_50_a_store_whose_database_only_reads_is_not_ready_until_it_writes(
    store: Stubs, database: asyncpg.Connection
) -> None:
    name = await database.fetchval("SELECT current_database()")

    async def reconnect(setting: str) -> None:
        await database.execute("SET default_transaction_read_only = off")
        await database.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = {setting}")
        await database.execute(f"SELECT pg_terminate_backend(pid) {OURS}")

    async def is_ready() -> bool:
        return (await asyncio.to_thread(told_at, store.admin_port, "/readyz"))[0] == 200

    async def is_not_ready() -> bool:
        return not await is_ready()

    async def writes() -> bool:
        try:
            await create(store)
        except Exception:  # refused, as its connections are those from before
            return False
        return True

    await until(is_ready, "the store is ready")
    await reconnect("on")
    await until(is_not_ready, "the store says so")
    assert (await refusal_of(create(store))).reason == "STORAGE_UNAVAILABLE"
    assert (await asyncio.to_thread(told_at, store.admin_port, "/livez"))[0] == 200
    await database.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = off")
    started = time.monotonic()  # its connections are those of the database that only reads: it finds that out itself
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await writes():
            await asyncio.sleep(0.05)
    await until(is_ready, "the store is ready again")
    assert time.monotonic() - started < PATIENCE_SECONDS
