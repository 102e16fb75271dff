"""A store in memory behind a real gRPC server, for what a real store does not do when asked: lose an answer, stay silent.

It runs in threads of its own, so that it answers while the code under test blocks its event loop. What it does with
tasks is the model of the library's own test harness.
"""

# ruff: noqa: N802 (methods are named by the API)

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Never, TypeVar

import grpc
from taskstore.v1 import leases_pb2, leases_pb2_grpc, types_pb2

from store_service.client import Worker
from store_service.client.testing.budgets import Refused
from store_service.client.testing.memory import MemoryStore, refusal
from store_service.client.testing.tasks import MemoryTask

Q = TypeVar("Q")
A = TypeVar("A")

WAIT_SECONDS = 60.0
LIMITS = [("grpc.max_receive_message_length", 6 * 2**20), ("grpc.max_send_message_length", 6 * 2**20)]
FakeTask = MemoryTask


def abort(context: grpc.ServicerContext, reason: str) -> Never:
    """Ends a call with the refusal for this reason."""
    status = refusal(reason)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
    context.abort(code, status.message)


@dataclass
class Fault:
    """What happens to calls of one method instead of what should."""

    method: str
    times: int
    reason: str = ""
    applied: bool = False
    silent: bool = False
    once: Callable[[], object] = lambda: True


class FakeStore(leases_pb2_grpc.LeaseServiceServicer):
    """LeaseService over tasks in memory."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.memory = MemoryStore(time.monotonic)
        self.tasks = self.memory.tasks
        self.calls: list[tuple[str, Any]] = []
        self.address = ""
        self.watchers = 0
        self.hints = 0
        self._cut = False
        self._faults: list[Fault] = []
        self._closed = False

    @contextmanager
    def serve(self) -> Iterator["FakeStore"]:
        """Listens on loopback."""
        server = grpc.server(futures.ThreadPoolExecutor(64), options=LIMITS)
        leases_pb2_grpc.add_LeaseServiceServicer_to_server(self, server)
        self.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield self
        finally:
            with self.changed:
                self._closed = True
                self.changed.notify_all()
            server.stop(0).wait()

    # What tests do and see.

    def add(
        self,
        workflow: str = "report",
        *,
        data: bytes = b"{}",
        capabilities: bytes = b"",
        output_schema: bytes = b"",
        **more: Any,
    ) -> FakeTask:
        """A task that is ready."""
        contract = types_pb2.TaskContract(
            workflow=workflow, workflow_version=1, client_capabilities=capabilities, output_schema=output_schema
        )
        task = FakeTask(contract, data, **more)
        with self.changed:
            self.tasks.append(task)
            self.changed.notify_all()
        return task

    def refuse(self, method: str, reason: str, *, times: int = 1) -> None:
        """The next calls of the method are refused; nothing is applied."""
        self._faults.append(Fault(method, times, reason))

    def lose_answers(self, method: str, *, times: int = 1, once: Callable[[], object] = lambda: True) -> None:
        """The next calls of the method are applied; the caller does not hear of it, and is cut off `once` this is true."""
        self._faults.append(Fault(method, times, applied=True, once=once))

    def hold_answer(self, method: str, until: Callable[[], object]) -> None:
        """The next call of the method is applied, and answered once this is true."""
        self._faults.append(Fault(method, 1, once=until))

    def silence(self, method: str, *, times: int = 1_000_000) -> None:
        """The next calls of the method are neither applied nor answered."""
        self._faults.append(Fault(method, times, silent=True))

    def mend(self) -> None:
        """All is well again."""
        with self.changed:
            self._faults.clear()
            self.changed.notify_all()

    def hint(self) -> None:
        """Tells every worker that watches to heartbeat at once."""
        with self.changed:
            self.hints += 1
            self.changed.notify_all()

    def cut(self) -> None:
        """Ends every stream."""
        with self.changed:
            self._cut = True
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: not self.watchers, WAIT_SECONDS)
            self._cut = False

    def take_away(self, task: FakeTask) -> None:
        """Another worker holds the task from now on, for ever."""
        with self.changed:
            task.token += 1
            task.worker_id, task.expires_at = "another", time.monotonic() + 3600

    def of(self, method: str) -> list[Any]:
        """The requests of one method, in order."""
        with self.changed:
            return [request for called, request in self.calls if called == method]

    async def asked_again(self) -> None:
        """Waits until a worker that took something has asked for more: what ends from then on is written alone."""
        await self.until(lambda: len(self.of("LeaseTasks")) > 1)

    async def until(self, condition: Callable[[], object]) -> None:
        """Waits, with a bound, until this is true of the store or of the worker."""

        def wait() -> bool:
            deadline = time.monotonic() + WAIT_SECONDS
            with self.changed:
                while not (is_true := condition()) and time.monotonic() < deadline:
                    self.changed.wait(0.02)  # what is true of the worker notifies nobody
                return bool(is_true)

        assert await asyncio.to_thread(wait), "it did not come about"

    async def ended(self, *tasks: FakeTask) -> None:
        """Waits until the tasks have ended."""
        await self.until(lambda: all(task.state in ("COMPLETED", "FAILED", "CANCELLED") for task in tasks))

    # What the worker sees.

    def LeaseTasks(self, request: leases_pb2.LeaseTasksRequest, context: grpc.ServicerContext) -> leases_pb2.LeaseTasksResponse:
        context.add_callback(self._notify)
        return self._answer("LeaseTasks", request, context, lambda asked: self._lease_tasks(asked, context))

    def WatchLeases(self, request: Any, context: grpc.ServicerContext) -> Iterator[leases_pb2.WatchLeasesResponse]:
        self._answer("WatchLeases", request, context, lambda _: None)
        context.add_callback(self._notify)
        first = self.hints + 1
        yield leases_pb2.WatchLeasesResponse()  # as the store does: something may have happened before
        for hints in itertools.count(first):
            with self.changed:
                self.watchers += 1
                self.changed.notify_all()
                while self.hints < hints and context.is_active() and not (self._closed or self._cut):
                    self.changed.wait()
                self.watchers -= 1
            if self.hints < hints:
                return
            yield leases_pb2.WatchLeasesResponse()

    def HeartbeatTask(self, request: Any, context: grpc.ServicerContext) -> leases_pb2.HeartbeatTaskResponse:
        return self._answer("HeartbeatTask", request, context, self.memory.heartbeat_task)

    def HeartbeatTasks(self, request: Any, context: grpc.ServicerContext) -> leases_pb2.HeartbeatTasksResponse:
        return self._answer("HeartbeatTasks", request, context, self.memory.heartbeat_tasks)

    def ReportProgress(self, request: Any, context: grpc.ServicerContext) -> leases_pb2.ReportProgressResponse:
        return self._answer("ReportProgress", request, context, self.memory.report_progress)

    def LoadInput(self, request: Any, context: grpc.ServicerContext) -> leases_pb2.LoadInputResponse:
        return self._answer("LoadInput", request, context, self.memory.load_input)

    def LoadEarlyAnswers(self, request: Any, context: grpc.ServicerContext) -> leases_pb2.LoadEarlyAnswersResponse:
        return self._answer("LoadEarlyAnswers", request, context, self.memory.load_early_answers)

    def LoadCheckpoints(self, request: Any, context: grpc.ServicerContext) -> leases_pb2.LoadCheckpointsResponse:
        return self._answer("LoadCheckpoints", request, context, self.memory.load_checkpoints)

    def AppendCheckpoint(self, request: Any, context: grpc.ServicerContext) -> leases_pb2.AppendCheckpointResponse:
        return self._answer("AppendCheckpoint", request, context, self.memory.append_checkpoint)

    def CompleteTask(self, request: Any, context: grpc.ServicerContext) -> leases_pb2.CompleteTaskResponse:
        return self._answer("CompleteTask", request, context, self.memory.complete_task)

    def FailTask(self, request: Any, context: grpc.ServicerContext) -> leases_pb2.FailTaskResponse:
        return self._answer("FailTask", request, context, self.memory.fail_task)

    def ReleaseTask(self, request: Any, context: grpc.ServicerContext) -> leases_pb2.ReleaseTaskResponse:
        return self._answer("ReleaseTask", request, context, self.memory.release_task)

    def SuspendTask(self, request: Any, context: grpc.ServicerContext) -> leases_pb2.SuspendTaskResponse:
        return self._answer("SuspendTask", request, context, self.memory.suspend_task)

    def ConfirmCancel(self, request: Any, context: grpc.ServicerContext) -> leases_pb2.ConfirmCancelResponse:
        return self._answer("ConfirmCancel", request, context, self.memory.confirm_cancel)

    def ReserveBudget(self, request: Any, context: grpc.ServicerContext) -> leases_pb2.ReserveBudgetResponse:
        return self._answer("ReserveBudget", request, context, self.memory.reserve_budget)

    def SettleBudget(self, request: Any, context: grpc.ServicerContext) -> leases_pb2.SettleBudgetResponse:
        return self._answer("SettleBudget", request, context, self.memory.settle_budget)

    def CompleteAndLeaseTasks(
        self, request: leases_pb2.CompleteAndLeaseTasksRequest, context: grpc.ServicerContext
    ) -> leases_pb2.CompleteAndLeaseTasksResponse:
        def complete_all(asked: leases_pb2.CompleteAndLeaseTasksRequest) -> leases_pb2.CompleteAndLeaseTasksResponse:
            items = self._complete_each(asked)
            return leases_pb2.CompleteAndLeaseTasksResponse(items=items, tasks=self.memory.lease_tasks(asked.lease).tasks)

        return self._answer("CompleteAndLeaseTasks", request, context, complete_all)

    def CompleteTasks(self, request: Any, context: grpc.ServicerContext) -> leases_pb2.CompleteTasksResponse:
        items = self._complete_each(request)
        return self._answer("CompleteTasks", request, context, lambda _: leases_pb2.CompleteTasksResponse(items=items))

    def ReleaseTasks(self, request: Any, context: grpc.ServicerContext) -> leases_pb2.ReleaseTasksResponse:
        def release_all(asked: leases_pb2.ReleaseTasksRequest) -> leases_pb2.ReleaseTasksResponse:
            item = leases_pb2.ReleaseTasksResponse.Item
            return leases_pb2.ReleaseTasksResponse(items=each(asked, item, "released", self.memory.release_task))

        return self._answer("ReleaseTasks", request, context, release_all)

    # The worker calls none of these.

    def AppendCheckpoints(self, request: Any, context: grpc.ServicerContext) -> Never:
        raise NotImplementedError

    FailTasks = AppendCheckpoints

    def _complete_each(self, request: Any) -> list[leases_pb2.CompleteTasksResponse.Item]:
        return each(request, leases_pb2.CompleteTasksResponse.Item, "completed", self.memory.complete_task)

    def _notify(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def _answer(self, method: str, request: Q, context: grpc.ServicerContext, apply: Callable[[Q], A]) -> A:
        with self.changed:
            fault = next((each for each in self._faults if each.method == method and each.times > 0), None)
            if fault is not None:
                fault.times -= 1
            self.calls.append((method, request))
            self.changed.notify_all()
            if fault is not None and fault.silent:
                self.changed.wait_for(lambda: self._closed or not context.is_active() or not self._faults, WAIT_SECONDS)
                context.abort(grpc.StatusCode.UNAVAILABLE, "silent")
            if fault is not None and fault.reason:
                abort(context, fault.reason)
            try:
                response = apply(request)
            except Refused as refused:
                abort(context, str(refused))
            finally:
                self.changed.notify_all()
            deadline = time.monotonic() + WAIT_SECONDS
            while fault is not None and not fault.once() and time.monotonic() < deadline:
                self.changed.wait(0.02)  # what is true of the worker notifies nobody
        if fault is not None and fault.applied:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")
        return response

    def _lease_tasks(
        self, request: leases_pb2.LeaseTasksRequest, context: grpc.ServicerContext
    ) -> leases_pb2.LeaseTasksResponse:
        names = {workflow.workflow for workflow in request.workflows}
        deadline = time.monotonic() + request.wait_ms / 1000
        while request.request_id not in self.memory.leased_by_request and not self.memory.ready(names):
            if self._closed or not context.is_active():
                raise Refused("STORAGE_UNAVAILABLE")  # nobody is there to hear of it
            if (left := deadline - time.monotonic()) <= 0:
                break
            self.changed.wait(min(left, 0.05))  # a timer that comes due notifies nobody
        return self.memory.lease_tasks(request)


def each(request: Any, item: Callable[..., A], kind: str, apply: Callable[[Any], Any]) -> list[A]:
    """Applies all of a batch; an outcome of each, under its `kind` where it was not refused."""

    def outcome(one: Any) -> A:
        try:
            return item(**{kind: apply(one)})
        except Refused as refused:
            return item(refused=refusal(str(refused)))

    return [outcome(one) for one in request.items]


def new_worker(fake: FakeStore, **settings: Any) -> Worker:
    """A worker of this store, with a lease short enough for a test."""
    return Worker(fake.address, **{"lease_seconds": 2.0, "drain_seconds": 5.0, **settings})


def outcomes(worker: Worker) -> dict[str, float]:
    """How many runs ended how, without the noughts."""
    family = next(family for family in worker.registry.collect() if family.name == "tenure_worker_tasks")
    samples = [sample for sample in family.samples if sample.name.endswith("_total")]
    return {sample.labels["outcome"]: sample.value for sample in samples if sample.value}
