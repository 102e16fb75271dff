"""Leases: kept while user code blocks, trusted no longer than they last, and nothing written once they are lost."""

import asyncio
import ctypes
import threading
import time
from typing import Any

import pytest
import structlog

from store_service.client import Context, SyncContext
from tests.client.fake_store import FakeStore, FakeTask, new_worker, outcomes

WRITES = ("AppendCheckpoint", "CompleteTask", "FailTask", "ReleaseTask", "ConfirmCancel", "ReportProgress")


def writes(fake: FakeStore) -> list[str]:
    with fake.changed:
        return [method for method, _ in fake.calls if method in WRITES]


def wait_beats(fake: FakeStore, task: FakeTask, beats: int) -> None:
    """Blocks the thread, and with it the event loop, until the lease was extended so often."""
    with fake.changed:
        assert fake.changed.wait_for(lambda: task.heartbeats >= beats, 60)


@pytest.mark.usefixtures("often")
async def test_code_that_blocks_the_event_loop_keeps_its_lease(fake: FakeStore) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> str:
        wait_beats(fake, task, 5)
        return "done"

    worker = new_worker(fake, lease_seconds=60)
    worker.workflow("report")(report)
    task = fake.add()
    async with worker:
        await fake.ended(task)
    assert (outcomes(worker), task.attempts) == ({"completed": 1}, 1)


@pytest.mark.usefixtures("often")
async def test_code_that_spins_in_pure_python_keeps_its_lease(fake: FakeStore) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> int:
        turns = 0
        while task.heartbeats < 5:
            turns += 1
        return turns

    worker = new_worker(fake, lease_seconds=60)
    worker.workflow("report")(report)
    task = fake.add()
    async with worker:
        await fake.ended(task)
    assert (outcomes(worker), task.attempts) == ({"completed": 1}, 1)


async def test_a_worker_stops_by_its_own_clock_when_heartbeats_are_not_answered(fake: FakeStore) -> None:
    stopped = asyncio.Event()
    begun = asyncio.Event()

    async def report(ctx: Context, args: dict[str, Any]) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    worker = new_worker(fake, lease_seconds=1)
    worker.workflow("report")(report)
    fake.silence("HeartbeatTasks")
    task = fake.add()
    async with worker:
        await asyncio.wait_for(begun.wait(), 60)
        fake.silence("LeaseTasks")
        await asyncio.wait_for(stopped.wait(), 60)
        assert time.monotonic() < task.expires_at, "it stopped only after the store's own lease had ended"
    assert outcomes(worker) == {"lease_lost": 1}
    assert writes(fake) == []


@pytest.mark.usefixtures("often")
async def test_heartbeats_outlast_a_store_that_is_away_for_less_than_a_lease(fake: FakeStore) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> str:
        await fake.until(lambda: task.heartbeats >= 2)
        return "done"

    worker = new_worker(fake, lease_seconds=60)
    worker.workflow("report")(report)
    fake.refuse("HeartbeatTasks", "STORAGE_UNAVAILABLE", times=3)
    task = fake.add()
    async with worker:
        await fake.ended(task)
    assert outcomes(worker) == {"completed": 1}
    assert worker.registry.get_sample_value("tenure_worker_heartbeat_failures_total") == 3


async def test_each_lease_is_renewed_by_a_third_of_its_own_length(fake: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store_service.client.heartbeats._MOST_INTERVAL_SECONDS", 60.0)

    async def wait(ctx: Context, args: dict[str, Any]) -> str:
        await fake.until(lambda: short.heartbeats >= 5)
        return "done"

    worker = new_worker(fake, lease_seconds=180)
    worker.workflow("long")(wait)
    worker.workflow("short", lease_seconds=1.5)(wait)
    long, short = fake.add("long"), fake.add("short")
    async with worker:
        await fake.ended(long)
        await fake.ended(short)
    assert long.heartbeats <= 2, "it was renewed with the other, or when the watch began"
    asked = {(item.lease.task_id, item.lease_ms) for request in fake.of("HeartbeatTasks") for item in request.items}
    assert asked <= {(long.task_id, 180_000), (short.task_id, 1_500)}
    assert {(one.workflow, one.lease_ms) for one in fake.of("LeaseTasks")[0].workflows} == {("long", 0), ("short", 1_500)}
    assert fake.of("LeaseTasks")[0].wait_ms == 500


@pytest.mark.parametrize("method", ["HeartbeatTasks", "AppendCheckpoint", "ReportProgress"])
async def test_lease_lost_on_any_call_stops_the_work_at_once(fake: FakeStore, method: str) -> None:
    stopped = asyncio.Event()

    async def report(ctx: Context, args: dict[str, Any]) -> None:
        try:
            fake.take_away(task)
            match method:
                case "AppendCheckpoint":
                    await ctx.step("one", lambda: 1)
                case "ReportProgress":
                    await ctx.progress(1)
                case _:
                    await asyncio.Event().wait()
        finally:
            stopped.set()

    # Long enough that it is the answer that stops the work, not the clock.
    worker = new_worker(fake, lease_seconds=9)
    worker.workflow("report")(report)
    task = fake.add()
    async with worker:
        await asyncio.wait_for(stopped.wait(), 60)
        await fake.until(lambda: outcomes(worker))
    assert outcomes(worker) == {"lease_lost": 1}
    assert len(writes(fake)) == (0 if method == "HeartbeatTasks" else 1), "it tried again, or wrote more"


async def test_lease_lost_at_completion_is_told_as_such(fake: FakeStore) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> str:
        await fake.asked_again()
        fake.take_away(task)
        return "done"

    worker = new_worker(fake)
    worker.workflow("report")(report)
    task = fake.add()
    async with worker:
        await fake.until(lambda: outcomes(worker))
    assert outcomes(worker) == {"lease_lost": 1}
    assert writes(fake) == ["CompleteTask"]


async def test_a_thread_without_its_lease_writes_nothing_and_keeps_its_slot_until_it_ends(fake: FakeStore) -> None:
    next_begun = threading.Event()
    overlapped: list[bool] = []
    saved: list[str] = []

    def report(ctx: SyncContext, args: dict[str, Any]) -> None:
        if ctx.task_id == other.task_id:
            next_begun.set()
            return
        assert ctx.wait_cancelled(60)
        overlapped.append(next_begun.wait(0.5))
        ctx.step("late", saved.append, "late")

    worker = new_worker(fake, concurrency=1)
    worker.workflow("report")(report)
    task, other = fake.add(), fake.add()
    async with worker:
        await fake.until(lambda: task.attempts)
        fake.take_away(task)
        await fake.ended(other)
    assert outcomes(worker) == {"lease_lost": 1, "completed": 1}
    assert (overlapped, saved, writes(fake)) == ([False], [], ["CompleteTask"])


async def test_a_lost_answer_to_a_completion_is_asked_for_again(fake: FakeStore) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> str:
        await fake.asked_again()
        return "done"

    worker = new_worker(fake)
    worker.workflow("report")(report)
    fake.lose_answers("CompleteTask", times=2)
    task = fake.add()
    async with worker:
        await fake.ended(task)
        await fake.until(lambda: outcomes(worker))
    assert outcomes(worker) == {"completed": 1}
    assert len({request.SerializeToString() for request in fake.of("CompleteTask")}) == 1
    assert len(fake.of("CompleteTask")) == 3


async def test_a_completion_that_is_not_taken_is_given_up_with_the_lease(fake: FakeStore) -> None:
    worker = new_worker(fake, lease_seconds=3)
    worker.workflow("report")(lambda ctx, args: "done")
    fake.silence("HeartbeatTasks")
    fake.refuse("CompleteTask", "STORAGE_UNAVAILABLE", times=1_000)
    task = fake.add()
    async with worker:
        await fake.until(lambda: outcomes(worker))
        assert time.monotonic() < task.expires_at
        assert len(fake.of("CompleteTask")) > 3
        fake.mend()
        await fake.ended(task)
    assert outcomes(worker) == {"lease_lost": 1, "completed": 1}


@pytest.mark.usefixtures("often")
async def test_a_heartbeat_that_crosses_a_completion_is_no_lost_lease(fake: FakeStore) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> str:
        await fake.asked_again()
        return "done"

    worker = new_worker(fake, lease_seconds=60)
    worker.workflow("report")(report)
    fake.lose_answers("CompleteTask", once=lambda: fake.of("HeartbeatTasks"))
    task = fake.add()
    async with worker:
        await fake.ended(task)
        await fake.until(lambda: outcomes(worker))
    assert outcomes(worker) == {"completed": 1}


async def test_tasks_whose_lease_answer_was_lost_are_asked_for_under_the_same_id(fake: FakeStore) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> str:
        return "done"

    worker = new_worker(fake, lease_seconds=10)
    worker.workflow("report")(report)
    fake.lose_answers("LeaseTasks")
    tasks = [fake.add() for _ in range(3)]
    async with worker:
        await fake.ended(*tasks)
        await fake.until(lambda: len(fake.of("LeaseTasks")) >= 3)
    assert [task.attempts for task in tasks] == [1, 1, 1]
    first, second, third, *_ = fake.of("LeaseTasks")
    assert first.request_id == second.request_id != third.request_id
    assert [request.is_new for request in (first, second, third)] == [True, False, True]


async def test_no_more_is_leased_than_there_are_slots(fake: FakeStore) -> None:
    running = 0
    most = 0
    go = asyncio.Event()

    async def report(ctx: Context, args: dict[str, Any]) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            go.set()
        await asyncio.wait_for(go.wait(), 60)
        await ctx.step("one", lambda: 1)
        running -= 1
        return "done"

    worker = new_worker(fake, concurrency=3)
    worker.workflow("report")(report)
    tasks = [fake.add() for _ in range(12)]
    async with worker:
        await fake.ended(*tasks)
    assert most == 3
    assert all(1 <= request.limit <= 3 for request in fake.of("LeaseTasks"))
    assert outcomes(worker) == {"completed": 12}


async def test_only_registered_workflows_are_asked_for(fake: FakeStore) -> None:
    worker = new_worker(fake, tenants=["acme"], worker_id="w1")
    worker.workflow("report")(lambda ctx, args: "done")
    other = fake.add("unknown")
    mine = fake.add()
    async with worker:
        await fake.ended(mine)
    assert other.attempts == 0
    request = fake.of("LeaseTasks")[0]
    assert [(each.workflow, each.version) for each in request.workflows] == [("report", 1)]
    assert (list(request.tenant_ids), request.worker_id) == (["acme"], "w1")


async def test_a_store_that_is_away_is_asked_ever_less_often(fake: FakeStore) -> None:
    worker = new_worker(fake)
    worker.workflow("report")(lambda ctx, args: "done")
    fake.refuse("LeaseTasks", "STORAGE_UNAVAILABLE", times=7)
    started = time.monotonic()
    task = fake.add()
    async with worker:
        await fake.ended(task)
    # 10 ms, doubling: 0.01 + 0.02 + ... + 0.64, each shortened by up to a half.
    assert time.monotonic() - started > 0.6
    assert worker.registry.get_sample_value("tenure_worker_lease_calls_total", {"outcome": "error"}) == 7


async def test_code_that_holds_the_interpreter_longer_than_its_lease_loses_it_and_writes_nothing(fake: FakeStore) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> str:
        if ctx.attempt == 1:
            ctypes.PyDLL(None).usleep(2_000_000)  # keeps the lock that every thread of Python needs
            await ctx.step("late", lambda: 1)
        return "done"

    worker = new_worker(fake, lease_seconds=1)
    worker.workflow("report")(report)
    task = fake.add()
    async with worker:
        await fake.ended(task)
    assert outcomes(worker) == {"lease_lost": 1, "completed": 1}
    assert (task.steps, writes(fake)) == ([], ["CompleteTask"])


async def test_tasks_that_were_taken_and_lost_before_the_worker_heard_of_them_are_not_begun(fake: FakeStore) -> None:
    begun: list[str] = []

    async def report(ctx: Context, args: dict[str, Any]) -> str:
        begun.append(ctx.task_id)
        return "done"

    worker = new_worker(fake, lease_seconds=10)
    worker.workflow("report")(report)
    fake.lose_answers("LeaseTasks")
    fake.refuse("LeaseTasks", "STORAGE_UNAVAILABLE", times=3)
    mine, lost = fake.add(), fake.add()
    async with worker:
        await fake.until(lambda: lost.state == "LEASED")
        fake.take_away(lost)
        await fake.ended(mine)
    assert begun == [mine.task_id]
    assert outcomes(worker) == {"completed": 1}


async def test_one_line_is_logged_for_each_run_and_no_payload(fake: FakeStore, capfd: pytest.CaptureFixture[str]) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> dict[str, Any]:
        ctx.log.info("from the code")
        return await ctx.step("one", lambda: {"secret": args["secret"]})

    worker = new_worker(fake)
    worker.workflow("report")(report)
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        task = fake.add(data=b'{"secret": "hunter2"}')
        async with worker:
            await fake.ended(task)
    [ended] = [line for line in lines if line["event"] == "task run ended"]
    expected = {
        "task_id": task.task_id,
        "tenant_id": "acme",
        "workflow": "report",
        "version": 1,
        "token": 1,
        "outcome": "completed",
    }
    assert expected.items() <= ended.items()
    assert ended["seconds"] >= 0
    [mine] = [line for line in lines if line["event"] == "from the code"]
    assert (mine["task_id"], mine["tenant_id"]) == (task.task_id, "acme")
    assert "hunter2" not in str(lines) + "".join(capfd.readouterr())


async def test_a_worker_that_loses_its_leases_takes_fewer_and_as_many_again_once_it_keeps_them(fake: FakeStore) -> None:
    is_mended = asyncio.Event()

    async def report(ctx: Context, args: dict[str, Any]) -> str:
        await is_mended.wait()  # or until its lease is lost
        return "done"

    worker = new_worker(fake, lease_seconds=1, concurrency=8)
    worker.workflow("report")(report)
    fake.silence("HeartbeatTasks")
    tasks = [fake.add() for _ in range(8)]
    async with worker:
        async with asyncio.timeout(60):
            while worker.registry.get_sample_value("tenure_worker_allowance") == 8:
                await asyncio.sleep(0.05)
        asked = len(limits(fake))
        async with asyncio.timeout(60):
            while len(limits(fake)) == asked:
                await asyncio.sleep(0.05)
        assert limits(fake)[0] == 8
        assert limits(fake)[-1] <= 4
        fake.mend()
        is_mended.set()
        async with asyncio.timeout(150):
            while worker.registry.get_sample_value("tenure_worker_allowance") != 8:
                tasks.append(fake.add())
                await fake.ended(tasks[-1])


def limits(fake: FakeStore) -> list[int]:
    """How many tasks the worker asked for, each time."""
    with fake.changed:
        return [request.limit for method, request in fake.calls if method == "LeaseTasks"]
