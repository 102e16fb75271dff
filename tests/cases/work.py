"""What most trials do: workers that run one function, tasks that come to an end."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from taskstore.v1 import tasks_pb2, types_pb2

from store_service.client import Worker
from tests.bridge.client import TASKS, Client
from tests.conftest import Stubs

TENANT: Final = "dev"
PATIENCE_SECONDS: Final = 60
"""How long something may take that must come, on a busy machine."""


@asynccontextmanager
async def working(address: str, function: Callable[..., Any], **settings: Any) -> AsyncIterator[Worker]:
    """A worker whose tasks of the workflow `work` are this function."""
    retry, worker = settings.pop("retry", None), Worker(address, tenants=[TENANT], **settings)
    worker.workflow("work", retry=retry)(function)
    async with worker:
        yield worker


async def create(user: Client, arguments: Any = None, *, tool: str = "work", capabilities: Any = None) -> str:
    """Creates a task and returns its id."""
    task_id = (await user.call(tool, arguments, capabilities=capabilities or TASKS)).result["taskId"]
    assert isinstance(task_id, str)
    return task_id


async def ended(store: Stubs, task_id: str, *, seconds: float = PATIENCE_SECONDS, tenant: str = TENANT) -> types_pb2.Task:
    """The task once it has ended."""
    wanted = tasks_pb2.WatchedTask(tenant_id=tenant, task_id=task_id, view=types_pb2.TASK_VIEW_OUTCOME)
    async with asyncio.timeout(seconds):
        async for answer in store.tasks.WatchTasks(iter([tasks_pb2.WatchTasksRequest(add=[wanted])])):
            for item in answer.items:
                if item.task.HasField("ended_at"):
                    return item.task
    raise AssertionError("the watch ended before the task")


async def all_tasks(store: Stubs) -> list[types_pb2.Task]:
    """Every task there is."""
    return list((await store.tasks.ListTasks(tasks_pb2.ListTasksRequest(tenant_id=TENANT, page_size=1000))).tasks)


async def shown(user: Client, task_id: str, status: str | None, *, capabilities: Any = TASKS) -> dict[str, Any]:
    """What `tasks/get` answers, once it has this status; None is any."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            answer = await user.task("get", task_id, capabilities=capabilities)
            assert answer.status in (200, 429), answer.body
            if answer.status == 200 and status in (None, answer.result["status"]):
                return answer.result
            await asyncio.sleep(0.01)
