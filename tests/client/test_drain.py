"""Ending a worker: it takes no more, finishes what it can, and gives back the rest."""

import asyncio
import os
import signal
from typing import Any

import pytest

from store_service.client import Context, SyncContext, Worker
from tests.client.fake_store import FakeStore, new_worker, outcomes
from tests.client.gate import gated
from tests.client.stubborn_worker import process
from tests.pair import told_at


async def test_running_work_finishes_and_nothing_new_is_begun(fake: FakeStore) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def report(ctx: Context, args: dict[str, Any]) -> int:
        begun.set()
        await go.wait()
        return await ctx.step("one", lambda: 1)

    worker = new_worker(fake, concurrency=1)
    worker.workflow("report")(report)
    first, second = fake.add(), fake.add()
    serving = asyncio.create_task(worker.serve())
    await asyncio.wait_for(begun.wait(), 60)
    worker.stop()
    go.set()
    await asyncio.wait_for(serving, 60)
    assert (first.state, second.state, second.attempts) == ("COMPLETED", "QUEUED", 0)
    assert outcomes(worker) == {"completed": 1}


@pytest.mark.batching("it is about releases that travel together")
async def test_all_that_outlasts_the_drain_is_given_back_in_few_calls(fake: FakeStore) -> None:
    worker, gate = gated(fake, drain_seconds=0.0, concurrency=50)
    tasks = [fake.add() for _ in range(50)]
    async with worker:
        await fake.until(lambda: gate.running == len(tasks))
    assert outcomes(worker) == {"released": len(tasks)}
    assert {task.state for task in tasks} == {"QUEUED"}
    assert len(fake.of("ReleaseTasks")) + len(fake.of("ReleaseTask")) <= 2


@pytest.mark.parametrize("kind", ["async", "sync", "sync step"])
async def test_work_that_outlasts_the_drain_is_given_back_at_once(fake: FakeStore, kind: str) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def report(ctx: Context, args: dict[str, Any]) -> None:
        try:
            begun.set()
            if kind == "sync step":
                await ctx.step("wait", wait_in_thread, ctx)
            await asyncio.Event().wait()
        finally:
            stopped.set()

    def wait_in_thread(ctx: Context | SyncContext) -> None:
        while not ctx.cancelled:
            os.sched_yield()

    def blocking(ctx: SyncContext, args: dict[str, Any]) -> None:
        loop.call_soon_threadsafe(begun.set)
        wait_in_thread(ctx)
        loop.call_soon_threadsafe(stopped.set)
        ctx.check_cancelled()

    worker = new_worker(fake, drain_seconds=0.1)
    worker.workflow("report")(blocking if kind == "sync" else report)
    task = fake.add()
    serving = asyncio.create_task(worker.serve())
    await asyncio.wait_for(begun.wait(), 60)
    worker.stop()
    await asyncio.wait_for(serving, 60)
    assert stopped.is_set()
    assert (task.state, outcomes(worker)) == ("QUEUED", {"released": 1})
    assert [request.delay_ms for request in fake.of("ReleaseTask")] == [0]


async def test_stopping_twice_does_not_wait_for_the_drain(fake: FakeStore) -> None:
    begun = asyncio.Event()

    async def report(ctx: Context, args: dict[str, Any]) -> None:
        begun.set()
        await asyncio.Event().wait()

    worker = new_worker(fake, drain_seconds=600)
    worker.workflow("report")(report)
    task = fake.add()
    serving = asyncio.create_task(worker.serve())
    await asyncio.wait_for(begun.wait(), 60)
    worker.stop()
    worker.stop()
    await asyncio.wait_for(serving, 60)
    assert (task.state, outcomes(worker)) == ("QUEUED", {"released": 1})


async def test_what_a_cut_call_for_work_may_have_taken_is_given_back(fake: FakeStore) -> None:
    worker = new_worker(fake, lease_seconds=30)
    worker.workflow("report")(lambda ctx, args: "done")
    fake.lose_answers("LeaseTasks", times=1_000)
    async with worker:
        task = fake.add()
        await fake.until(lambda: task.state == "LEASED")
        fake.mend()
    assert task.state in ("QUEUED", "COMPLETED")


async def test_all_that_a_cut_call_took_is_given_back_though_one_was_lost(fake: FakeStore) -> None:
    worker, over = new_worker(fake, lease_seconds=30, concurrency=20), asyncio.Event()
    worker.workflow("report")(lambda ctx, args: "done")
    fake.lose_answers("LeaseTasks", once=over.is_set)
    tasks = [fake.add() for _ in range(20)]
    async with worker:
        await fake.until(lambda: all(task.state == "LEASED" for task in tasks))
        fake.take_away(tasks[0])
    over.set()
    assert [task.state for task in tasks] == ["LEASED"] + ["QUEUED"] * 19


@pytest.mark.parametrize("kind", ["sync", "async", "pool"])
async def test_a_process_ends_with_0_after_sigterm_even_when_code_does_not_stop(fake: FakeStore, kind: str) -> None:
    task = fake.add(kind)
    with process(fake.address) as running:
        await fake.until(lambda: task.progress)
        running.send_signal(signal.SIGTERM)
        await fake.until(lambda: any(request.wait_ms == 0 for request in fake.of("LeaseTasks")))
        running.send_signal(signal.SIGTERM)
        await fake.until(lambda: task.state == "QUEUED")
        output, _ = await asyncio.to_thread(running.communicate, timeout=60)
    assert running.returncode == 0, output
    assert "hunter2" not in output


async def test_an_idle_process_ends_with_0_after_sigint(fake: FakeStore) -> None:
    with process(fake.address) as running:
        await fake.until(lambda: fake.of("LeaseTasks"))
        running.send_signal(signal.SIGINT)
        output, _ = await asyncio.to_thread(running.communicate, timeout=60)
    assert running.returncode == 0, output


async def test_the_admin_port_tells_whether_work_can_be_taken(fake: FakeStore) -> None:
    worker = new_worker(fake, admin_port=0)
    worker.workflow("report")(lambda ctx, args: "done")
    task = fake.add()
    async with worker:
        await fake.ended(task)
        assert await get(worker, "/readyz") == (200, "ready\n")
        await fake.until(lambda: worker.registry.get_sample_value("tenure_worker_tasks_total", {"outcome": "completed"}))
        status, text = await get(worker, "/metrics")
        assert status == 200
        assert 'tenure_worker_tasks_total{outcome="completed"} 1.0' in text
        fake.refuse("LeaseTasks", "STORAGE_UNAVAILABLE", times=1_000)
        await fake.until(lambda: worker.registry.get_sample_value("tenure_worker_lease_calls_total", {"outcome": "error"}))
        assert await get(worker, "/readyz") == (503, "the store does not give work: STORAGE_UNAVAILABLE\n")
        assert await get(worker, "/livez") == (200, "alive\n")


async def get(worker: Worker, path: str) -> tuple[int, str]:
    assert worker.admin_port is not None
    return await asyncio.to_thread(told_at, worker.admin_port, path, within_seconds=5)


def test_settings_that_the_store_would_refuse_are_refused_at_once() -> None:
    for settings in (
        {"concurrency": 0},
        {"concurrency": 2_001},
        {"lease_seconds": 0.5},
        {"lease_seconds": 901},
        {"worker_id": "a b"},
        {"worker_id": ""},
    ):
        with pytest.raises(ValueError, match="must be"):
            Worker(**settings)
    worker = Worker()
    worker.workflow("report")(lambda ctx, args: None)
    for name, version in (("report", 1), (" ", 1), ("x" * 257, 1), ("other", 0)):
        with pytest.raises(ValueError, match="workflow"):
            worker.workflow(name, version=version)(lambda ctx, args: None)
    with pytest.raises(ValueError, match="lease_seconds must be"):
        worker.workflow("other", lease_seconds=0.5)(lambda ctx, args: None)


async def test_a_worker_without_workflows_says_so(fake: FakeStore) -> None:
    with pytest.raises(ValueError, match="no workflow is registered"):
        await new_worker(fake).serve()
