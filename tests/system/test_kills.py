"""What was acknowledged outlives every process: each is killed or stopped in the middle of the work."""

import asyncio
import re
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from taskstore.v1 import tasks_pb2, types_pb2

from mcp_bridge.client import Policy, TaskClient, TaskHandle, ToolResult
from store_service.client import TaskStore
from tests.pair import Pair, Process
from tests.store.builders import new_task
from tests.system.conftest import REPORT_WORKER

PATIENCE_SECONDS = 60


async def call_report(url: str, *, seconds_per_step: float) -> str:
    async with TaskClient(url) as client:
        handle = await client.call_tool_outcome("durable_report", {"seconds_per_step": seconds_per_step})
        assert isinstance(handle, TaskHandle)
        return handle.task_id


async def until(look: Callable[[], Awaitable[Any]], *, pause_seconds: float = 0.1) -> Any:
    """Looks again and again until there is something to see, within bounds."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (seen := await look()):
            await asyncio.sleep(pause_seconds)  # the pause between two looks at another process
        return seen


async def ended(url: str, task_id: str) -> ToolResult:
    async with TaskClient(url, policy=Policy(deadline_seconds=PATIENCE_SECONDS)) as client:
        return await client.wait_task(TaskHandle(task_id, url, "durable_report"))


def behind(
    pair: Pair, task_id: str, view: "types_pb2.TaskView.ValueType" = types_pb2.TASK_VIEW_BASIC
) -> Awaitable[types_pb2.Task]:
    async def read() -> types_pb2.Task:
        async with TaskStore.connect(pair.store_address) as store:
            return await store.get_task(tasks_pb2.GetTaskRequest(tenant_id="dev", task_id=task_id, view=view))

    return read()


async def steps(pair: Pair, task_id: str) -> list[tuple[str, int]]:
    async with TaskStore.connect(pair.store_address) as store:
        answer = await store.list_checkpoints(tasks_pb2.ListCheckpointsRequest(tenant_id="dev", task_id=task_id))
        return [(checkpoint.step, checkpoint.token) for checkpoint in answer.checkpoints]


@pytest.mark.row("T2")
@pytest.mark.must("B-15", "B-16")
async def test_a_handle_given_by_a_killed_bridge_is_good_at_the_next_one(report_pair: Pair) -> None:
    report_pair.start_worker("worker-a", REPORT_WORKER)
    task_id = await call_report(report_pair.url, seconds_per_step=0.1)
    report_pair.bridge.kill()
    await asyncio.to_thread(report_pair.start_bridge)
    result = await ended(report_pair.url, task_id)
    assert result.structured_content["overview"]["rows"] == 344


@pytest.mark.must("T-07", "T-08")
async def test_nothing_acknowledged_is_lost_when_the_store_is_killed(report_pair: Pair) -> None:
    task_ids = [await call_report(report_pair.url, seconds_per_step=0) for _ in range(20)]
    report_pair.store.kill()
    await asyncio.to_thread(report_pair.start_store)
    report_pair.start_worker("worker-a", REPORT_WORKER)
    report_pair.store.kill()
    await asyncio.to_thread(report_pair.start_store)
    for task_id in task_ids:
        assert not (await ended(report_pair.url, task_id)).is_error


async def test_creations_under_way_when_the_store_is_killed_are_made_just_once(report_pair: Pair) -> None:
    items = [new_task(tenant_id="dev", request_id=f"r{number}") for number in range(400)]
    async with TaskStore.connect(report_pair.store_address) as store:

        async def create(request: tasks_pb2.CreateTaskRequest) -> str:
            return (await store.create_task(request, timeout_seconds=PATIENCE_SECONDS)).task.task_id

        first = [asyncio.create_task(create(request)) for request in items[:200]]
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        rest = [asyncio.create_task(create(request)) for request in items[200:]]
        await asyncio.sleep(0)
        report_pair.store.kill()
        await asyncio.to_thread(report_pair.start_store)
        created = await asyncio.gather(*first, *rest)
        assert len(set(created)) == 400
        listed = await store.list_tasks(tasks_pb2.ListTasksRequest(tenant_id="dev", page_size=1000))
        assert {task.task_id for task in listed.tasks} == set(created)


async def test_a_worker_that_was_stopped_past_its_lease_changes_nothing_when_it_goes_on(report_pair: Pair) -> None:
    workers = {name: report_pair.start_worker(name, REPORT_WORKER) for name in ("worker-a", "worker-b")}
    task_id = await call_report(report_pair.url, seconds_per_step=0.5)

    async def in_the_middle() -> str | None:
        task = await behind(report_pair, task_id)
        return task.worker_id if task.checkpoints >= 2 else None

    stopped: Process = workers[await until(in_the_middle)]
    stopped.send(signal.SIGSTOP)
    await ended(report_pair.url, task_id)
    before = await behind(report_pair, task_id, types_pb2.TASK_VIEW_OUTCOME)
    done = await steps(report_pair, task_id)
    assert before.state == types_pb2.TASK_STATE_COMPLETED
    assert before.token == 2
    assert [token for _, token in done] == sorted(token for _, token in done)
    assert {token for _, token in done} == {1, 2}
    assert len({step for step, _ in done}) == len(done) == 7, "each step is done once"

    stopped.send(signal.SIGCONT)

    async def gave_up() -> bool:
        return re.search(r"lease[_ ]lost", stopped.tail(200), re.IGNORECASE) is not None

    await until(gave_up)
    after = await behind(report_pair, task_id, types_pb2.TASK_VIEW_OUTCOME)
    assert after.result.data == before.result.data
    assert after.change == before.change
    assert await steps(report_pair, task_id) == done


async def test_a_killed_worker_is_taken_over_from_the_last_checkpoint(report_pair: Pair) -> None:
    workers = {name: report_pair.start_worker(name, REPORT_WORKER) for name in ("worker-a", "worker-b")}
    task_id = await call_report(report_pair.url, seconds_per_step=0.3)

    async def in_the_middle() -> str | None:
        task = await behind(report_pair, task_id)
        return task.worker_id if task.checkpoints >= 3 else None

    workers[await until(in_the_middle)].kill()
    assert not (await ended(report_pair.url, task_id)).is_error
    done = await steps(report_pair, task_id)
    assert [token for _, token in done][:3] == [1, 1, 1]
    assert done[-1][1] == 2
    assert (await behind(report_pair, task_id)).crashes == 1
