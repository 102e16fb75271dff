"""The client of TaskService: create tasks, read them, watch them, wish their end."""

import asyncio
import random
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any, Final, Self

import grpc
import grpc.aio
from prometheus_client import CollectorRegistry
from taskstore.v1 import tasks_pb2, tasks_pb2_grpc, types_pb2

from store_service.client.batches import Batcher, BatchMetrics, Together
from store_service.client.calls import Method, Request, Response, call
from store_service.client.channel import open_channel
from store_service.client.errors import from_rpc_error, from_status

_TERMINAL: Final = frozenset((types_pb2.TASK_STATE_COMPLETED, types_pb2.TASK_STATE_FAILED, types_pb2.TASK_STATE_CANCELLED))
_WATCH_SECONDS: Final = 600.0  # after so long a watch is opened anew, which its reader does not see
_LONGEST_BACKOFF_SECONDS: Final = 5.0


class TaskStore:
    """The store as its callers see it, with the messages of `taskstore.v1` as they are.

    Every call has a deadline. A call that failed on its way is repeated with the same ids until its deadline, as
    every one of them may be repeated; with `retry_seconds`, for no longer than that. Refusals and failures are raised as
    StoreError. Creations and reads that are asked for at once travel together, see Batcher, unless `batching` is off.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        retry_seconds: float | None = None,
        batching: bool = True,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self._channel = channel
        self._retry_seconds = retry_seconds
        self._stub = stub = tasks_pb2_grpc.TaskServiceStub(channel)
        self._create_task: Method[tasks_pb2.CreateTaskRequest, tasks_pb2.CreateTaskResponse] = stub.CreateTask
        self._get_task: Method[tasks_pb2.GetTaskRequest, types_pb2.Task] = _reading(stub)
        self._batchers: list[Batcher[Any, Any]] = []
        if batching:
            metrics = BatchMetrics(registry or CollectorRegistry())
            create = Together[tasks_pb2.CreateTaskRequest, tasks_pb2.CreateTaskResponse](
                stub.CreateTasks, lambda items: tasks_pb2.CreateTasksRequest(items=items), _created
            )
            read = Together[tasks_pb2.GetTaskRequest, types_pb2.Task](
                stub.GetTasks, lambda items: tasks_pb2.GetTasksRequest(items=items), _found
            )
            self._create_task = creations = Batcher("CreateTask", self._create_task, create, metrics)
            self._get_task = reads = Batcher("GetTask", self._get_task, read, metrics)
            self._batchers = [creations, reads]

    @classmethod
    def connect(
        cls,
        address: str,
        *,
        retry_seconds: float | None = None,
        batching: bool = True,
        registry: CollectorRegistry | None = None,
    ) -> Self:
        """A client for the running event loop, its figures in `registry`. It connects at the first call, and again
        whenever it must."""
        return cls(open_channel(address), retry_seconds=retry_seconds, batching=batching, registry=registry)

    async def close(self) -> None:
        """Gives the connection back. Calls under way end with an error."""
        for batcher in self._batchers:
            batcher.close()
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def create_task(
        self, request: tasks_pb2.CreateTaskRequest, *, timeout_seconds: float = 10
    ) -> tasks_pb2.CreateTaskResponse:
        """Creates one task, or finds the one that the same request id created before."""
        return await self._call(self._create_task, request, timeout_seconds)

    async def get_task(self, request: tasks_pb2.GetTaskRequest, *, timeout_seconds: float = 10) -> types_pb2.Task:
        """Reads one task as it stands."""
        return await self._call(self._get_task, request, timeout_seconds)

    async def list_tasks(
        self, request: tasks_pb2.ListTasksRequest, *, timeout_seconds: float = 10
    ) -> tasks_pb2.ListTasksResponse:
        """Reads one page of a tenant's tasks, newest first."""
        return await self._call(self._stub.ListTasks, request, timeout_seconds)

    async def cancel_task(
        self, request: tasks_pb2.CancelTaskRequest, *, timeout_seconds: float = 10
    ) -> tasks_pb2.CancelTaskResponse:
        """Records the wish that a task ends, or ends it."""
        return await self._call(self._stub.CancelTask, request, timeout_seconds)

    async def answer_inputs(
        self, request: tasks_pb2.AnswerInputsRequest, *, timeout_seconds: float = 10
    ) -> tasks_pb2.AnswerInputsResponse:
        """Answers open questions of a task. An answer repeated is ignored, and so tells nothing of the first try."""
        return await self._call(self._stub.AnswerInputs, request, timeout_seconds)

    async def publish_signal(
        self, request: tasks_pb2.PublishSignalRequest, *, timeout_seconds: float = 10
    ) -> tasks_pb2.PublishSignalResponse:
        """Sends a signal to a task, or finds that the same signal id did before."""
        return await self._call(self._stub.PublishSignal, request, timeout_seconds)

    async def get_signal(
        self, request: tasks_pb2.GetSignalRequest, *, timeout_seconds: float = 10
    ) -> tasks_pb2.GetSignalResponse:
        """Reads where a signal stands."""
        return await self._call(self._stub.GetSignal, request, timeout_seconds)

    async def fork_task(self, request: tasks_pb2.ForkTaskRequest, *, timeout_seconds: float = 10) -> tasks_pb2.ForkTaskResponse:
        """Creates a task that starts with the first checkpoints of another."""
        return await self._call(self._stub.ForkTask, request, timeout_seconds)

    async def attach_task(self, request: tasks_pb2.AttachTaskRequest, *, timeout_seconds: float = 10) -> None:
        """Says that somebody still waits for a task."""
        await self._call(self._stub.AttachTask, request, timeout_seconds)

    async def list_task_history(
        self, request: tasks_pb2.ListTaskHistoryRequest, *, timeout_seconds: float = 10
    ) -> tasks_pb2.ListTaskHistoryResponse:
        """Reads one page of what happened to a task, oldest first."""
        return await self._call(self._stub.ListTaskHistory, request, timeout_seconds)

    async def list_checkpoints(
        self, request: tasks_pb2.ListCheckpointsRequest, *, timeout_seconds: float = 10
    ) -> tasks_pb2.ListCheckpointsResponse:
        """Reads one page of a task's checkpoints, oldest first, in any state."""
        return await self._call(self._stub.ListCheckpoints, request, timeout_seconds)

    async def watch_tasks(self, request: tasks_pb2.WatchTasksRequest) -> AsyncGenerator[tasks_pb2.WatchTasksResponse, None]:
        """Yields each task as it stands, then whenever it visibly changed, until all have ended.

        While the store is away it connects again, with backoff, for as long as its reader reads; the reader sees no
        snapshot and no report twice. A task that is not found is told once, as `refused`. Close the iterator to stop
        (`contextlib.aclosing`). Raises StoreError when the whole watch is refused.
        """
        watched = _Watched(request)
        failures = 0
        while watched.pending:
            stream = self._stub.WatchTasks(watched.request(), timeout=_WATCH_SECONDS)
            try:
                async for answer in stream:
                    failures = 0
                    if watched.is_news(answer):
                        yield answer
                    if not watched.pending:
                        return
            except grpc.RpcError as error:
                refusal = from_rpc_error(error)
                if not refusal.is_transient:
                    raise refusal from None
            finally:
                stream.cancel()
            if watched.pending:
                failures += 1
                await asyncio.sleep(_jitter_seconds(failures))

    async def _call(self, method: Method[Request, Response], request: Request, timeout_seconds: float) -> Response:
        return await call(method, request, timeout_seconds=timeout_seconds, retry_seconds=self._retry_seconds)


def _reading(stub: "tasks_pb2_grpc.TaskServiceAsyncStub") -> Method[tasks_pb2.GetTaskRequest, types_pb2.Task]:
    async def read(request: tasks_pb2.GetTaskRequest, /, *, timeout: float) -> types_pb2.Task:  # noqa: ASYNC109 (of gRPC)
        return (await stub.GetTask(request, timeout=timeout)).task

    return read


def _created(item: tasks_pb2.CreateTasksResponse.Item) -> tasks_pb2.CreateTaskResponse:
    return item.created


def _found(item: tasks_pb2.GetTasksResponse.Item) -> types_pb2.Task:
    return item.task


class _Watched:
    """What the reader of one watch has seen, so that a new connection goes on where the last one ended."""

    def __init__(self, request: tasks_pb2.WatchTasksRequest) -> None:
        self._request = request
        self._changes: dict[str, int] = {}
        self._reports: dict[str, int] = {}
        self.pending = dict.fromkeys(request.task_ids)

    def request(self) -> tasks_pb2.WatchTasksRequest:
        """Asks for the tasks that have not ended yet."""
        request = tasks_pb2.WatchTasksRequest()
        request.CopyFrom(self._request)
        request.task_ids[:] = self.pending
        return request

    def is_news(self, answer: tasks_pb2.WatchTasksResponse) -> bool:
        """Whether the reader has not seen this yet."""
        if answer.task_id not in self.pending:
            return False
        if answer.HasField("refused"):
            # Refused for now only: the server cannot read it at this moment.
            if from_status(answer.refused).is_transient:
                return False
            del self.pending[answer.task_id]
            return True
        self._drop_reports_seen(answer)
        if answer.task.state in _TERMINAL:
            del self.pending[answer.task_id]
            return True
        is_news = answer.task.change > self._changes.get(answer.task_id, -1)
        self._changes[answer.task_id] = max(answer.task.change, self._changes.get(answer.task_id, -1))
        return is_news

    def _drop_reports_seen(self, answer: tasks_pb2.WatchTasksResponse) -> None:
        last = self._reports.get(answer.task_id, 0)
        while answer.reports and answer.reports[0].sequence <= last:
            del answer.reports[0]
        if answer.reports:
            self._reports[answer.task_id] = answer.reports[-1].sequence


def _jitter_seconds(failures: int) -> float:
    longest = min(_LONGEST_BACKOFF_SECONDS, 0.05 * 2 ** min(failures, 10))
    return random.uniform(0, longest)  # noqa: S311 (spreads clients out; nothing secret)
