"""Who is woken by a hint, and who passes it on. Within one process, without a database."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from prometheus_client import CollectorRegistry

from store_service.db.batch import BatchMetrics
from store_service.db.topics import lane_topic, task_topic, worker_topic
from store_service.db.wakeups import CHANNEL, Waiter, Wakeups
from store_service.model.leases import Claim, Taken, WorkflowVersion
from store_service.operations.chores import Chores
from store_service.operations.leases import Leases

LANE = "report/1"


def wakeups(dsn: str = "postgresql://nowhere") -> Wakeups:
    """Wakeups that talk to no one unless they are started."""
    return Wakeups(dsn, registry=CollectorRegistry())


def woken(*waiters: Waiter) -> list[bool]:
    """Which of them were."""
    return [waiter.is_woken for waiter in waiters]


def test_one_piece_of_work_wakes_one_waiter_and_the_next_piece_the_next() -> None:
    hints, topics = wakeups(), [lane_topic(LANE)]
    with hints.waiting(topics) as one, hints.waiting(topics) as other, hints.waiting([lane_topic("other/1")]) as stranger:
        hints.wake_lanes([LANE])
        assert woken(one, other, stranger) == [True, False, False]
        hints.wake_lanes([LANE])
        assert woken(one, other, stranger) == [True, True, False]


def test_a_choosy_waiter_is_woken_and_takes_no_hint_from_others() -> None:
    hints, topics = wakeups(), [lane_topic(LANE)]
    with (
        hints.waiting(topics, choosy=True) as choosy,
        hints.waiting(topics) as one,
        hints.waiting(topics, choosy=True) as late,
        hints.waiting(topics) as other,
    ):
        hints.wake_lanes([LANE])
        assert woken(choosy, one, late, other) == [True, True, False, False]


def test_a_hint_that_a_waiter_did_not_look_at_is_passed_on_when_it_goes() -> None:
    hints, topics = wakeups(), [lane_topic(LANE)]
    with contextlib.ExitStack() as stack:
        hasty = contextlib.ExitStack()
        first = hasty.enter_context(hints.waiting(topics))
        second = stack.enter_context(hints.waiting(topics))
        hints.wake_lanes([LANE])
        assert woken(first, second) == [True, False]
        hasty.close()
        assert woken(second) == [True]


async def test_a_hint_that_was_looked_at_is_not_passed_on() -> None:
    hints, topics = wakeups(), [lane_topic(LANE)]
    with hints.waiting(topics) as staying:
        with hints.waiting(topics) as other:
            hints.wake_lanes([LANE])
            assert await staying.wait(0)
            assert not await staying.wait(0)
        assert woken(staying, other) == [False, False]


async def test_a_change_of_a_task_wakes_all_who_follow_it_and_tells_them_which() -> None:
    hints, task_id, other_id = wakeups(), str(uuid4()), str(uuid4())
    with hints.following() as one, hints.following() as other, hints.following() as stranger:
        for follower in (one, other):
            follower.follow(task_topic(task_id))
        for follower in (other, stranger):
            follower.follow(task_topic(other_id))
        hints.wake_tasks([task_id])
        await asyncio.gather(one.wait(60), other.wait(60))
        taken = [follower.take() for follower in (one, other, stranger)]
        assert taken == [({task_topic(task_id)}, False), ({task_topic(task_id)}, False), (set(), False)]
        one.unfollow(task_topic(task_id))
        hints.wake_tasks([task_id])
        assert [follower.take()[0] for follower in (one, other)] == [set(), {task_topic(task_id)}]
        hints.wake_everyone()
        assert [follower.take() for follower in (one, other, stranger)] == [(set(), True)] * 3


async def test_a_store_that_is_alone_sends_no_hints_until_it_hears_of_another(dsn: str) -> None:
    now, heard = 0.0, asyncio.Queue[str]()
    listener = await asyncpg.connect(dsn)
    await listener.add_listener(CHANNEL, lambda _c, _pid, _channel, payload: heard.put_nowait(str(payload)))
    one = Wakeups(dsn, registry=CollectorRegistry(), seconds_now=lambda: now)
    other = Wakeups(dsn, registry=CollectorRegistry())
    async with asyncio.timeout(60):
        one.start()
        assert await heard.get() == "*"
        now = 60.0
        one.wake_lanes([LANE])
        one.wake_tasks([str(uuid4())])
        other.start()
        assert [await heard.get(), await heard.get()] == ["*", "+"]  # the other comes, and is answered; no hint
        one.wake_lanes([LANE])
        assert await heard.get() == lane_topic(LANE)
    await asyncio.gather(one.stop(), other.stop())
    await listener.close()


@pytest.fixture
async def next_heard(dsn: str) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """The next that a store says, but for that it is there."""
    heard = asyncio.Queue[str]()
    listener = await asyncpg.connect(dsn)
    await listener.add_listener(CHANNEL, lambda _c, _pid, _channel, payload: heard.put_nowait(str(payload)))

    async def next_one() -> str:
        async with asyncio.timeout(60):
            while (payload := await heard.get()) == "+":
                pass
        return payload

    yield next_one
    await listener.close()


async def test_hints_of_one_moment_are_one_notification(dsn: str, next_heard: Callable[[], Awaitable[str]]) -> None:
    hints = wakeups(dsn)
    hints.start()
    assert await next_heard() == "*"
    for so_many, sent in ((10, None), (51, "l*"), (50, None)):
        lanes = [f"report/{number}" for number in range(so_many)]
        for lane in lanes:
            hints.wake_lanes([lane])
        payload = await next_heard()
        assert payload == sent if sent else set(payload.split()) == set(map(lane_topic, lanes))
    tasks = [str(uuid4()) for _ in range(601)]
    hints.wake_tasks(tasks)
    assert await next_heard() == "t*"
    hints.wake_lanes(lanes)
    hints.wake_tasks(tasks[:600])
    hints.wake_workers(lanes)
    most = {*map(lane_topic, lanes), *map(task_topic, tasks[:600]), *map(worker_topic, lanes)}
    assert set((await next_heard()).split()) == most, "so much fits into one"
    await hints.stop()


async def test_others_hear_of_work_only_where_nobody_idles_here_who_looks_for_it(
    dsn: str, next_heard: Callable[[], Awaitable[str]]
) -> None:
    hints, topics = wakeups(dsn), [lane_topic(LANE)]
    hints.start()
    assert await next_heard() == "*"
    with hints.waiting(topics, choosy=True) as choosy, hints.waiting(topics) as one:
        idle = [asyncio.create_task(waiter.wait(60)) for waiter in (choosy, one)]
        await asyncio.sleep(0)
        hints.wake_lanes([LANE, "others/1"])
        assert await next_heard() == lane_topic("others/1")
        assert await asyncio.gather(*idle) == [True, True]
        idle = [asyncio.create_task(choosy.wait(60))]
        await asyncio.sleep(0)
        hints.wake_lanes([LANE])  # the other looks just now
        assert await next_heard() == topics[0]
        assert [await one.wait(60), await idle[0]] == [True, True]
    with hints.waiting(topics) as one:
        going = asyncio.create_task(one.wait(60))
        await asyncio.sleep(0)
        hints.wake_lanes([LANE])
        going.cancel()
        await asyncio.wait({going})
    assert await next_heard() == topics[0]
    await hints.stop()


async def test_a_hint_that_there_are_many_wakes_whom_it_may_be_for_and_nobody_else(dsn: str) -> None:
    hints, topics = wakeups(dsn), [lane_topic(LANE)]
    with (
        hints.waiting(topics) as first,
        hints.waiting(topics) as second,
        hints.waiting([worker_topic("w")]) as worker,
        hints.following() as follower,
    ):
        other = await asyncpg.connect(dsn)
        async with asyncio.timeout(60):
            hints.start()
            for waiter in (first, second, worker):  # all of them, as it begins to listen
                assert await waiter.wait(60)
            assert follower.take() == (set(), True)
            await other.execute(f"NOTIFY {CHANNEL}, 't*'")
            await follower.wait(60)
            assert (woken(first, second, worker), follower.take()) == ([False] * 3, (set(), True))
            await other.execute(f"NOTIFY {CHANNEL}, 'l*'")
            assert await first.wait(60)
            assert (woken(second, worker), follower.take()) == ([False] * 2, (set(), False))
            await other.execute(f"NOTIFY {CHANNEL}, 'w*'")
            assert await worker.wait(60)
            assert (woken(first, second), follower.take()) == ([False] * 2, (set(), False))
    await hints.stop()
    await other.close()


async def test_a_hint_before_the_wait_ends_it_at_once() -> None:
    hints = wakeups()
    with hints.waiting([lane_topic(LANE)]) as waiter:
        hints.wake_lanes([LANE])
        assert await waiter.wait(60)
        assert not await waiter.wait(-1)


async def test_claims_find_what_the_chore_had_in_hand_while_they_looked() -> None:
    let_go, begun = asyncio.Event(), asyncio.Event()
    due: dict[str, Any] = {"task_id": uuid4(), "worker_id": None, "event": "READY", "opened": []}
    looks: list[int] = []

    async def promote_due(*_: object, **__: object) -> tuple[list[dict[str, Any]], datetime]:
        looks.append(len(looks))
        begun.set()
        await let_go.wait()
        return [due] if len(looks) == 1 else [], datetime.now(UTC)  # a second one passes over what the first one holds

    async def claim_tasks(*_: object, **__: object) -> Taken:
        found: list[Any] = [SimpleNamespace(lease=due)] if chores.promoted else []
        return Taken(found, is_all=False)

    registry = CollectorRegistry()
    rows: Any = SimpleNamespace(
        promote_due=promote_due, claim_tasks=claim_tasks, claim_tasks_in_turn=claim_tasks, hear=lambda _: None
    )
    hints: Any = wakeups()
    chores = Chores(
        rows,
        hints,
        rows,
        rows,
        snapshot_seconds=hints.stop,
        cancel_grace_ms=1,
        max_crashes=1,
        registry=registry,
    )
    heard: Any = SimpleNamespace(
        waiting=hints.waiting, pass_on=hints.pass_on, wake_leased=lambda _: None, empty_lanes=hints.empty_lanes
    )
    leases = Leases(rows, rows, chores, heard, BatchMetrics(registry), registrations=rows, registry=registry)
    chore = asyncio.create_task(chores.promote_due())
    await begun.wait()
    wanted = Claim(
        request_id="r", worker_id="w", workflows=(WorkflowVersion("report", 1, 1_000),), tenant_ids=(), limit=1, wait_ms=0
    )
    claims = [asyncio.create_task(leases.lease_tasks(wanted)) for _ in range(3)]
    for _ in range(20):
        await asyncio.sleep(0)  # they have looked, and wait for their turn
    let_go.set()
    assert await chore == 1
    assert [len(found) for found in await asyncio.gather(*claims)] == [1, 1, 1]
    assert len(looks) == 2, "those that come meanwhile share the next look"


async def test_whatever_ends_the_listening_it_begins_again_and_not_without_pauses(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Wakeups._talk
    faults = [RuntimeError("a defect"), asyncpg.ReadOnlySQLTransactionError("a standby takes no LISTEN"), ValueError("another")]

    async def talk_at_last(self: Wakeups, connection: asyncpg.Connection) -> None:
        if faults:
            raise faults.pop()
        await talk(self, connection)

    monkeypatch.setattr(Wakeups, "_talk", talk_at_last)
    registry, started = CollectorRegistry(), time.monotonic()
    hints = Wakeups(dsn, registry=registry)
    hints.start()
    async with asyncio.timeout(60):
        while not registry.get_sample_value("tenure_store_listen_connected"):
            await asyncio.sleep(0.01)
    assert time.monotonic() - started > 0.1 + 0.2 + 0.4
    await hints.stop()
