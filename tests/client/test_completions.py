"""Completions: few travel with the next call for work, many at once by calls of their own."""

import asyncio
from typing import Any

import asyncpg
import pytest

from store_service.client import Context, TaskStore, Worker
from store_service.client.completions import MANY, MOST_APART
from tests.client.fake_store import FakeStore, FakeTask, new_worker, outcomes
from tests.client.gate import Gate, gated
from tests.conftest import Stubs
from tests.store.builders import new_task

pytestmark = pytest.mark.batching("it is about completions that travel together")


def sizes(fake: FakeStore) -> list[int]:
    return [len(request.items) for request in fake.of("CompleteTasks")]


async def started(fake: FakeStore, gate: Gate, tasks: list[FakeTask]) -> None:
    await fake.until(lambda: gate.running == len(tasks) and fake.of("LeaseTasks")[-1].limit > 0)


async def test_many_that_end_at_once_are_written_by_calls_of_their_own(fake: FakeStore) -> None:
    worker, gate = gated(fake, concurrency=500)
    tasks = [fake.add() for _ in range(2 * MOST_APART - 1)]
    async with worker:
        await started(fake, gate, tasks)
        gate.opened.set()  # a call for work waits meanwhile
        await fake.ended(*tasks)
        assert sorted(sizes(fake)) == [249, 250]
        assert not fake.of("CompleteTask")
    assert outcomes(worker) == {"completed": len(tasks)}


async def test_few_travel_with_the_next_call_for_work(fake: FakeStore) -> None:
    worker, gate = gated(fake, concurrency=MANY - 1)
    tasks = [fake.add() for _ in range(MANY - 1)]
    async with worker:
        await started(fake, gate, tasks)
        gate.opened.set()
        await fake.ended(*tasks)
    assert fake.of("CompleteAndLeaseTasks")
    assert not fake.of("CompleteTasks")


async def test_what_ends_at_once_is_written_by_the_next_call_for_work_and_not_behind_it(fake: FakeStore) -> None:
    worker = new_worker(fake, lease_seconds=60.0)
    worker.workflow("report")(end_at_once)
    task = fake.add()
    async with worker:
        await fake.ended(task)
        await fake.until(lambda: len(fake.of("LeaseTasks")) == 2)
        with fake.changed:
            calls = [name for name, _ in fake.calls if "Lease" in name or "Complete" in name]
    assert [name for name in calls if name != "WatchLeases"] == ["LeaseTasks", "CompleteAndLeaseTasks", "LeaseTasks"]


async def test_the_next_work_is_taken_while_many_completions_are_under_way_and_never_too_much(
    fake: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = new_worker(fake, lease_seconds=60.0, concurrency=500)
    worker.workflow("report")(end_at_once)
    tasks = [fake.add() for _ in range(2_500)]
    lease_tasks, held = fake.memory.lease_tasks, []

    def count(request: Any) -> Any:
        answer = lease_tasks(request)
        held.append(sum(task.state == "LEASED" for task in tasks))
        return answer

    monkeypatch.setattr(fake.memory, "lease_tasks", count)
    async with worker:
        await fake.ended(*tasks)
    assert max(held) <= 500
    assert sizes(fake)
    assert all(task.attempts == 1 for task in tasks)


async def end_at_once(ctx: Context, args: Any) -> str:
    return "done"


async def test_the_next_call_for_work_sets_out_before_all_that_was_taken_is_begun(fake: FakeStore) -> None:
    worker, gate = gated(fake, concurrency=200)
    tasks = [fake.add() for _ in range(100)]
    begun: list[int] = []
    async with worker:
        lease_tasks = worker._stub.LeaseTasks

        def ask(*arguments: Any, **named: Any) -> Any:
            begun.append(len(worker._running))
            return lease_tasks(*arguments, **named)

        worker._stub.LeaseTasks = ask  # type: ignore[assignment]
        await started(fake, gate, tasks)
        gate.opened.set()
        await fake.ended(*tasks)
    assert begun[:2] == [0, 25]
    assert [request.limit for request in fake.of("LeaseTasks")][:2] == [200, 100]


async def test_what_was_taken_and_not_begun_is_begun_before_the_worker_ends(
    fake: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store_service.client.worker._BEGUN_AT_ONCE", 1)
    worker = new_worker(fake, concurrency=100)
    tasks = [fake.add() for _ in range(100)]

    @worker.workflow("report")
    async def report(ctx: Context, args: Any) -> str:
        if not worker._stop_wished.is_set():
            worker.stop()
        return "done"

    await asyncio.wait_for(worker.serve(), 30)
    assert {task.state for task in tasks} == {"COMPLETED"}
    assert outcomes(worker) == {"completed": 100}


async def test_one_that_is_refused_spoils_no_other(fake: FakeStore) -> None:
    worker, gate = gated(fake, concurrency=2 * MANY + 1)
    tasks = [fake.add() for _ in range(2 * MANY)]
    async with worker:
        await started(fake, gate, tasks)
        fake.take_away(tasks[7])
        gate.opened.set()
        await fake.ended(*tasks[:7], *tasks[8:])
        await fake.until(lambda: sum(outcomes(worker).values()) == len(tasks))
    assert outcomes(worker) == {"completed": len(tasks) - 1, "lease_lost": 1}


async def test_completions_whose_answer_was_lost_are_written_again_each(fake: FakeStore) -> None:
    worker, gate = gated(fake, concurrency=2 * MANY + 1)
    tasks = [fake.add() for _ in range(2 * MANY)]
    fake.lose_answers("CompleteTasks")
    async with worker:
        await started(fake, gate, tasks)
        gate.opened.set()
        await fake.until(lambda: sum(outcomes(worker).values()) == len(tasks))
    assert outcomes(worker) == {"completed": len(tasks)}
    assert all(task.attempts == 1 for task in tasks)


async def test_a_worker_that_is_ended_waits_for_completions_under_way(fake: FakeStore) -> None:
    worker, gate = gated(fake, concurrency=MANY + 1)
    tasks = [fake.add() for _ in range(MANY)]
    answered = asyncio.Event()
    fake.hold_answer("CompleteTasks", answered.is_set)
    serving = asyncio.create_task(worker.serve())
    await started(fake, gate, tasks)
    gate.opened.set()
    await fake.until(lambda: fake.of("CompleteTasks"))
    worker.stop()
    answered.set()
    await asyncio.wait_for(serving, 20)
    assert outcomes(worker) == {"completed": len(tasks)}
    assert len(fake.of("CompleteTasks")) == 1


async def test_completions_that_are_not_answered_hold_no_worker_up_that_is_ended(fake: FakeStore) -> None:
    worker, gate = gated(fake, concurrency=2 * MANY + 1, drain_seconds=0.1)
    tasks = [fake.add() for _ in range(2 * MANY)]
    fake.silence("CompleteTasks", times=1)
    serving = asyncio.create_task(worker.serve())
    await started(fake, gate, tasks)
    gate.opened.set()
    await fake.until(lambda: fake.of("CompleteTasks"))
    worker.stop()
    await asyncio.wait_for(serving, 20)
    assert outcomes(worker) == {"completed": len(tasks)}


async def test_a_tenant_that_is_held_up_does_not_keep_the_completions_of_others(
    store: Stubs, database: asyncpg.Connection
) -> None:
    worker, gate = Worker(store.address, concurrency=2 * MANY + 1), Gate()
    worker.workflow("report")(gate.__call__)
    async with TaskStore.connect(store.address) as client:
        tenants = ["stuck", *(f"t{number % 5}" for number in range(2 * MANY))]
        await asyncio.gather(*(client.create_task(new_task(tenant_id=tenant)) for tenant in tenants))
        async with worker:
            await gate.until_running(len(tenants), seconds=30)
            async with database.transaction():
                await database.execute("SELECT 1 FROM tenure.tenant WHERE tenant_id = 'stuck' FOR UPDATE")
                gate.opened.set()
                async with asyncio.timeout(30):
                    while sum(outcomes(worker).values()) < len(tenants) - 1:
                        await asyncio.sleep(0.01)
                assert sum(outcomes(worker).values()) == len(tenants) - 1
        assert outcomes(worker) == {"completed": len(tenants)}
