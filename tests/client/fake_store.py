"""A store in memory behind a real gRPC server, for what a real store does not do when asked: lose an answer, stay silent.

It runs in threads of its own, so that it answers while the code under test blocks its event loop.
"""

# ruff: noqa: N802 (methods are named by the API)

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Never, TypeVar

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from taskstore.v1 import leases_pb2, leases_pb2_grpc, types_pb2

from store_service.client import Worker

Q = TypeVar("Q")
A = TypeVar("A")

WAIT_SECONDS = 15.0
LIMITS = [("grpc.max_receive_message_length", 6 * 2**20), ("grpc.max_send_message_length", 6 * 2**20)]
CODES = {
    "LEASE_LOST": code_pb2.FAILED_PRECONDITION,
    "REVISION_CONFLICT": code_pb2.ABORTED,
    "INVALID_INPUT": code_pb2.INVALID_ARGUMENT,
    "CHECKPOINT_LIMIT": code_pb2.FAILED_PRECONDITION,
    "STORAGE_UNAVAILABLE": code_pb2.UNAVAILABLE,
    "OUTCOME_UNKNOWN": code_pb2.UNKNOWN,
    "TASK_NOT_FOUND": code_pb2.NOT_FOUND,
}


def refusal(reason: str) -> status_pb2.Status:
    """What the store answers for this reason."""
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.ErrorInfo(reason=reason, domain="taskstore.tenure"))
    return status_pb2.Status(code=CODES[reason], message=f"refused: {reason}", details=[detail])


def abort(context: grpc.ServicerContext, reason: str) -> Never:
    """Ends the call as the store does."""
    status = refusal(reason)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
    context.abort(code, status.message)


@dataclass
class FakeTask:
    """One task, as the store would keep it."""

    contract: types_pb2.TaskContract
    input: bytes
    input_left_out: bool = False
    task_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    state: str = "QUEUED"
    worker_id: str = ""
    token: int = 0
    expires_at: float = 0.0
    attempts: int = 0
    retries: int = 0
    cancel_requested: bool = False
    checkpoints: list[types_pb2.Checkpoint] = field(default_factory=list)
    progress: list[leases_pb2.ReportProgressRequest] = field(default_factory=list)
    result: bytes | None = None
    error: types_pb2.TaskError | None = None
    retry: leases_pb2.RetryPolicy | None = None
    heartbeats: int = 0

    @property
    def steps(self) -> list[str]:
        return [checkpoint.step for checkpoint in self.checkpoints]


class Refused(Exception):  # noqa: N818 (reads as what happened)
    """An operation refused for this reason."""


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
        self.tasks: list[FakeTask] = []
        self.calls: list[tuple[str, Any]] = []
        self.address = ""
        self._faults: list[Fault] = []
        self._leased_by_request: dict[str, leases_pb2.LeaseTasksResponse] = {}
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

    def silence(self, method: str, *, times: int = 1_000_000) -> None:
        """The next calls of the method are neither applied nor answered."""
        self._faults.append(Fault(method, times, silent=True))

    def mend(self) -> None:
        """All is well again."""
        with self.changed:
            self._faults.clear()
            self.changed.notify_all()

    def take_away(self, task: FakeTask) -> None:
        """Another worker holds the task from now on, for ever."""
        with self.changed:
            task.token += 1
            task.worker_id, task.expires_at = "another", time.monotonic() + 3600

    def of(self, method: str) -> list[Any]:
        """The requests of one method, in order."""
        with self.changed:
            return [request for called, request in self.calls if called == method]

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

    def _notify(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def HeartbeatTasks(
        self, request: leases_pb2.HeartbeatTasksRequest, context: grpc.ServicerContext
    ) -> leases_pb2.HeartbeatTasksResponse:
        return self._answer("HeartbeatTasks", request, context, self._heartbeat_tasks)

    def ReportProgress(
        self, request: leases_pb2.ReportProgressRequest, context: grpc.ServicerContext
    ) -> leases_pb2.ReportProgressResponse:
        def report(_: Any) -> leases_pb2.ReportProgressResponse:
            self._fenced(request.lease).progress.append(request)
            return leases_pb2.ReportProgressResponse(sequence=1)

        return self._answer("ReportProgress", request, context, report)

    def LoadInput(self, request: leases_pb2.LoadInputRequest, context: grpc.ServicerContext) -> leases_pb2.LoadInputResponse:
        def load(_: Any) -> leases_pb2.LoadInputResponse:
            return leases_pb2.LoadInputResponse(input=types_pb2.Payload(data=self._fenced(request.lease).input))

        return self._answer("LoadInput", request, context, load)

    def LoadCheckpoints(
        self, request: leases_pb2.LoadCheckpointsRequest, context: grpc.ServicerContext
    ) -> leases_pb2.LoadCheckpointsResponse:
        def load(_: Any) -> leases_pb2.LoadCheckpointsResponse:
            found = self._fenced(request.lease).checkpoints[request.from_revision :]
            return leases_pb2.LoadCheckpointsResponse(checkpoints=found[: min(request.page_size, 2)])

        return self._answer("LoadCheckpoints", request, context, load)

    def AppendCheckpoint(
        self, request: leases_pb2.AppendCheckpointRequest, context: grpc.ServicerContext
    ) -> leases_pb2.AppendCheckpointResponse:
        return self._answer("AppendCheckpoint", request, context, self._append_checkpoint)

    def CompleteTask(
        self, request: leases_pb2.CompleteTaskRequest, context: grpc.ServicerContext
    ) -> leases_pb2.CompleteTaskResponse:
        def complete(_: Any) -> leases_pb2.CompleteTaskResponse:
            task = self._find(request.lease)
            if not (task.state == "COMPLETED" and task.token == request.lease.token and task.result == request.result.data):
                task = self._fenced(request.lease)
                task.state, task.result = "COMPLETED", request.result.data
            return leases_pb2.CompleteTaskResponse()

        return self._answer("CompleteTask", request, context, complete)

    def FailTask(self, request: leases_pb2.FailTaskRequest, context: grpc.ServicerContext) -> leases_pb2.FailTaskResponse:
        def fail(_: Any) -> leases_pb2.FailTaskResponse:
            task = self._fenced(request.lease)
            response = leases_pb2.FailTaskResponse()
            if request.HasField("retry"):
                task.state, task.retry, task.retries = "QUEUED", request.retry, task.retries + 1
                response.retry_at.GetCurrentTime()
            else:
                task.state, task.error = "FAILED", request.error
            return response

        return self._answer("FailTask", request, context, fail)

    def ReleaseTask(
        self, request: leases_pb2.ReleaseTaskRequest, context: grpc.ServicerContext
    ) -> leases_pb2.ReleaseTaskResponse:
        def release(_: Any) -> leases_pb2.ReleaseTaskResponse:
            self._fenced(request.lease).state = "QUEUED"
            return leases_pb2.ReleaseTaskResponse()

        return self._answer("ReleaseTask", request, context, release)

    def ConfirmCancel(
        self, request: leases_pb2.ConfirmCancelRequest, context: grpc.ServicerContext
    ) -> leases_pb2.ConfirmCancelResponse:
        def confirm(_: Any) -> leases_pb2.ConfirmCancelResponse:
            self._fenced(request.lease).state = "CANCELLED"
            return leases_pb2.ConfirmCancelResponse()

        return self._answer("ConfirmCancel", request, context, confirm)

    # The worker calls none of these.

    def HeartbeatTask(self, request: Any, context: grpc.ServicerContext) -> Never:
        raise NotImplementedError

    AppendCheckpoints = CompleteTasks = CompleteAndLeaseTasks = FailTasks = HeartbeatTask

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
            if fault is not None and fault.applied:
                self.changed.wait_for(fault.once, WAIT_SECONDS)
        if fault is not None and fault.applied:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")
        return response

    def _lease_tasks(
        self, request: leases_pb2.LeaseTasksRequest, context: grpc.ServicerContext
    ) -> leases_pb2.LeaseTasksResponse:
        if request.request_id not in self._leased_by_request:
            names = {workflow.workflow for workflow in request.workflows}

            def is_over() -> bool:
                return self._closed or not context.is_active()

            self.changed.wait_for(lambda: is_over() or self._ready(names), request.wait_ms / 1000)
            if is_over():
                raise Refused("STORAGE_UNAVAILABLE")  # nobody is there to hear of it
            taken = self._ready(names)[: request.limit]
            for task in taken:
                task.state, task.worker_id = "LEASED", request.worker_id
                task.token, task.attempts = task.token + 1, task.attempts + 1
                task.expires_at = time.monotonic() + request.lease_ms / 1000
            leased = [self._leased(task) for task in taken]
            self._leased_by_request[request.request_id] = leases_pb2.LeaseTasksResponse(tasks=leased)
        return self._leased_by_request[request.request_id]

    def _ready(self, names: set[str]) -> list[FakeTask]:
        return [
            task
            for task in self.tasks
            if task.contract.workflow in names
            and (task.state == "QUEUED" or (task.state == "LEASED" and task.expires_at < time.monotonic()))
        ]

    def _leased(self, task: FakeTask) -> leases_pb2.LeasedTask:
        return leases_pb2.LeasedTask(
            lease=types_pb2.Lease(tenant_id="acme", task_id=task.task_id, worker_id=task.worker_id, token=task.token),
            contract=task.contract,
            input=None if task.input_left_out else types_pb2.Payload(data=task.input),
            input_left_out=task.input_left_out,
            attempts=task.attempts,
            retries=task.retries,
            checkpoints=len(task.checkpoints),
            cancel_requested=task.cancel_requested,
        )

    def _heartbeat_tasks(self, request: leases_pb2.HeartbeatTasksRequest) -> leases_pb2.HeartbeatTasksResponse:
        response = leases_pb2.HeartbeatTasksResponse()
        for item in request.items:
            answer = response.items.add()
            try:
                task = self._fenced(item.lease)
            except Refused as refused:
                answer.refused.CopyFrom(refusal(str(refused)))
                continue
            task.heartbeats += 1
            task.expires_at = max(task.expires_at, time.monotonic() + item.lease_ms / 1000)
            answer.extended.cancel_requested = task.cancel_requested
        return response

    def _append_checkpoint(self, request: leases_pb2.AppendCheckpointRequest) -> leases_pb2.AppendCheckpointResponse:
        task = self._fenced(request.lease)
        if request.revision != len(task.checkpoints):
            raise Refused("REVISION_CONFLICT")
        task.checkpoints.append(
            types_pb2.Checkpoint(
                revision=request.revision, step=request.step, payload=request.payload, token=request.lease.token
            )
        )
        return leases_pb2.AppendCheckpointResponse()

    def _find(self, lease: types_pb2.Lease) -> FakeTask:
        return next(task for task in self.tasks if task.task_id == lease.task_id)

    def _fenced(self, lease: types_pb2.Lease) -> FakeTask:
        task = self._find(lease)
        is_held = task.state == "LEASED" and task.expires_at > time.monotonic()
        if not (is_held and (task.worker_id, task.token) == (lease.worker_id, lease.token)):
            raise Refused("LEASE_LOST")
        return task


def new_worker(fake: FakeStore, **settings: Any) -> Worker:
    """A worker of this store, with a lease short enough for a test."""
    return Worker(fake.address, **{"lease_seconds": 2.0, "drain_seconds": 5.0, **settings})


def outcomes(worker: Worker) -> dict[str, float]:
    """How many runs ended how, without the noughts."""
    family = next(family for family in worker.registry.collect() if family.name == "tenure_worker_tasks")
    samples = [sample for sample in family.samples if sample.name.endswith("_total")]
    return {sample.labels["outcome"]: sample.value for sample in samples if sample.value}
