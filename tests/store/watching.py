"""Watches of tasks, as their readers see them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from taskstore.v1 import tasks_pb2, types_pb2

from store_service.operations.watches import WATCH_POLL_SECONDS
from tests.conftest import Stubs
from tests.store.builders import TENANT

WELL_BEFORE_A_POLL = WATCH_POLL_SECONDS - 1.5


class Watch:
    """One watch, whose next answer must come by a hint. It is of these tasks alone, and ends with them."""

    def __init__(self, store: Stubs, *task_ids: str, **fields: Any) -> None:
        self.call = store.tasks.WatchTasks(iter([asking(*task_ids, **fields)]))
        self._answers: AsyncIterator[tasks_pb2.WatchTasksResponse] = aiter(self.call)
        self._items: list[tasks_pb2.WatchTasksResponse.Item] = []

    async def next(self) -> tasks_pb2.WatchTasksResponse.Item:
        """The next answer."""
        if not self._items:
            self._items = list((await asyncio.wait_for(anext(self._answers), timeout=WELL_BEFORE_A_POLL)).items)
        return self._items.pop(0)

    async def state(self) -> str:
        """The state that the next answer tells."""
        return types_pb2.TaskState.Name((await self.next()).task.state).removeprefix("TASK_STATE_")

    async def ends(self) -> None:
        """Nothing more comes, and no error."""
        with pytest.raises(StopAsyncIteration):
            await self.next()
        assert await self.call.code() == grpc.StatusCode.OK


class OpenWatch(Watch):
    """A watch to which tasks may be added, and from which they may be removed."""

    def __init__(self, store: Stubs) -> None:
        self.call = store.tasks.WatchTasks()
        self._answers = aiter(self.call)
        self._items = []

    async def add(self, *task_ids: str, first: int = 1, **fields: Any) -> None:
        """Watches these too, numbered from `first` on."""
        await self.call.write(asking(*task_ids, first=first, **fields))

    async def remove(self, *numbers: int) -> None:
        """Watches these no more."""
        await self.call.write(tasks_pb2.WatchTasksRequest(remove=numbers))

    async def close(self) -> None:
        """Has nothing more to say."""
        await self.call.done_writing()


def asking(*task_ids: str, first: int = 1, **fields: Any) -> tasks_pb2.WatchTasksRequest:
    """A request to watch these tasks, numbered from `first` on."""
    fields.setdefault("tenant_id", TENANT)
    return tasks_pb2.WatchTasksRequest(
        add=[tasks_pb2.WatchedTask(number=number, task_id=task_id, **fields) for number, task_id in enumerate(task_ids, first)]
    )
