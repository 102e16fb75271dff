"""What is left of a tenant's content in the database, and what passes by there. Security checklist P6, P7."""

import asyncio
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from taskstore.v1 import leases_pb2, types_pb2

from store_service.db.wakeups import CHANNEL
from tests.conftest import Clock, Stubs
from tests.store.builders import (
    answer,
    cancel,
    checkpoint,
    claim,
    complete,
    create,
    fail,
    lease,
    publish,
    question,
    report,
    set_policy,
    suspend,
)
from tests.store.retention import DAY, remove


async def full_life(store: Stubs, canary: str, **fields: Any) -> None:
    """A task with content wherever a task can have some."""
    data = f'{{"message": "{canary}"}}'.encode()
    task_id = (await create(store, data=data, ttl_ms=1_000, **fields)).task_id
    held = (await lease(store)).lease
    await store.leases.AppendCheckpoint(checkpoint(held, data=data, step="step"))
    await store.leases.ReportProgress(leases_pb2.ReportProgressRequest(lease=held, value=1, message=canary))
    await publish(store, task_id, name="never", data=data)
    await publish(store, task_id, name="go", data=data)
    await store.leases.SuspendTask(suspend(held, step="s", signal="go"))
    held = (await lease(store)).lease
    await store.leases.SuspendTask(suspend(held, step="q", questions=[question("q", data)]))
    assert await answer(store, task_id, q=data) == ["ACCEPTED"]
    held = (await lease(store)).lease
    if fields.get("reference"):
        await store.leases.CompleteTask(complete(held, data))
    else:
        error = types_pb2.TaskError(code=-32000, message="it broke", data=types_pb2.Payload(data=data))
        request = fail(held)
        request.error.CopyFrom(error)
        await store.leases.FailTask(request)


@pytest.mark.row("P6")
async def test_after_its_retention_nothing_of_a_tasks_content_is_left_in_any_table(
    store: Stubs, clock: Clock, database: asyncpg.Connection
) -> None:
    canary = f"canary{uuid4().hex}"
    await set_policy(store)
    for reference in ("", "r"):
        await full_life(store, canary, reference=reference)
    assert await tables_with(database, canary) >= {"task", "checkpoint", "outcome", "signal", "input_request"}
    await clock.advance(seconds=DAY - 3_600)
    assert not await remove(store)
    await clock.advance(seconds=7_200)
    assert len(await remove(store)) == 2
    assert await tables_with(database, canary) == set()


async def tables_with(database: asyncpg.Connection, canary: str) -> set[str]:
    """The tables that have these words, as text or as bytes."""
    rows = await database.fetch("SELECT relname FROM pg_class WHERE relnamespace = 'tenure'::regnamespace AND relkind = 'r'")
    found = set()
    for name in (row["relname"] for row in rows):
        query = f"SELECT EXISTS (SELECT FROM tenure.{name} x WHERE strpos(x::text, $1) > 0 OR strpos(x::text, $2) > 0)"
        if await database.fetchval(query, canary, canary.encode().hex()):
            found.add(name)
    return found


@pytest.mark.row("P7")
async def test_a_notification_has_digests_alone(store: Stubs, database: asyncpg.Connection) -> None:
    told: list[str] = []
    heard = asyncio.Event()

    def hear(_connection: object, _pid: int, _channel: str, payload: object) -> None:
        told.append(str(payload))
        heard.set()

    await database.add_listener(CHANNEL, hear)
    names = ["acme", "report", "worker-canary"]
    for number in range(20):
        task_id = (await create(store)).task_id
        held = (await store.leases.LeaseTasks(claim(worker_id="worker-canary"))).tasks[0].lease
        await store.leases.ReportProgress(report(held, number))
        await store.tasks.CancelTask(cancel(task_id))
        await store.leases.CompleteTask(complete(held))
        names.append(task_id)
    async with asyncio.timeout(60):
        await heard.wait()
    assert max(map(len, told)) < 200
    assert [name for name in names for one in told if name in one] == []
