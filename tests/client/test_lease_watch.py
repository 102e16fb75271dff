"""The store's word that something happened to a lease: heard at once, missed without harm."""

import asyncio
import threading
import time
from typing import Any

import grpc
import pytest

from store_service.client import Context, Worker
from tests.client.fake_store import FakeStore, FakeTask, new_worker, outcomes

LONG = 900.0
"""A lease so long that no heartbeat is due by itself while a test lasts."""


@pytest.fixture(autouse=True)
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store_service.client.heartbeats._MOST_INTERVAL_SECONDS", LONG)


async def until_cancelled(ctx: Context, args: dict[str, Any]) -> None:
    assert await ctx.wait_cancelled(60)
    ctx.check_cancelled()


async def hint_and_be_heard(fake: FakeStore, worker: Worker) -> None:
    asked_at = worker._heartbeats._asked_at
    fake.hint()
    await fake.until(lambda: worker._heartbeats._asked_at > asked_at)


def cancel(fake: FakeStore, task: FakeTask) -> None:
    with fake.changed:
        fake.memory.cancel_task(task)
    fake.hint()


async def test_a_cancel_reaches_code_that_runs_long_before_its_next_heartbeat(fake: FakeStore) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> None:
        begun.set()
        assert await ctx.wait_cancelled(60)
        ctx.check_cancelled()

    begun = asyncio.Event()
    worker = new_worker(fake, lease_seconds=LONG)
    worker.workflow("report")(report)
    task = fake.add()
    async with worker:
        await fake.until(lambda: fake.watchers)
        await asyncio.wait_for(begun.wait(), 60)
        cancel(fake, task)
        await fake.ended(task)
    assert (task.state, outcomes(worker)) == ("CANCELLED", {"cancelled": 1})
    assert [request.worker_id for request in fake.of("WatchLeases")] == [worker.worker_id]


async def test_a_cancel_reaches_code_that_blocks_the_event_loop(fake: FakeStore) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> None:
        cancel(fake, task)
        while not ctx.cancelled:
            pass
        ctx.check_cancelled()

    worker = new_worker(fake, lease_seconds=LONG)
    worker.workflow("report")(report)
    async with worker:
        await fake.until(lambda: fake.watchers)
        task = fake.add()
        await fake.ended(task)
    assert task.state == "CANCELLED"


async def test_a_word_about_a_lease_that_the_worker_has_not_heard_of_yet_is_kept(fake: FakeStore) -> None:
    wished_at = 0.0

    def told() -> bool:
        nonlocal wished_at
        if not wished_at:
            wished_at = time.monotonic()
            cancel(fake, task)
        return worker._heartbeats._asked_at > wished_at

    worker = new_worker(fake, lease_seconds=LONG)
    worker.workflow("report")(until_cancelled)
    fake.hold_answer("LeaseTasks", until=told)
    task = fake.add()
    async with worker:
        await fake.ended(task)
    assert (task.state, task.attempts) == ("CANCELLED", 1)


async def test_a_wish_that_came_while_the_answer_of_the_lease_was_lost_is_heard(fake: FakeStore) -> None:
    def wished() -> bool:
        fake.memory.cancel_task(task)
        return True

    worker = new_worker(fake, lease_seconds=LONG)
    worker.workflow("report")(until_cancelled)
    fake.lose_answers("LeaseTasks", once=wished)
    task = fake.add()
    async with worker:
        await fake.ended(task)
    assert (task.state, task.attempts) == ("CANCELLED", 1)


async def test_a_stream_that_ends_is_opened_again(fake: FakeStore) -> None:
    worker = new_worker(fake, lease_seconds=LONG)
    worker.workflow("report")(until_cancelled)
    fake.refuse("WatchLeases", "STORAGE_UNAVAILABLE", times=2)
    async with worker:
        await fake.until(lambda: fake.watchers)
        await asyncio.to_thread(fake.cut)
        await fake.until(lambda: fake.watchers)
        task = fake.add()
        await fake.until(lambda: task.state == "LEASED")
        cancel(fake, task)
        await fake.ended(task)
    assert task.state == "CANCELLED"
    assert len(fake.of("WatchLeases")) == 4


class OldStore(FakeStore):
    """A store that does not know the method."""

    def WatchLeases(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802 (named by the API)
        self.calls.append(("WatchLeases", request))
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")


async def test_a_store_that_does_not_know_the_method_is_not_asked_again() -> None:
    with OldStore().serve() as fake:
        worker = new_worker(fake)
        worker.workflow("report")(lambda ctx, args: "done")
        async with worker:
            await fake.until(lambda: fake.of("WatchLeases"))
            await fake.until(lambda: not any(thread.name == "lease-watch" for thread in threading.enumerate()))
            await fake.ended(fake.add())
        assert len(fake.of("WatchLeases")) == 1


async def test_many_words_are_few_heartbeats(fake: FakeStore) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> None:
        begun.set()
        await ctx.wait_cancelled(60)
        ctx.check_cancelled()

    begun = asyncio.Event()
    worker = new_worker(fake, lease_seconds=LONG)
    worker.workflow("report")(report)
    task = fake.add()
    async with worker:
        await fake.until(lambda: fake.watchers)
        await asyncio.wait_for(begun.wait(), 60)
        started = time.monotonic()
        for _ in range(40):
            await hint_and_be_heard(fake, worker)
        cancel(fake, task)
        await fake.ended(task)
        beats = len(fake.of("HeartbeatTasks"))
    assert beats <= 3 + (time.monotonic() - started) / 0.1
