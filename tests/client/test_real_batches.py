"""Single calls that travel together to a real store, and what workers write in the same way."""

import asyncio
import time
from statistics import median
from typing import Any

import asyncpg
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from taskstore.v1 import tasks_pb2, types_pb2

from store_service.client import Context, ProtocolError, StoreError, TaskStore, Worker
from tests.conftest import Stubs
from tests.store.builders import new_task

WRITES = ("AppendCheckpoint", "CompleteTask", "CompleteAndLeaseTasks", "FailTask")


async def test_a_call_that_is_alone_is_as_fast_with_batching_as_without(store: Stubs) -> None:
    async with (
        TaskStore.connect(store.address, batching=True) as batched,
        TaskStore.connect(store.address, batching=False) as single,
    ):
        seconds: dict[int, list[float]] = {0: [], 1: []}
        for _ in range(150):
            for which, client in enumerate((batched, single)):
                started = time.perf_counter()
                await client.create_task(new_task())
                seconds[which].append(time.perf_counter() - started)
    assert median(seconds[0]) < 2 * median(seconds[1])


@pytest.mark.parametrize("batching", [True, False])
async def test_creations_and_reads_at_once_each_get_their_own_answer(store: Stubs, batching: bool) -> None:
    async with TaskStore.connect(store.address, batching=batching) as client:
        requests = [new_task(tenant_id=f"t{number % 7}", data=b"%d" % number) for number in range(60)]
        requests[10].request_id = ""
        again = [requests[number] for number in (5, 20, 5)]
        answers = await asyncio.gather(*(client.create_task(one) for one in requests + again), return_exceptions=True)
        assert [number for number, answer in enumerate(answers) if isinstance(answer, StoreError)] == [10]
        created = [answer for answer in answers if isinstance(answer, tasks_pb2.CreateTaskResponse)]
        assert len({answer.task.task_id for answer in created}) == 59
        full = types_pb2.TASK_VIEW_FULL
        reads = [
            tasks_pb2.GetTaskRequest(tenant_id=answer.task.tenant_id, task_id=answer.task.task_id, view=full)
            for answer in created
        ]
        found = await asyncio.gather(*map(client.get_task, reads))
        assert [int(task.input.data) for task in found] == [*(n for n in range(60) if n != 10), 5, 20, 5]


async def test_a_tenant_that_is_held_up_does_not_hold_up_the_others(
    store: Stubs, database: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store_service.client.batches.SLOW_SECONDS", 0.05)
    async with TaskStore.connect(store.address) as client:
        await client.create_task(new_task(tenant_id="stuck"))
        async with database.transaction():
            await database.execute("SELECT 1 FROM tenure.tenant WHERE tenant_id = 'stuck' FOR UPDATE")
            stuck = asyncio.create_task(client.create_task(new_task(tenant_id="stuck"), timeout_seconds=60))
            await asyncio.sleep(0)
            await asyncio.gather(*(client.create_task(new_task(tenant_id=f"t{number}")) for number in range(5)))
            assert not stuck.done()
        await stuck


@pytest.mark.parametrize("batching", [True, False])
async def test_runs_of_one_worker_end_each_in_its_own_way_and_travel_together(store: Stubs, batching: bool) -> None:
    registry = CollectorRegistry()
    worker = Worker(store.address, concurrency=60, batching=batching, registry=registry)
    all_there = asyncio.Barrier(60)

    @worker.workflow("report")
    async def report(ctx: Context, number: int) -> Any:
        await all_there.wait()
        doubled = await ctx.step("double", lambda: number * 2)
        if number % 10 == 3:
            raise ProtocolError(-32001, f"not {number}")
        return {"doubled": doubled}

    async with TaskStore.connect(store.address) as client:
        created = await asyncio.gather(*(client.create_task(new_task(data=b"%d" % number)) for number in range(60)))
        wanted = [
            tasks_pb2.WatchedTask(tenant_id="acme", task_id=one.task.task_id, view=types_pb2.TASK_VIEW_OUTCOME)
            for one in created
        ]

        async def end(one: tasks_pb2.WatchedTask) -> types_pb2.Task:
            return [seen.task async for seen in client.watch_task(one)][-1]

        async with worker:
            ended = await asyncio.wait_for(asyncio.gather(*map(end, wanted)), 60)
    for number, task in enumerate(ended):
        if number % 10 == 3:
            assert task.error.message == f"not {number}"
        else:
            assert b'"doubled":%d' % (number * 2) in task.result.data
    figures = generate_latest(registry).decode()
    calls = {method: _figure(figures, f'tenure_client_batch_items_count{{method="{method}"}}') for method in WRITES}
    items = {method: _figure(figures, f'tenure_client_batch_items_sum{{method="{method}"}}') for method in WRITES}
    if batching:
        assert items.pop("CompleteTask") + items.pop("CompleteAndLeaseTasks") >= 54  # some again, when the worker is ended
        assert items == {"AppendCheckpoint": 60, "FailTask": 6}
        assert sum(calls.values()) < 60, calls
    else:
        assert not any(items.values())


def _figure(figures: str, line: str) -> float:
    return next((float(each.rpartition(" ")[2]) for each in figures.splitlines() if each.startswith(line)), 0)
