"""A defect of the library itself costs a task its time, and never a worker that looks as if it were well."""

import asyncio
import threading
from typing import Any

import pytest
import structlog
from taskstore.v1 import tasks_pb2, types_pb2

from store_service.client import Context, SyncContext, TaskStore
from store_service.client.heartbeats import Heartbeats
from store_service.client.leasing import Leasing
from store_service.client.runner import Run
from store_service.client.task_watch import TaskWatch
from tests.client.fake_store import FakeStore, new_worker, outcomes
from tests.client.fake_tasks import SILENCE, FakeTasks, snapshot

PATIENCE_SECONDS = 60


def fails_once(monkeypatch: pytest.MonkeyPatch, of: type[Any], name: str) -> list[str]:
    """The first call of a method fails, as none should. Returns what has failed."""
    whole = getattr(of, name)
    failed: list[str] = []

    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        if not failed:
            failed.append(name)
            raise RuntimeError("a defect")
        return whole(self, *arguments, **named)

    monkeypatch.setattr(of, name, method)
    return failed


@pytest.mark.parametrize(("of", "name"), [(Leasing, "take"), (Run, "begin"), (Heartbeats, "_beat")])
async def test_a_worker_goes_on_and_says_what_was_wrong(
    fake: FakeStore, monkeypatch: pytest.MonkeyPatch, of: type[Any], name: str
) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> str:
        await fake.until(lambda: task.heartbeats >= 2)
        return "done"

    failed = fails_once(monkeypatch, of, name)
    worker = new_worker(fake, lease_seconds=3)
    worker.workflow("report")(report)
    task = fake.add()
    with structlog.testing.capture_logs() as lines:
        async with worker:
            await fake.ended(task)
            await fake.until(lambda: outcomes(worker))
    assert failed == [name]
    assert outcomes(worker) == {"completed": 1}
    assert task.attempts == (2 if name == "begin" else 1)
    assert [line["log_level"] for line in lines if line.get("exc_info")] == ["error"]


async def test_where_no_thread_can_be_started_the_run_fails_and_leaves_nothing_behind(
    fake: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def report(ctx: SyncContext, args: dict[str, Any]) -> str:
        return "done"

    start = threading.Thread.start
    failed: list[str] = []

    def start_or_fail(self: threading.Thread) -> None:
        if self.name == "user-code" and not failed:
            failed.append(self.name)
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", start_or_fail)
    worker = new_worker(fake, concurrency=1)
    worker.workflow("report")(report)
    task = fake.add()
    async with worker:
        await fake.ended(task)
        await fake.until(lambda: len(outcomes(worker)) == 2)
    assert outcomes(worker) == {"retried": 1, "completed": 1}


async def test_a_watch_that_met_what_it_should_not_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = fails_once(monkeypatch, TaskWatch, "_receive")
    ended = snapshot("t", change=2, state=types_pb2.TASK_STATE_COMPLETED)
    with FakeTasks().serve() as scripted, structlog.testing.capture_logs() as lines:
        scripted.answers["WatchTasks"].extend([[snapshot("t", change=1), SILENCE], [ended]])
        async with TaskStore.connect(scripted.address) as client:
            watch = client.watch_task(tasks_pb2.WatchedTask(tenant_id="acme", task_id="t"))
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert [seen.task.change async for seen in watch] == [2]
    assert failed
    assert [line["event"] for line in lines] == ["task_watch_failed"]
