"""Trials 44, 48 and 58: zones of time, and what is large."""

import asyncio
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from taskstore.v1 import tasks_pb2, types_pb2

from store_service.client import Context
from store_service.db.wakeups import CHANNEL
from tests.bridge.client import Client, client_of
from tests.cases.work import TENANT, create, ended, shown, working
from tests.conftest import Clock, Stubs, bridge_on, serving, started
from tests.store.builders import bring_along, claim, complete, heartbeat, new_task, set_policy, suspend

MIB = 1024 * 1024
ZONE = "Pacific/Auckland"
BEFORE_THE_CHANGE = datetime(2027, 4, 3, 13, tzinfo=UTC)
"""An hour before its clocks go back."""


async def test_44_no_zone_of_any_session_or_process_moves_a_lease_or_a_timer(
    dsn: str, database: asyncpg.Connection, clock: Clock, routes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await database.fetchval("SELECT current_database()")
    await database.execute(f"ALTER DATABASE {name} SET timezone = '{ZONE}'")
    await database.execute(f"ALTER ROLE tenure_app IN DATABASE {name} SET timezone = '{ZONE}'")
    for variable in ("TZ", "PGTZ"):
        monkeypatch.setenv(variable, ZONE)
    time.tzset()
    try:
        now = await database.fetchval("SELECT tenure.task_now()")
        await clock.advance(seconds=(BEFORE_THE_CHANGE - now).total_seconds())
        async with (
            serving(dsn) as store,
            started(bridge_on(routes, store=store.address)) as bridge,
            client_of(bridge) as user,
        ):
            await timer_across_the_change(user, store, clock, database)
    finally:
        monkeypatch.undo()
        time.tzset()


async def timer_across_the_change(user: Client, store: Stubs, clock: Clock, database: asyncpg.Connection) -> None:
    task_id = await create(user)
    created = (await user.task("get", task_id)).result["createdAt"]
    assert created.startswith("2027-04-03T13:0")
    assert created.endswith("Z")
    [leased] = (await store.leases.LeaseTasks(claim(workflow="work"))).tasks
    await clock.advance(seconds=29)
    await store.leases.HeartbeatTask(heartbeat(leased.lease))
    await store.leases.SuspendTask(suspend(leased.lease, timer_ms=7_200_000))
    await clock.advance(seconds=7_150)
    await bring_along(store, database)
    assert not (await store.leases.LeaseTasks(claim(workflow="work"))).tasks
    await clock.advance(seconds=60)
    await bring_along(store, database)
    [woken] = (await store.leases.LeaseTasks(claim(workflow="work"))).tasks
    await store.leases.CompleteTask(complete(woken.lease, b'{"content":[]}'))
    assert (await shown(user, task_id, "completed"))["lastUpdatedAt"].startswith("2027-04-03T15:0")


async def test_48_what_is_written_is_not_bounded_by_what_is_told_of_it(
    store: Stubs, dsn: str, database: asyncpg.Connection
) -> None:
    told: list[str] = []
    await database.add_listener(CHANNEL, lambda *heard: told.append(str(heard[3])))
    await set_policy(store, outstanding=2_000)
    async with serving(dsn) as other:
        large = new_task(data=b'"' + b"x" * (MIB - 2) + b'"')
        waiting = asyncio.ensure_future(other.leases.LeaseTasks(claim(limit=1, wait_ms=20_000)))
        await store.tasks.CreateTask(large)
        assert (await waiting).tasks[0].input.data == large.input.data
        for _ in range(2):
            items = [new_task(workflow=f"w{number}") for number in range(500)]
            answer = await store.tasks.CreateTasks(tasks_pb2.CreateTasksRequest(items=items))
            assert all(item.HasField("created") for item in answer.items)
        found = await other.leases.LeaseTasks(claim(workflow="w499", limit=2, wait_ms=20_000))
        assert len(found.tasks) == 2
    assert told
    assert max(map(len, told)) < 200


async def test_58_what_is_too_large_fails_its_task_in_one_attempt_and_holds_up_no_other(user: Client, store: Stubs) -> None:
    async def work(ctx: Context, args: dict[str, Any]) -> Any:
        text = "x" * args["characters"]
        return await ctx.step("one", lambda: text) if args["step"] else text

    around = len('{"content":[{"type":"text","text":""}]}')
    async with working(store.address, work):
        for step in (False, True):
            for size, is_kept in ((4 * MIB - 1 - around, True), (4 * MIB + 1, False), (6 * MIB + 1, False), (16 * MIB, False)):
                task_id = await create(user, {"characters": size, "step": step})
                task = await ended(store, task_id)
                assert task.attempts == 1
                result = (await user.task("get", task_id)).result
                if is_kept:
                    assert len(result["result"]["content"][0]["text"]) == size
                else:
                    assert task.state == types_pb2.TASK_STATE_FAILED
                    assert "can be kept" in result["error"]["message"]
    answer = await user.call("work", {"a": "x" * (MIB + 1)}, tasks=True)
    assert (answer.status, answer.result["isError"]) == (200, True)
    assert "bytes are more than" in json.dumps(answer.result["content"])
    listed = await store.tasks.ListTasks(tasks_pb2.ListTasksRequest(tenant_id=TENANT))
    assert len(listed.tasks) == 8
