"""Cancelling is a wish: the code is told, and decides."""

import asyncio
import threading
from typing import Any

import pytest

from store_service.client import Cancelled, Context, SyncContext
from store_service.client.threads import Threads
from tests.client.fake_store import FakeStore, new_worker, outcomes


@pytest.mark.parametrize("how", ["step", "progress", "check_cancelled"])
async def test_a_wished_end_reaches_the_code_at_its_next_call(fake: FakeStore, how: str) -> None:
    cleaned: list[str] = []

    async def report(ctx: Context, args: dict[str, Any]) -> None:
        task.cancel_requested = True
        assert await ctx.wait_cancelled(timeout=60)
        assert ctx.cancelled
        try:
            match how:
                case "step":
                    await ctx.step("late", cleaned.append, "late")
                case "progress":
                    await ctx.progress(1)
                case _:
                    ctx.check_cancelled()
        except Exception:
            cleaned.append("held back")
        except Cancelled:
            cleaned.append("cleaned up")
            raise

    worker = new_worker(fake)
    worker.workflow("report")(report)
    task = fake.add()
    async with worker:
        await fake.ended(task)
    assert (task.state, cleaned, outcomes(worker)) == ("CANCELLED", ["cleaned up"], {"cancelled": 1})


async def test_code_may_finish_in_spite_of_the_wish(fake: FakeStore) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> str:
        task.cancel_requested = True
        await ctx.wait_cancelled()
        return "finished all the same"

    worker = new_worker(fake)
    worker.workflow("report")(report)
    task = fake.add()
    async with worker:
        await fake.ended(task)
    assert (task.state, outcomes(worker)) == ("COMPLETED", {"completed": 1})


async def test_a_step_under_way_is_saved_in_spite_of_the_wish(fake: FakeStore) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> None:
        await ctx.step("one", until_told, ctx)
        await ctx.step("two", lambda: 2)

    async def until_told(ctx: Context) -> int:
        task.cancel_requested = True
        assert await ctx.wait_cancelled(timeout=60)
        return 1

    worker = new_worker(fake)
    worker.workflow("report")(report)
    task = fake.add()
    async with worker:
        await fake.ended(task)
    assert (task.state, task.steps) == ("CANCELLED", ["one"])


async def test_a_sync_function_is_told_too(fake: FakeStore) -> None:
    def report(ctx: SyncContext, args: dict[str, Any]) -> None:
        task.cancel_requested = True
        assert ctx.wait_cancelled(60)
        ctx.step("late", lambda: 1)

    worker = new_worker(fake)
    worker.workflow("report")(report)
    task = fake.add()
    async with worker:
        await fake.ended(task)
    assert (task.state, task.steps) == ("CANCELLED", [])


async def test_cancelled_out_of_a_task_group_is_still_the_wish(fake: FakeStore) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> None:
        task.cancel_requested = True
        await ctx.wait_cancelled()
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.step("one", lambda: 1))
            group.create_task(ctx.step("two", lambda: 2))

    worker = new_worker(fake)
    worker.workflow("report")(report)
    task = fake.add()
    async with worker:
        await fake.ended(task)
    assert (task.state, outcomes(worker)) == ("CANCELLED", {"cancelled": 1})


async def test_an_exception_after_the_wish_is_not_tried_again(fake: FakeStore) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> None:
        task.cancel_requested = True
        await ctx.wait_cancelled()
        raise OSError("it broke while it stopped")

    worker = new_worker(fake)
    worker.workflow("report")(report)
    task = fake.add()
    async with worker:
        await fake.ended(task)
    assert (task.state, outcomes(worker)) == ("CANCELLED", {"cancelled": 1})


async def test_wait_cancelled_gives_up_after_its_timeout(fake: FakeStore) -> None:
    told: list[bool] = []

    async def report(ctx: Context, args: dict[str, Any]) -> None:
        told.append(await ctx.wait_cancelled(timeout=0.01))

    def blocking(ctx: SyncContext, args: dict[str, Any]) -> None:
        told.append(ctx.wait_cancelled(0.01))

    worker = new_worker(fake)
    worker.workflow("report")(report)
    worker.workflow("blocking")(blocking)
    async with worker:
        await fake.ended(fake.add(), fake.add("blocking"))
    assert told == [False, False]


async def test_steps_left_behind_by_a_function_that_ended_are_stopped(fake: FakeStore) -> None:
    stopped = threading.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.set()  # careless code that goes on

    async def report(ctx: Context, args: dict[str, Any]) -> str:
        left.append(asyncio.create_task(ctx.step("forever", forever)))
        await ctx.step("one", lambda: 1)
        return "done"

    left: list[asyncio.Task[None]] = []
    worker = new_worker(fake)
    worker.workflow("report")(report)
    task = fake.add()
    async with worker:
        await fake.ended(task)
    assert stopped.is_set()
    assert (task.steps, outcomes(worker)) == (["one"], {"completed": 1})


@pytest.mark.parametrize("must_stop", [False, True])
async def test_a_thread_that_is_cancelled_is_waited_for_unless_its_run_must_stop(must_stop: bool) -> None:
    begun, go = threading.Event(), threading.Event()

    def body() -> None:
        begun.set()
        go.wait(60)

    threads = Threads(lambda: must_stop)
    call = asyncio.create_task(threads.call(body))
    await asyncio.to_thread(begun.wait, 60)
    call.cancel()
    ended, _ = await asyncio.wait({call}, timeout=60 if must_stop else 0.1)
    assert bool(ended) is must_stop
    assert not await threads.idle(timeout_seconds=0)
    go.set()
    assert await threads.idle(timeout_seconds=60)
    await asyncio.wait({call}, timeout=60)
    assert call.cancelled()
