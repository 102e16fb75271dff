"""How much work there is, as graphs and autoscalers see it."""

import re

import asyncpg
import grpc
import pytest
from taskstore.v1 import leases_pb2, tasks_pb2, types_pb2

from store_service.operations import chores
from tests.conftest import Clock, Stubs, store_on
from tests.pair import metrics_at
from tests.store.builders import TENANT, cancel, checkpoint, claim, create, create_and_lease, refusal_in, until


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


def counted(stubs: Stubs, series: str) -> float:
    """One series, which is 0 before anything was counted."""
    found = re.search(rf"^{re.escape(series)} (\S+)$", metrics_at(stubs.admin_port), re.MULTILINE)
    return float(found[1]) if found else 0.0


async def test_checkpoints_that_another_wrote_are_counted_whether_they_came_alone_or_in_a_batch(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    await store.leases.AppendCheckpoint(checkpoint(held))
    with pytest.raises(grpc.aio.AioRpcError):
        await store.leases.AppendCheckpoint(checkpoint(held, revision=5))
    items = leases_pb2.AppendCheckpointsRequest(items=[checkpoint(held, revision=6)])
    await store.leases.AppendCheckpoints(items)
    reason = refusal_in((await store.leases.AppendCheckpoints(items)).items[0].refused).reason
    assert counted(store, f'tenure_store_refused_items_total{{operation="append_checkpoints",reason="{reason}"}}') == 3


async def test_signals_are_counted_by_where_they_stood_each_once(store: Stubs) -> None:
    waiting = await create(store)
    signal = tasks_pb2.PublishSignalRequest(
        tenant_id=TENANT, signal_id="early", task_id=waiting.task_id, name="go", payload=types_pb2.Payload(data=b"1")
    )
    for _ in range(2):
        await store.tasks.PublishSignal(signal)
    await store.tasks.CancelTask(cancel(waiting.task_id))
    signal.signal_id = "late"
    await store.tasks.PublishSignal(signal)
    states = ("pending", "consumed", "dead_letter")
    assert [counted(store, f'tenure_store_signals_total{{state="{state}"}}') for state in states] == [1, 0, 1]


async def test_a_look_for_work_is_timed_without_the_wait_for_it(store: Stubs) -> None:
    waiting = store.leases.LeaseTasks(claim(wait_ms=20_000))  # it sets out at once

    async def has_looked() -> bool:
        return counted(store, "tenure_store_claim_seconds_count") > 0

    await until(has_looked, "it found nothing")
    await create(store)
    assert len((await waiting).tasks) == 1
    assert counted(store, "tenure_store_claim_seconds_count") >= 2
    assert counted(store, 'tenure_store_claim_seconds_bucket{le="+Inf"}') == counted(store, "tenure_store_claim_seconds_count")
