"""A store in memory, which does as it is told, for what the edge of the bridge does by itself."""

import asyncio
from collections.abc import AsyncGenerator
from uuid import UUID, uuid4

from google.protobuf import timestamp_pb2
from taskstore.v1 import tasks_pb2, types_pb2

from store_service.client import StoreError, TaskStore
from store_service.client.task_watch import Snapshot

START_MS = 1_795_953_600_000


class FakeTaskStore(TaskStore):
    """Tasks that end when a test says so, on a clock that a test moves."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.tasks: dict[str, types_pb2.Task] = {}
        self.created: list[tasks_pb2.CreateTaskRequest] = []
        self.read: list[tasks_pb2.GetTaskRequest] = []
        self.cancelled: list[str] = []
        self.answered: list[tasks_pb2.AnswerInputsRequest] = []
        self.attached: list[tuple[str, int]] = []
        self.trouble: Exception | None = None
        self.watching = asyncio.Event()
        """Set once somebody watches."""
        self.heard = asyncio.Event()
        """Set at each attachment."""
        self._requests: dict[str, tasks_pb2.CreateTaskRequest] = {}
        self._ids: dict[str, str] = {}
        self._references: dict[str, str] = {}
        self._reports: dict[str, list[types_pb2.Progress]] = {}
        self._changed = asyncio.Condition()

    async def close(self) -> None:
        """Nothing is open."""

    async def check(self, *, timeout_seconds: float = 2) -> bool:
        """As grpc.health.v1."""
        self._stumble()
        return True

    async def create_task(
        self, request: tasks_pb2.CreateTaskRequest, *, timeout_seconds: float = 10
    ) -> tasks_pb2.CreateTaskResponse:
        """As TaskService.CreateTask; the same content has the same digest."""
        self._stumble()
        key = f"{request.tenant_id} {request.request_id}"
        if key in self._ids:
            first = self._requests[key]
            if first.content_digest != request.content_digest:
                raise StoreError("used before", reason="REQUEST_ID_CONFLICT")
            return tasks_pb2.CreateTaskResponse(task=self._shown(self._ids[key]), replayed=True)
        self.created.append(request)
        task = types_pb2.Task(
            tenant_id=request.tenant_id,
            task_id=str(uuid4()),
            state=types_pb2.TASK_STATE_QUEUED,
            contract=request.contract,
            created_at=self._now(),
            changed_at=self._now(),
        )
        self.tasks[task.task_id] = task
        self._requests[key], self._ids[key] = request, task.task_id
        self._references[task.task_id] = request.reference
        return tasks_pb2.CreateTaskResponse(task=self._shown(task.task_id))

    async def get_task(self, request: tasks_pb2.GetTaskRequest, *, timeout_seconds: float = 10) -> types_pb2.Task:
        """As TaskService.GetTask."""
        self.read.append(request)
        self._stumble()
        owner = request.owner if request.HasField("owner") else None
        return self._find(request.tenant_id, request.task_id, owner, request.view)

    async def find_task(self, request: tasks_pb2.FindTaskRequest, *, timeout_seconds: float = 10) -> types_pb2.Task:
        """As TaskService.FindTask."""
        self._stumble()
        for task in reversed(self.tasks.values()):
            if self._references.get(task.task_id) == request.reference:
                return self._find(request.tenant_id, task.task_id, request.owner)
        raise StoreError("no such task", reason="TASK_NOT_FOUND")

    async def cancel_task(
        self, request: tasks_pb2.CancelTaskRequest, *, timeout_seconds: float = 10
    ) -> tasks_pb2.CancelTaskResponse:
        """As TaskService.CancelTask; the wish is granted at once."""
        self._stumble()
        task = self.tasks[self._find(request.tenant_id, request.task_id, request.owner).task_id]
        if task.HasField("ended_at"):
            return tasks_pb2.CancelTaskResponse(outcome=tasks_pb2.CANCEL_OUTCOME_ALREADY_TERMINAL)
        self.cancelled.append(task.task_id)
        await self._end(task, types_pb2.TASK_STATE_CANCELLED)
        return tasks_pb2.CancelTaskResponse(outcome=tasks_pb2.CANCEL_OUTCOME_CANCELLED)

    async def answer_inputs(
        self, request: tasks_pb2.AnswerInputsRequest, *, timeout_seconds: float = 10
    ) -> tasks_pb2.AnswerInputsResponse:
        """As TaskService.AnswerInputs; it is only noted."""
        self._stumble()
        self._find(request.tenant_id, request.task_id, request.owner)
        self.answered.append(request)
        return tasks_pb2.AnswerInputsResponse()

    async def attach_task(self, request: tasks_pb2.AttachTaskRequest, *, timeout_seconds: float = 10) -> None:
        """As TaskService.AttachTask; it is only noted."""
        self._stumble()
        self.attached.append((request.task_id, request.abandon_after_ms))
        self.heard.set()

    async def watch_task(self, wanted: tasks_pb2.WatchedTask, *, known_change: int = 0) -> AsyncGenerator[Snapshot, None]:
        """As TaskStore.watch_task."""
        seen, reported = known_change or -1, 0
        while True:
            task = self._find(wanted.tenant_id, wanted.task_id, wanted.owner, wanted.view)
            if task.change > seen:
                seen = task.change
                reports = self._reports.get(task.task_id, [])[reported:]
                reported += len(reports)
                yield Snapshot(task, reports)
            if task.HasField("ended_at"):
                return
            async with self._changed:
                self.watching.set()
                while self.tasks[wanted.task_id].change <= seen:
                    await self._changed.wait()

    async def complete(self, task_id: str, result: bytes, media_type: str = "") -> None:
        """The worker hands over its result."""
        task = self.tasks[task_id]
        task.result.data, task.result.media_type = result, media_type
        await self._end(task, types_pb2.TASK_STATE_COMPLETED)

    async def fail(self, task_id: str, code: int, message: str, data: bytes = b"") -> None:
        """The worker fails."""
        task = self.tasks[task_id]
        task.error.code, task.error.message = code, message
        if data:
            task.error.data.data = data
        await self._end(task, types_pb2.TASK_STATE_FAILED)

    async def ask(self, task_id: str, key: str, params: bytes, method: str = "elicitation/create") -> None:
        """The worker asks one question more."""
        task = self.tasks[task_id]
        task.state = types_pb2.TASK_STATE_WAITING
        task.wait.input.requests.add(key=key, method=method, params=types_pb2.Payload(data=params))
        await self._change(task)

    async def report(self, task_id: str, value: float, total: float | None = None, message: str = "") -> None:
        """The worker reports how far it is."""
        task = self.tasks[task_id]
        sequence = task.progress.sequence + 1
        task.progress.CopyFrom(types_pb2.Progress(sequence=sequence, value=value, total=total, message=message))
        self._reports.setdefault(task_id, []).append(task.progress)
        await self._change(task)

    async def _change(self, task: types_pb2.Task) -> None:
        task.change += 1
        task.changed_at.CopyFrom(self._now())
        async with self._changed:
            self._changed.notify_all()

    async def _end(self, task: types_pb2.Task, state: types_pb2.TaskState.ValueType) -> None:
        task.state = state
        task.ClearField("wait")
        task.ended_at.CopyFrom(self._now())
        task.handle_expires_at.FromMilliseconds(self.now_ms + task.contract.ttl_ms)
        await self._change(task)

    def _find(
        self,
        tenant_id: str,
        task_id: str,
        owner: types_pb2.Owner | None,
        view: types_pb2.TaskView.ValueType = types_pb2.TASK_VIEW_BASIC,
    ) -> types_pb2.Task:
        try:
            is_formed = str(UUID(task_id)) == task_id
        except ValueError:
            is_formed = False
        if not is_formed:
            raise StoreError("task_id must be a UUID", reason="INVALID_INPUT")
        task = self.tasks.get(task_id)
        if task is None or task.tenant_id != tenant_id or (owner is not None and task.contract.owner != owner):
            raise StoreError("no such task", reason="TASK_NOT_FOUND")
        return self._shown(task_id, view)

    def _shown(self, task_id: str, view: types_pb2.TaskView.ValueType = types_pb2.TASK_VIEW_BASIC) -> types_pb2.Task:
        shown = types_pb2.Task()
        shown.CopyFrom(self.tasks[task_id])
        shown.read_at.CopyFrom(self._now())
        if view < types_pb2.TASK_VIEW_OUTCOME:
            shown.ClearField("outcome")
        return shown

    def _now(self) -> timestamp_pb2.Timestamp:
        now = timestamp_pb2.Timestamp()
        now.FromMilliseconds(self.now_ms)
        return now

    def _stumble(self) -> None:
        if self.trouble is not None:
            raise self.trouble
