"""Trials 54 and 55: what hints cost, and what an old snapshot costs, under load. In full they tell figures."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest
from taskstore.v1 import leases_pb2

from store_service.db.wakeups import CHANNEL
from store_service.server import Store
from tests.cases.conftest import ALL
from tests.conftest import Stubs, open_stubs, started, store_on
from tests.store.builders import claim, complete, create, heartbeat, set_policy, until

WRITERS = 32
ROUND_SECONDS = 60 if ALL else 1
ROUNDS = 3 if ALL else 1
HELD_SECONDS = 600 if ALL else 3
RATE = 300 if ALL else 30
"""Tasks a second, where the machine can."""
NOTIFY_EACH = """
CREATE FUNCTION public.notify_each() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN PERFORM pg_notify('each', NEW.task_id::text); RETURN NULL; END $$;
CREATE TRIGGER notify_each AFTER INSERT ON tenure.task FOR EACH ROW EXECUTE FUNCTION public.notify_each();
"""


@asynccontextmanager
async def serving(dsn: str) -> AsyncIterator[tuple[Store, Stubs]]:
    async with (
        started(store_on(dsn)) as running,
        open_stubs(running) as stubs,
    ):
        yield running, stubs


async def creations(store: Stubs) -> float:
    """How many a second, by so many writers at once."""
    ends_at, count = time.monotonic() + ROUND_SECONDS, 0

    async def write() -> None:
        nonlocal count
        while time.monotonic() < ends_at:
            await create(store)
            count += 1

    started = time.monotonic()
    await asyncio.gather(*(write() for _ in range(WRITERS)))
    return count / (time.monotonic() - started)


@pytest.mark.timeout(1800)
async def test_54_hints_are_few_and_cost_little(
    dsn: str, database: asyncpg.Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[float] = []
    await database.add_listener(CHANNEL, lambda *_: told.append(time.monotonic()))
    rates: dict[str, list[float]] = {"none": [], "gathered": [], "each": []}
    async with serving(dsn) as (alone, store):
        assert alone._parts is not None
        await set_policy(store, outstanding=10_000_000)
        for _ in range(ROUNDS):
            alone._parts.wakeups._heard_at = -60.0  # nobody else was heard of for long
            rates["none"].append(await creations(store))
            async with serving(dsn):

                async def has_heard() -> bool:
                    assert alone._parts is not None
                    return not alone._parts.wakeups._is_alone()

                await until(has_heard, "the stores hear each other")
                before, started = len(told), time.monotonic()
                rates["gathered"].append(await creations(store))
                sent, seconds = len(told) - before, time.monotonic() - started
                assert 0 < sent <= 2 * (seconds / 0.005 + 2), "each store sends one hint in 5 ms at most"
            if ALL:
                await database.execute(NOTIFY_EACH)
                rates["each"].append(await creations(store))
                await database.execute("DROP TRIGGER notify_each ON tenure.task; DROP FUNCTION public.notify_each()")
    figures = {kind: statistics.median(seen) for kind, seen in rates.items() if seen}
    with capsys.disabled():
        print(f"\ncreations a second by {WRITERS} writers, by hints: " + ", ".join(f"{k} {v:.0f}" for k, v in figures.items()))
    assert not ALL or figures["gathered"] > 0.9 * figures["none"]


def p99_ms(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.99)] * 1000


@pytest.mark.timeout(1800)
async def test_55_an_old_snapshot_does_not_make_claims_slow_for_ever(
    dsn: str, database: asyncpg.Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    claims: list[float] = []
    is_over = asyncio.Event()

    async def creating(store: Stubs) -> None:
        while not is_over.is_set():
            started = time.monotonic()
            await asyncio.gather(*(create(store) for _ in range(RATE // 10)))
            await asyncio.sleep(max(0.0, 0.1 - (time.monotonic() - started)))

    async def working(store: Stubs, worker_id: str) -> None:
        while not is_over.is_set():
            started = time.monotonic()
            tasks = (await store.leases.LeaseTasks(claim(worker_id=worker_id, limit=20))).tasks
            claims.append(time.monotonic() - started)
            if not tasks:
                await asyncio.sleep(0.02)
                continue
            items = [heartbeat(task.lease) for task in tasks]
            for _ in range(2):
                await store.leases.HeartbeatTasks(leases_pb2.HeartbeatTasksRequest(items=items))
            done = [complete(task.lease) for task in tasks]
            await store.leases.CompleteTasks(leases_pb2.CompleteTasksRequest(items=done))

    async def p99_within(seconds: float) -> float:
        claims.clear()
        await asyncio.sleep(seconds)
        return p99_ms(claims)

    async with serving(dsn) as (_, store):
        await set_policy(store, outstanding=1_000_000, leased=10_000)
        work = [asyncio.create_task(creating(store)), *(asyncio.create_task(working(store, f"w{n}")) for n in range(4))]
        before = await p99_within(HELD_SECONDS / 10)
        holder = await asyncpg.connect(dsn)
        async with holder.transaction(isolation="repeatable_read"):
            await holder.fetchval("SELECT count(*) FROM tenure.task")
            held = [await p99_within(HELD_SECONDS / 10) for _ in range(10 if ALL else 1)]
        await holder.close()
        after = [await p99_within(30) for _ in range(5)] if ALL else []
        is_over.set()
        await asyncio.gather(*work)
        made = await database.fetchval("SELECT count(*) FROM tenure.task")
        hot = await database.fetchrow(
            "SELECT n_tup_upd, n_tup_hot_upd, n_dead_tup FROM pg_stat_user_tables WHERE relid = 'tenure.task_state'::regclass"
        )
    with capsys.disabled():
        print(f"\n{made} tasks, {dict(hot)}; p99 of claims: {before:.0f} ms before")
        print("behind a held snapshot, in ms:", *map(round, held), "and afterwards:", *map(round, after))
    assert not ALL or (max(held) < 5 * before and after[-1] < 2 * before)
