"""TaskService."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from taskstore.v1 import tasks_pb2, tasks_pb2_grpc

from store_service.model import limits
from store_service.model.limits import check_name, check_page, check_range, check_task_id, check_text
from store_service.model.refusals import Refusal
from store_service.model.tasks import TaskFilter, TaskRef
from store_service.model.waits import SignalFilter, SignalState
from store_service.operations.explanations import Explanations
from store_service.operations.tasks import Tasks
from store_service.operations.waits import Waits
from store_service.operations.watches import News, Watch, Watches
from store_service.rpc import reading, writing
from store_service.rpc.calls import run_each
from store_service.rpc.guard import Admitted
from store_service.rpc.status import to_status

Context = grpc.aio.ServicerContext[Any, Any]
_INT31 = range(2**31)


class TaskService(tasks_pb2_grpc.TaskServiceServicer):
    """See `tasks.proto`."""

    def __init__(self, tasks: Tasks, waits: Waits, watches: Watches, explanations: Explanations) -> None:
        self._tasks = tasks
        self._waits = waits
        self._watches = watches
        self._explanations = explanations

    async def CreateTask(self, request: tasks_pb2.CreateTaskRequest, context: Context) -> tasks_pb2.CreateTaskResponse:
        answer = tasks_pb2.CreateTaskResponse()
        writing.write_created(await self._tasks.create_task(reading.read_new_task(request)), answer, {})
        return answer

    async def CreateTasks(self, request: tasks_pb2.CreateTasksRequest, context: Context) -> tasks_pb2.CreateTasksResponse:
        outcomes = await run_each(request.items, reading.read_new_task, self._tasks.create_tasks)
        answer = tasks_pb2.CreateTasksResponse()
        alike: writing.Alike = {}
        for outcome in outcomes:
            item = answer.items.add()
            if isinstance(outcome, Refusal):
                item.refused.CopyFrom(to_status(outcome))
            else:
                writing.write_created(outcome, item.created, alike)
        return answer

    async def GetTask(self, request: tasks_pb2.GetTaskRequest, context: Context) -> tasks_pb2.GetTaskResponse:
        task = await self._tasks.get_task(reading.read_task_read(request))
        return tasks_pb2.GetTaskResponse(task=writing.to_task(task))

    async def GetTasks(self, request: tasks_pb2.GetTasksRequest, context: Context) -> tasks_pb2.GetTasksResponse:
        outcomes = await run_each(request.items, reading.read_task_read, self._tasks.get_tasks)
        answer = tasks_pb2.GetTasksResponse()
        for outcome in outcomes:
            item = answer.items.add()
            if isinstance(outcome, Refusal):
                item.refused.CopyFrom(to_status(outcome))
            else:
                writing.write_task(outcome, item.task)
        return answer

    async def FindTask(self, request: tasks_pb2.FindTaskRequest, context: Context) -> tasks_pb2.FindTaskResponse:
        task = await self._tasks.find_task(
            check_name("tenant_id", request.tenant_id),
            check_text("reference", request.reference, most_bytes=128),
            reading.read_owner(request.owner) if request.HasField("owner") else None,
            reading.read_view(request.view),
        )
        return tasks_pb2.FindTaskResponse(task=writing.to_task(task))

    async def ExplainTask(self, request: tasks_pb2.ExplainTaskRequest, context: Context) -> tasks_pb2.ExplainTaskResponse:
        explained = await self._explanations.explain_task(reading.read_ref(request))
        return tasks_pb2.ExplainTaskResponse(
            cause=tasks_pb2.TaskCause.Value(f"TASK_CAUSE_{explained.cause}"),
            text=explained.text,
            since=writing.to_time(explained.since),
            until=writing.to_time(explained.until),
            worker_id=explained.worker_id or "",
        )

    async def ListTasks(self, request: tasks_pb2.ListTasksRequest, context: Context) -> tasks_pb2.ListTasksResponse:
        limit = check_page("page_size", request.page_size, most=limits.LIST_PAGE)
        times = {
            field: reading.read_time(field, getattr(request, field)) if request.HasField(field) else None
            for field in ("created_from", "created_before")
        }
        wanted = TaskFilter(
            tenant_id=check_name("tenant_id", request.tenant_id),
            states=reading.read_states(request.states),
            workflow=check_text("workflow", request.workflow, most_bytes=256, blank=True) or None,
            created_from=times["created_from"],
            created_before=times["created_before"],
        )
        tasks, last = await self._tasks.list_tasks(wanted, after=reading.read_page_token(request.page_token), limit=limit)
        token = writing.to_page_token(*last) if last is not None else ""
        return tasks_pb2.ListTasksResponse(tasks=[writing.to_task(task) for task in tasks], next_page_token=token)

    async def CancelTask(self, request: tasks_pb2.CancelTaskRequest, context: Context) -> tasks_pb2.CancelTaskResponse:
        check_range("mode", request.mode, range(tasks_pb2.CANCEL_MODE_FORCE + 1))
        force = request.mode == tasks_pb2.CANCEL_MODE_FORCE
        outcome = await self._tasks.cancel_task(reading.read_ref(request), force=force)
        return tasks_pb2.CancelTaskResponse(outcome=tasks_pb2.CancelOutcome.Value(f"CANCEL_OUTCOME_{outcome}"))

    async def AttachTask(self, request: tasks_pb2.AttachTaskRequest, context: Context) -> tasks_pb2.AttachTaskResponse:
        abandon_after_ms = check_range("abandon_after_ms", request.abandon_after_ms, limits.DEADLINE_MS)
        await self._tasks.attach_task(reading.read_ref(request), abandon_after_ms)
        return tasks_pb2.AttachTaskResponse()

    async def WatchTasks(
        self, request_iterator: AsyncIterator[tasks_pb2.WatchTasksRequest], context: Context
    ) -> AsyncIterator[tasks_pb2.WatchTasksResponse]:
        with self._watches.open() as watch:
            following = asyncio.create_task(_follow(request_iterator, watch))
            try:
                async for news in watch.news():
                    yield tasks_pb2.WatchTasksResponse(items=map(_told, news))
            finally:
                following.cancel()

    async def ListTaskHistory(
        self, request: tasks_pb2.ListTaskHistoryRequest, context: Context
    ) -> tasks_pb2.ListTaskHistoryResponse:
        lines = await self._tasks.list_task_history(
            _ref(request),
            from_line=check_range("from_line", request.from_line, _INT31),
            limit=check_page("page_size", request.page_size, most=limits.HISTORY_PAGE),
        )
        return tasks_pb2.ListTaskHistoryResponse(lines=[writing.to_history_line(line) for line in lines])

    async def ListCheckpoints(
        self, request: tasks_pb2.ListCheckpointsRequest, context: Context
    ) -> tasks_pb2.ListCheckpointsResponse:
        checkpoints = await self._tasks.list_checkpoints(
            _ref(request),
            from_revision=check_range("from_revision", request.from_revision, _INT31),
            limit=check_page("page_size", request.page_size, most=limits.HISTORY_PAGE),
        )
        return tasks_pb2.ListCheckpointsResponse(checkpoints=[writing.to_checkpoint(one) for one in checkpoints])

    async def GetCheckpoint(self, request: tasks_pb2.GetCheckpointRequest, context: Context) -> tasks_pb2.GetCheckpointResponse:
        revision = check_range("revision", request.revision, _INT31)
        checkpoint = await self._tasks.get_checkpoint(_ref(request), revision)
        return tasks_pb2.GetCheckpointResponse(checkpoint=writing.to_checkpoint(checkpoint))

    async def AnswerInputs(self, request: tasks_pb2.AnswerInputsRequest, context: Context) -> tasks_pb2.AnswerInputsResponse:
        accepted = await self._waits.answer_inputs(reading.read_answers(request))
        outcomes = (tasks_pb2.ANSWER_OUTCOME_ACCEPTED, tasks_pb2.ANSWER_OUTCOME_IGNORED)
        return tasks_pb2.AnswerInputsResponse(outcomes=[outcomes[0] if one else outcomes[1] for one in accepted])

    async def PublishSignal(self, request: tasks_pb2.PublishSignalRequest, context: Context) -> tasks_pb2.PublishSignalResponse:
        published = await self._waits.publish_signal(reading.read_new_signal(request))
        return tasks_pb2.PublishSignalResponse(state=_signal_state(published.state), replayed=published.replayed)

    async def GetSignal(self, request: tasks_pb2.GetSignalRequest, context: Context) -> tasks_pb2.GetSignalResponse:
        tenant_id = check_name("tenant_id", request.tenant_id)
        signal = await self._waits.get_signal(tenant_id, check_text("signal_id", request.signal_id, most_bytes=128))
        return tasks_pb2.GetSignalResponse(
            task_id=signal.task_id,
            name=signal.name,
            state=_signal_state(signal.state),
            accepted_at=writing.to_time(signal.accepted_at),
        )

    async def ListSignals(self, request: tasks_pb2.ListSignalsRequest, context: Context) -> tasks_pb2.ListSignalsResponse:
        limit = check_page("page_size", request.page_size, most=limits.LIST_PAGE)
        wanted = SignalFilter(
            check_name("tenant_id", request.tenant_id),
            reading.read_signal_states(request.states),
            check_task_id("task_id", request.task_id) if request.task_id else None,
        )
        after = reading.read_signals_page_token(request.page_token)
        signals = await self._waits.list_signals(wanted, after=after, limit=limit)
        token = writing.to_page_token(signals[-1].accepted_at, signals[-1].signal_id) if len(signals) == limit else ""
        return tasks_pb2.ListSignalsResponse(
            signals=[
                tasks_pb2.ListSignalsResponse.Signal(
                    signal_id=signal.signal_id,
                    task_id=str(signal.task_id),
                    name=signal.name,
                    state=_signal_state(signal.state),
                    accepted_at=writing.to_time(signal.accepted_at),
                )
                for signal in signals
            ],
            next_page_token=token,
        )

    async def ForkTask(self, request: tasks_pb2.ForkTaskRequest, context: Context) -> tasks_pb2.ForkTaskResponse:
        forked = await self._waits.fork_task(reading.read_fork(request))
        return tasks_pb2.ForkTaskResponse(task=writing.to_task(forked.task), replayed=forked.replayed)


async def _follow(requests: AsyncIterator[tasks_pb2.WatchTasksRequest] | Admitted, watch: Watch) -> None:
    """Does what the caller of a watch says. It ends with the watch, or with what the caller has to say."""
    try:
        async for request in requests:
            check_range("add", len(request.add), range(limits.BATCH_ITEMS + 1))
            for number in request.remove:
                watch.remove(number)
            for one in request.add:
                try:
                    if isinstance(requests, Admitted):
                        requests.check(one)
                    wanted, known_change = reading.read_watched(one)
                except Refusal as refusal:
                    watch.refuse(one.number, refusal)
                else:
                    watch.add(one.number, wanted, known_change=known_change, skip_leases=one.skip_leases)
        watch.close()
    except Refusal as refusal:
        watch.end(refusal)


def _told(news: News) -> tasks_pb2.WatchTasksResponse.Item:
    item = tasks_pb2.WatchTasksResponse.Item
    if isinstance(news.outcome, Refusal):
        return item(number=news.number, refused=to_status(news.outcome))
    reports = map(writing.to_progress, news.reports)
    return item(number=news.number, task=writing.to_task(news.outcome), reports=reports)


def _signal_state(state: SignalState) -> tasks_pb2.SignalState.ValueType:
    return tasks_pb2.SignalState.Value(f"SIGNAL_STATE_{state}")


def _ref(
    request: tasks_pb2.ListTaskHistoryRequest | tasks_pb2.ListCheckpointsRequest | tasks_pb2.GetCheckpointRequest,
) -> TaskRef:
    return TaskRef(check_name("tenant_id", request.tenant_id), check_task_id("task_id", request.task_id))
