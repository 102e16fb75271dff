"""LeaseService."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

import grpc
from taskstore.v1 import leases_pb2, leases_pb2_grpc

from store_service.model import limits
from store_service.model.leases import Finished, LeasedTask
from store_service.model.limits import check_name, check_page, check_range
from store_service.model.refusals import Refusal
from store_service.operations.budgets import Budgets
from store_service.operations.leases import Leases
from store_service.operations.waits import Waits
from store_service.rpc import budgets as budget_messages
from store_service.rpc import lease_reading as reading
from store_service.rpc import writing
from store_service.rpc.calls import run_each
from store_service.rpc.status import to_status

Context = grpc.aio.ServicerContext[Any, Any]
Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class LeaseService(leases_pb2_grpc.LeaseServiceServicer):
    """See `leases.proto`."""

    def __init__(self, leases: Leases, waits: Waits, budgets: Budgets) -> None:
        self._leases = leases
        self._waits = waits
        self._budgets = budgets

    async def LeaseTasks(self, request: leases_pb2.LeaseTasksRequest, context: Context) -> leases_pb2.LeaseTasksResponse:
        return leases_pb2.LeaseTasksResponse(tasks=_leased(await self._leases.lease_tasks(reading.read_claim(request))))

    async def HeartbeatTask(
        self, request: leases_pb2.HeartbeatTaskRequest, context: Context
    ) -> leases_pb2.HeartbeatTaskResponse:
        return writing.to_extended(await self._leases.heartbeat_task(reading.read_heartbeat(request)))

    async def HeartbeatTasks(
        self, request: leases_pb2.HeartbeatTasksRequest, context: Context
    ) -> leases_pb2.HeartbeatTasksResponse:
        outcomes = await run_each(request.items, reading.read_heartbeat, self._leases.heartbeat_tasks)
        item = leases_pb2.HeartbeatTasksResponse.Item
        return leases_pb2.HeartbeatTasksResponse(
            items=_items(item, outcomes, lambda extended: item(extended=writing.to_extended(extended)))
        )

    async def ReportProgress(
        self, request: leases_pb2.ReportProgressRequest, context: Context
    ) -> leases_pb2.ReportProgressResponse:
        return leases_pb2.ReportProgressResponse(sequence=await self._leases.report_progress(reading.read_report(request)))

    async def LoadInput(self, request: leases_pb2.LoadInputRequest, context: Context) -> leases_pb2.LoadInputResponse:
        payload, wake = await self._leases.load_input(reading.read_lease(request.lease))
        return leases_pb2.LoadInputResponse(input=writing.to_payload(payload), wake=writing.to_wake(wake))

    async def LoadEarlyAnswers(
        self, request: leases_pb2.LoadEarlyAnswersRequest, context: Context
    ) -> leases_pb2.LoadEarlyAnswersResponse:
        answers = await self._leases.load_early_answers(reading.read_lease(request.lease))
        return leases_pb2.LoadEarlyAnswersResponse(answers=[writing.to_answer(answer) for answer in answers])

    async def LoadCheckpoints(
        self, request: leases_pb2.LoadCheckpointsRequest, context: Context
    ) -> leases_pb2.LoadCheckpointsResponse:
        checkpoints = await self._leases.load_checkpoints(
            reading.read_lease(request.lease),
            from_revision=check_range("from_revision", request.from_revision, range(2**31)),
            limit=check_page("page_size", request.page_size, most=limits.HISTORY_PAGE),
        )
        return leases_pb2.LoadCheckpointsResponse(checkpoints=[writing.to_checkpoint(one) for one in checkpoints])

    async def AppendCheckpoint(
        self, request: leases_pb2.AppendCheckpointRequest, context: Context
    ) -> leases_pb2.AppendCheckpointResponse:
        await self._leases.append_checkpoint(reading.read_new_checkpoint(request))
        return leases_pb2.AppendCheckpointResponse()

    async def AppendCheckpoints(
        self, request: leases_pb2.AppendCheckpointsRequest, context: Context
    ) -> leases_pb2.AppendCheckpointsResponse:
        outcomes = await run_each(request.items, reading.read_new_checkpoint, self._leases.append_checkpoints)
        item, done = leases_pb2.AppendCheckpointsResponse.Item, leases_pb2.AppendCheckpointResponse()
        return leases_pb2.AppendCheckpointsResponse(items=_items(item, outcomes, lambda _: item(appended=done)))

    async def CompleteTask(self, request: leases_pb2.CompleteTaskRequest, context: Context) -> leases_pb2.CompleteTaskResponse:
        await self._leases.finish_task(reading.read_complete(request))
        return leases_pb2.CompleteTaskResponse()

    async def CompleteTasks(
        self, request: leases_pb2.CompleteTasksRequest, context: Context
    ) -> leases_pb2.CompleteTasksResponse:
        return leases_pb2.CompleteTasksResponse(items=await self._complete(request.items))

    async def CompleteAndLeaseTasks(
        self, request: leases_pb2.CompleteAndLeaseTasksRequest, context: Context
    ) -> leases_pb2.CompleteAndLeaseTasksResponse:
        claim = reading.read_claim(request.lease)
        items = await self._complete(request.items)
        try:
            leased = await self._leases.lease_tasks(claim)
        except Refusal:  # the completions are committed: they are answered, and the worker leases again
            leased = []
        return leases_pb2.CompleteAndLeaseTasksResponse(items=items, tasks=_leased(leased))

    async def FailTask(self, request: leases_pb2.FailTaskRequest, context: Context) -> leases_pb2.FailTaskResponse:
        return _failed(await self._leases.finish_task(reading.read_fail(request)))

    async def FailTasks(self, request: leases_pb2.FailTasksRequest, context: Context) -> leases_pb2.FailTasksResponse:
        outcomes = await run_each(request.items, reading.read_fail, self._leases.finish_tasks)
        item = leases_pb2.FailTasksResponse.Item
        return leases_pb2.FailTasksResponse(items=_items(item, outcomes, lambda failed: item(failed=_failed(failed))))

    async def ReleaseTask(self, request: leases_pb2.ReleaseTaskRequest, context: Context) -> leases_pb2.ReleaseTaskResponse:
        await self._leases.finish_task(reading.read_release(request))
        return leases_pb2.ReleaseTaskResponse()

    async def ReleaseTasks(self, request: leases_pb2.ReleaseTasksRequest, context: Context) -> leases_pb2.ReleaseTasksResponse:
        outcomes = await run_each(request.items, reading.read_release, self._leases.finish_tasks)
        item, done = leases_pb2.ReleaseTasksResponse.Item, leases_pb2.ReleaseTaskResponse()
        return leases_pb2.ReleaseTasksResponse(items=_items(item, outcomes, lambda _: item(released=done)))

    async def ConfirmCancel(
        self, request: leases_pb2.ConfirmCancelRequest, context: Context
    ) -> leases_pb2.ConfirmCancelResponse:
        await self._leases.finish_task(reading.read_confirm_cancel(request))
        return leases_pb2.ConfirmCancelResponse()

    async def SuspendTask(self, request: leases_pb2.SuspendTaskRequest, context: Context) -> leases_pb2.SuspendTaskResponse:
        return leases_pb2.SuspendTaskResponse(keys=await self._waits.suspend_task(reading.read_suspend(request)))

    async def ReserveBudget(
        self, request: leases_pb2.ReserveBudgetRequest, context: Context
    ) -> leases_pb2.ReserveBudgetResponse:
        return budget_messages.to_reserved(await self._budgets.reserve_budget(budget_messages.read_reserve(request)))

    async def SettleBudget(self, request: leases_pb2.SettleBudgetRequest, context: Context) -> leases_pb2.SettleBudgetResponse:
        return budget_messages.to_settled(await self._budgets.settle_budget(budget_messages.read_settle(request)))

    async def WatchLeases(
        self, request: leases_pb2.WatchLeasesRequest, context: Context
    ) -> AsyncIterator[leases_pb2.WatchLeasesResponse]:
        async for _ in self._leases.watch_leases(check_name("worker_id", request.worker_id)):
            yield leases_pb2.WatchLeasesResponse()

    async def _complete(
        self, requests: Sequence[leases_pb2.CompleteTaskRequest]
    ) -> list[leases_pb2.CompleteTasksResponse.Item]:
        outcomes = await run_each(requests, reading.read_complete, self._leases.finish_tasks)
        item, done = leases_pb2.CompleteTasksResponse.Item, leases_pb2.CompleteTaskResponse()
        return _items(item, outcomes, lambda _: item(completed=done))


def _items(item: Callable[..., Item], outcomes: Sequence[Outcome | Refusal], done: Callable[[Outcome], Item]) -> list[Item]:
    """What a batch is answered with, item by item."""
    return [item(refused=to_status(one)) if isinstance(one, Refusal) else done(one) for one in outcomes]


def _leased(tasks: Sequence[LeasedTask]) -> list[leases_pb2.LeasedTask]:
    return [writing.to_leased_task(task) for task in tasks]


def _failed(value: Finished) -> leases_pb2.FailTaskResponse:
    return leases_pb2.FailTaskResponse(retry_at=writing.to_time(value.retry_at))
