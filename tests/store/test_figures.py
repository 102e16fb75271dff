"""How much work there is, as graphs and autoscalers see it."""

import re

import asyncpg
import pytest

from store_service.operations import chores
from tests.conftest import Clock, Stubs, store_on
from tests.pair import metrics_at
from tests.store.builders import claim, create, until


def figures(stubs: Stubs) -> dict[str, float]:
    return figures_of(stubs.admin_port)


def figures_of(admin_port: int) -> dict[str, float]:
    found = re.findall(r"^(tenure_store_(?:tasks|oldest)\S*) (\S+)$", metrics_at(admin_port), re.MULTILINE)
    return {name: float(value) for name, value in found}


async def test_the_queue_is_counted_and_its_oldest_task_is_timed(
    store: Stubs, clock: Clock, database: asyncpg.Connection
) -> None:
    for tenant_id in ("acme", "globex"):
        for _ in range(2):
            await create(store, tenant_id=tenant_id)
    await store.leases.LeaseTasks(claim(tenant_ids=["acme"], limit=1))
    await clock.advance(seconds=20)
    row = await database.fetchrow("SELECT * FROM tenure.queue_figures($1)", chores.LOOK_LANES)
    assert (row["ready"], row["leased"], row["other"]) == (3, 1, 0)
    assert 20_000 <= row["oldest_ready_ms"] < 80_000

    async def are_told() -> bool:
        return figures(store).get('tenure_store_tasks{state="ready"}') is not None

    await until(are_told, "a sample was taken")


async def test_a_transaction_that_stays_open_is_told(
    dsn: str, database: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chores, "TIDY_SECONDS", 0.05)
    running = store_on(dsn)

    async def seconds() -> float:
        return figures_of(running.admin_port)["tenure_store_oldest_snapshot_seconds"]

    async with database.transaction(isolation="repeatable_read"):
        await database.fetchval("SELECT count(*) FROM tenure.tenant")
        await running.start()

        async def is_old() -> bool:
            return await seconds() > 2

        await until(is_old, "it is told how long it is open")
    opened = await seconds()

    async def is_over() -> bool:
        return await seconds() < opened

    await until(is_over, "it is told that it ended")
    await running.stop()
