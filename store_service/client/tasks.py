"""The client of TaskService: create tasks, read them, watch them, wish their end."""

from collections.abc import AsyncGenerator, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry
from taskstore.v1 import tasks_pb2, tasks_pb2_grpc, types_pb2

from store_service.client.batches import Batcher, BatchMetrics, Together
from store_service.client.calls import Method, Request, Response, call
from store_service.client.channel import HEALTH_OF, open_channel
from store_service.client.task_watch import TERMINAL, Following, Snapshot, SnapshotReader, TaskWatch, Told
from store_service.client.tls import Tls


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
        batch_metrics: BatchMetrics | None = None,
    ) -> None:
        self._channel = channel
        self._retry_seconds = retry_seconds
        self._stub = stub = tasks_pb2_grpc.TaskServiceStub(channel)
        self._health = health_pb2_grpc.HealthStub(channel)
        self._watch = TaskWatch(stub)
        self._create_task: Method[tasks_pb2.CreateTaskRequest, tasks_pb2.CreateTaskResponse] = stub.CreateTask
        self._get_task: Method[tasks_pb2.GetTaskRequest, types_pb2.Task] = _reading(stub)
        self._batchers: list[Batcher[Any, Any]] = []
        if batching:
            metrics = batch_metrics or BatchMetrics(CollectorRegistry())
            create = Together[tasks_pb2.CreateTaskRequest, tasks_pb2.CreateTaskResponse](
                stub.CreateTasks, lambda items: tasks_pb2.CreateTasksRequest(items=items), _created, _tenant_of
            )
            read = Together[tasks_pb2.GetTaskRequest, types_pb2.Task](
                stub.GetTasks, lambda items: tasks_pb2.GetTasksRequest(items=items), _found, _tenant_of
            )
            self._create_task = creations = Batcher("CreateTask", self._create_task, create, metrics)
            self._get_task = reads = Batcher("GetTask", self._get_task, read, metrics)
            self._batchers = [creations, reads]

    @classmethod
    def connect(
        cls,
        address: str,
        *,
        tls: Tls | None = None,
        retry_seconds: float | None = None,
        batching: bool = True,
        batch_metrics: BatchMetrics | None = None,
        interceptors: Sequence[grpc.aio.ClientInterceptor] = (),
    ) -> Self:
        """A client for the running event loop, its figures in `batch_metrics`, which clients may share, and its spans where
        those have traces. It connects at the first call, and again whenever it must. Without `tls` the connection is not
        encrypted, and the store asks nobody who he is."""
        traces = None if batch_metrics is None else batch_metrics.traces
        channel = open_channel(address, tls, interceptors=interceptors, traces=traces)
        return cls(channel, retry_seconds=retry_seconds, batching=batching, batch_metrics=batch_metrics)

    async def close(self) -> None:
        """Gives the connection back. Calls under way end with an error."""
        for batcher in self._batchers:
            batcher.close()
        await self._watch.close()
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def check(self, *, timeout_seconds: float = 2) -> bool:
        """Whether the store that is reached serves, or is about to stop. It asks no database. Raises StoreError when none is
        reached."""
        request = health_pb2.HealthCheckRequest(service=HEALTH_OF)
        response = await call(self._health.Check, request, timeout_seconds=timeout_seconds)
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)

    def create_task(
        self, request: tasks_pb2.CreateTaskRequest, *, timeout_seconds: float = 10
    ) -> Coroutine[object, object, tasks_pb2.CreateTaskResponse]:
        """Creates one task, or finds the one that the same request id created before."""
        return call(self._create_task, request, timeout_seconds=timeout_seconds, retry_seconds=self._retry_seconds)

    def get_task(
        self, request: tasks_pb2.GetTaskRequest, *, timeout_seconds: float = 10
    ) -> Coroutine[object, object, types_pb2.Task]:
        """Reads one task as it stands."""
        return call(self._get_task, request, timeout_seconds=timeout_seconds, retry_seconds=self._retry_seconds)

    async def find_task(self, request: tasks_pb2.FindTaskRequest, *, timeout_seconds: float = 10) -> types_pb2.Task:
        """Reads the task that was created last under a reference."""
        response = await self._call(self._stub.FindTask, request, timeout_seconds)
        return response.task

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

    async def list_signals(
        self, request: tasks_pb2.ListSignalsRequest, *, timeout_seconds: float = 10
    ) -> tasks_pb2.ListSignalsResponse:
        """Reads one page of a tenant's signals, newest first: dead letters, and what waits."""
        return await self._call(self._stub.ListSignals, request, timeout_seconds)

    async def fork_task(self, request: tasks_pb2.ForkTaskRequest, *, timeout_seconds: float = 10) -> tasks_pb2.ForkTaskResponse:
        """Creates a task that starts with the first checkpoints of another."""
        return await self._call(self._stub.ForkTask, request, timeout_seconds)

    async def explain_task(
        self, request: tasks_pb2.ExplainTaskRequest, *, timeout_seconds: float = 10
    ) -> tasks_pb2.ExplainTaskResponse:
        """Reads why a task is where it is."""
        return await self._call(self._stub.ExplainTask, request, timeout_seconds)

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

    def follow_task(self, wanted: tasks_pb2.WatchedTask, told: Told) -> Following:
        """Calls `told` with the task as it stands, then whenever it visibly changed, until it has ended. See `TaskWatch`.

        All that is followed by one client travels over one stream. Close what is returned to stop.
        """
        return self._watch.follow(wanted, told)

    async def watch_task(self, wanted: tasks_pb2.WatchedTask, *, known_change: int = 0) -> AsyncGenerator[Snapshot, None]:
        """Yields the task as it stands, unless that change is known, then whenever it visibly changed, until it has ended.

        While the store is away it waits. A slow reader skips snapshots in between, never the last, and no report twice.
        Close the iterator to stop (`contextlib.aclosing`). Raises StoreError when there is no such task.
        """
        reader = SnapshotReader()
        following = self._watch.follow(wanted, reader.told, known_change=known_change)
        try:
            while True:
                snapshot = await reader.next()
                yield snapshot
                if snapshot.task.state in TERMINAL:
                    return
        finally:
            following.close()

    async def _call(self, method: Method[Request, Response], request: Request, timeout_seconds: float) -> Response:
        return await call(method, request, timeout_seconds=timeout_seconds, retry_seconds=self._retry_seconds)


def _reading(stub: "tasks_pb2_grpc.TaskServiceAsyncStub") -> Method[tasks_pb2.GetTaskRequest, types_pb2.Task]:
    async def read(request: tasks_pb2.GetTaskRequest, /, *, timeout: float) -> types_pb2.Task:  # noqa: ASYNC109 (of gRPC)
        return (await stub.GetTask(request, timeout=timeout)).task

    return read


def _tenant_of(request: tasks_pb2.CreateTaskRequest | tasks_pb2.GetTaskRequest) -> str:
    return request.tenant_id


def _created(item: tasks_pb2.CreateTasksResponse.Item) -> tasks_pb2.CreateTaskResponse:
    return item.created


def _found(item: tasks_pb2.GetTasksResponse.Item) -> types_pb2.Task:
    return item.task
