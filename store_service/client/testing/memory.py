"""LeaseService as a model: what the store does with tasks, in memory, on a clock that its owner moves."""

import uuid
from collections.abc import Callable
from typing import Final

from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from taskstore.v1 import leases_pb2, types_pb2

from store_service.client.testing.budgets import MemoryBudget, Refused
from store_service.client.testing.tasks import TENANT, MemoryTask, Waiting

CODES: Final = {
    "LEASE_LOST": code_pb2.FAILED_PRECONDITION,
    "REVISION_CONFLICT": code_pb2.ABORTED,
    "INVALID_INPUT": code_pb2.INVALID_ARGUMENT,
    "CHECKPOINT_LIMIT": code_pb2.FAILED_PRECONDITION,
    "INPUT_LIMIT": code_pb2.FAILED_PRECONDITION,
    "STORAGE_UNAVAILABLE": code_pb2.UNAVAILABLE,
    "OUTCOME_UNKNOWN": code_pb2.UNKNOWN,
    "TASK_NOT_FOUND": code_pb2.NOT_FOUND,
    "BUDGET_NOT_CONFIGURED": code_pb2.FAILED_PRECONDITION,
    "BUDGET_DENIED": code_pb2.RESOURCE_EXHAUSTED,
    "BUDGET_CONFLICT": code_pb2.FAILED_PRECONDITION,
    "BUDGET_EXCEEDED": code_pb2.FAILED_PRECONDITION,
    "BUDGET_RESERVED": code_pb2.FAILED_PRECONDITION,
}
_PAGE: Final = 2  # short, so that paging is met


def refusal(reason: str) -> status_pb2.Status:
    """What the store answers for this reason."""
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.ErrorInfo(reason=reason, domain="taskstore.tenure"))
    return status_pb2.Status(code=CODES[reason], message=f"refused: {reason}", details=[detail])


class MemoryStore:
    """Tasks and what becomes of them. Each operation is named as its RPC, and raises Refused."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.tasks: list[MemoryTask] = []
        self.leased_by_request: dict[str, leases_pb2.LeaseTasksResponse] = {}
        self.budget: MemoryBudget | None = None

    def ready(self, workflows: set[str]) -> list[MemoryTask]:
        """The tasks that can be leased now."""
        for task in self.tasks:
            self._end_wait_in_time(task)
        return [
            task
            for task in self.tasks
            if task.contract.workflow in workflows
            and (
                (task.state == "QUEUED" and task.ready_at <= self._now())
                or (task.state == "LEASED" and task.expires_at <= self._now())
            )
        ]

    def lease_tasks(self, request: leases_pb2.LeaseTasksRequest) -> leases_pb2.LeaseTasksResponse:
        """Takes what is ready, without waiting."""
        if request.request_id not in self.leased_by_request:
            taken = self.ready({each.workflow for each in request.workflows})[: request.limit]
            for task in taken:
                task.crashes += task.state == "LEASED" and task.showed_life
                task.state, task.worker_id, task.showed_life = "LEASED", request.worker_id, False
                task.token, task.attempts = task.token + 1, task.attempts + 1
                own_ms = next(each.lease_ms for each in request.workflows if each.workflow == task.contract.workflow)
                task.lease_ms = own_ms or request.lease_ms
                task.expires_at = self._now() + task.lease_ms / 1000
            response = leases_pb2.LeaseTasksResponse(tasks=[_leased(task) for task in taken])
            self.leased_by_request[request.request_id] = response
        return self.leased_by_request[request.request_id]

    def heartbeat_task(self, request: leases_pb2.HeartbeatTaskRequest) -> leases_pb2.HeartbeatTaskResponse:
        """Extends a lease."""
        task = self._fenced(request.lease)
        task.heartbeats += 1
        task.expires_at = max(task.expires_at, self._now() + (request.lease_ms or task.lease_ms) / 1000)
        return leases_pb2.HeartbeatTaskResponse(cancel_requested=task.cancel_requested)

    def heartbeat_tasks(self, request: leases_pb2.HeartbeatTasksRequest) -> leases_pb2.HeartbeatTasksResponse:
        """Extends leases, each with its own outcome."""
        response = leases_pb2.HeartbeatTasksResponse()
        for item in request.items:
            answer = response.items.add()
            try:
                answer.extended.CopyFrom(self.heartbeat_task(item))
            except Refused as refused:
                answer.refused.CopyFrom(refusal(str(refused)))
        return response

    def report_progress(self, request: leases_pb2.ReportProgressRequest) -> leases_pb2.ReportProgressResponse:
        """Keeps a report."""
        reports = self._fenced(request.lease).progress
        reports.append(request)
        return leases_pb2.ReportProgressResponse(sequence=len(reports))

    def load_input(self, request: leases_pb2.LoadInputRequest) -> leases_pb2.LoadInputResponse:
        """The input and the wake."""
        task = self._fenced(request.lease)
        return leases_pb2.LoadInputResponse(input=types_pb2.Payload(data=task.input), wake=task.wake)

    def load_early_answers(self, request: leases_pb2.LoadEarlyAnswersRequest) -> leases_pb2.LoadEarlyAnswersResponse:
        """What was answered before it was asked."""
        answers = self._fenced(request.lease).early_answers
        found = [types_pb2.InputAnswer(key=key, response=response) for key, response in answers.items()]
        return leases_pb2.LoadEarlyAnswersResponse(answers=found)

    def load_checkpoints(self, request: leases_pb2.LoadCheckpointsRequest) -> leases_pb2.LoadCheckpointsResponse:
        """A page of checkpoints."""
        found = self._fenced(request.lease).checkpoints[request.from_revision :]
        return leases_pb2.LoadCheckpointsResponse(checkpoints=found[: min(request.page_size or _PAGE, _PAGE)])

    def append_checkpoint(self, request: leases_pb2.AppendCheckpointRequest) -> leases_pb2.AppendCheckpointResponse:
        """Appends one checkpoint."""
        task = self._fenced(request.lease)
        if request.revision != len(task.checkpoints):
            raise Refused("REVISION_CONFLICT")
        task.checkpoints.append(
            types_pb2.Checkpoint(
                revision=request.revision, step=request.step, payload=request.payload, token=request.lease.token
            )
        )
        return leases_pb2.AppendCheckpointResponse()

    def complete_task(self, request: leases_pb2.CompleteTaskRequest) -> leases_pb2.CompleteTaskResponse:
        """Ends a task with its result."""
        task = self._find(request.lease)
        if not (task.state == "COMPLETED" and task.token == request.lease.token and task.result == request.result.data):
            task = self._settled(request.lease)
            task.state, task.result = "COMPLETED", request.result.data
        return leases_pb2.CompleteTaskResponse()

    def fail_task(self, request: leases_pb2.FailTaskRequest) -> leases_pb2.FailTaskResponse:
        """Ends a task with an error, or lets it be tried again at once."""
        task = self._settled(request.lease)
        response = leases_pb2.FailTaskResponse()
        if request.HasField("retry"):
            task.state, task.retry, task.retries = "QUEUED", request.retry, task.retries + 1
            response.retry_at.GetCurrentTime()
        else:
            task.state, task.error = "FAILED", request.error
        return response

    def release_task(self, request: leases_pb2.ReleaseTaskRequest) -> leases_pb2.ReleaseTaskResponse:
        """Gives a task back, to rest for as long as is asked."""
        task = self._settled(request.lease)
        task.state, task.ready_at = "QUEUED", self._now() + request.delay_ms / 1000
        return leases_pb2.ReleaseTaskResponse()

    def confirm_cancel(self, request: leases_pb2.ConfirmCancelRequest) -> leases_pb2.ConfirmCancelResponse:
        """Ends a task as CANCELLED."""
        self._settled(request.lease).state = "CANCELLED"
        return leases_pb2.ConfirmCancelResponse()

    def suspend_task(self, request: leases_pb2.SuspendTaskRequest) -> leases_pb2.SuspendTaskResponse:
        """Suspends a task; what it waits for may be there already."""
        task, digest = self._find(request.lease), request.SerializeToString(deterministic=True)
        if task.last_suspension is not None and task.last_suspension[0] == digest and task.token == request.lease.token:
            return task.last_suspension[1]
        task = self._settled(request.lease)
        keys: list[str] = []
        for question in request.input.requests:
            task.asked[question.name] += 1
            times = task.asked[question.name]
            keys.append(question.name if times == 1 else f"{question.name}#{times}")
        early = {key: task.early_answers.pop(key) for key in keys if key in task.early_answers}
        given = {key: response for key, response in early.items() if key in request.input.fitting}
        after_ms = request.timer.delay_ms or request.signal.timeout_ms or request.input.timeout_ms
        task.waiting = Waiting(request, self._now() + after_ms / 1000 if after_ms else None, keys, given)
        task.state, task.wake = ("CANCELLED" if task.cancel_requested else "WAITING"), None
        response = leases_pb2.SuspendTaskResponse(keys=keys)
        task.last_suspension = (digest, response)
        self._end_wait(task)
        return response

    def reserve_budget(self, request: leases_pb2.ReserveBudgetRequest) -> leases_pb2.ReserveBudgetResponse:
        """Holds what a task may still use."""
        task = self._fenced(request.lease)
        if self.budget is None:
            raise Refused("BUDGET_NOT_CONFIGURED")
        adopted = self.budget.reserve(task.task_id, _given(request.limits), _given(request.usage))
        task.last_settlement = None
        return leases_pb2.ReserveBudgetResponse(adopted=adopted)

    def settle_budget(self, request: leases_pb2.SettleBudgetRequest) -> leases_pb2.SettleBudgetResponse:
        """Charges what a task used. The same settlement is answered again."""
        task = self._find(request.lease)
        if task.last_settlement != request:
            task = self._fenced(request.lease)
            if self.budget is None:
                raise Refused("BUDGET_NOT_CONFIGURED")
            self.budget.settle(task.task_id, _given(request.usage))
            task.last_settlement = request
        return leases_pb2.SettleBudgetResponse()

    def publish_signal(self, task: MemoryTask, name: str, payload: types_pb2.Payload) -> None:
        """Sends a signal, which is kept until the task waits for it."""
        task.signals.append(leases_pb2.SignalWake(signal_id=str(uuid.uuid4()), name=name, payload=payload))
        self._end_wait_in_time(task)
        self._end_wait(task)

    def answer_input(self, task: MemoryTask, key: str, response: types_pb2.Payload) -> bool:
        """Answers an open question; says whether it was one."""
        self._end_wait_in_time(task)
        if task.state != "WAITING" or task.waiting is None or key not in task.waiting.questions:
            return False
        task.waiting.answers[key] = response
        self._end_wait(task)
        return True

    def cancel_task(self, task: MemoryTask) -> None:
        """Wishes a task's end; one that nobody runs ends at once."""
        task.cancel_requested = True
        if task.state in ("QUEUED", "WAITING"):
            task.state = "CANCELLED"

    def _end_wait(self, task: MemoryTask) -> None:
        """Ends a wait whose signal or answers are there."""
        waiting = task.waiting
        if task.state != "WAITING" or waiting is None:
            return
        if waiting.request.HasField("signal"):
            name = waiting.request.signal.name
            signal = next((each for each in task.signals if each.name == name), None)
            if signal is not None:
                task.signals.remove(signal)
                self._wake(task, leases_pb2.Wake(step=waiting.request.step, signal=signal))
        elif waiting.request.HasField("input") and not waiting.questions:
            self._wake(task, leases_pb2.Wake(step=waiting.request.step, input=_input_wake(waiting)))

    def _end_wait_in_time(self, task: MemoryTask) -> None:
        waiting = task.waiting
        if task.state != "WAITING" or waiting is None or waiting.until is None or waiting.until > self._now():
            return
        wake = leases_pb2.Wake(step=waiting.request.step)
        match waiting.request.WhichOneof("wait"):
            case "timer":
                wake.timer.SetInParent()
            case "signal":
                wake.timeout.SetInParent()
            case _:
                wake.input.CopyFrom(_input_wake(waiting))
        self._wake(task, wake)

    def _wake(self, task: MemoryTask, wake: leases_pb2.Wake) -> None:
        task.state, task.wake, task.waiting = "QUEUED", wake, None

    def _find(self, lease: types_pb2.Lease) -> MemoryTask:
        return next(task for task in self.tasks if task.task_id == lease.task_id)

    def _fenced(self, lease: types_pb2.Lease) -> MemoryTask:
        task = self._find(lease)
        is_held = task.state == "LEASED" and task.expires_at > self._now()
        if not (is_held and (task.worker_id, task.token) == (lease.worker_id, lease.token)):
            raise Refused("LEASE_LOST")
        task.showed_life = True
        return task

    def _settled(self, lease: types_pb2.Lease) -> MemoryTask:
        task = self._fenced(lease)
        if self.budget is not None and task.task_id in self.budget.held:
            raise Refused("BUDGET_RESERVED")
        return task


def _leased(task: MemoryTask) -> leases_pb2.LeasedTask:
    return leases_pb2.LeasedTask(
        lease=types_pb2.Lease(tenant_id=TENANT, task_id=task.task_id, worker_id=task.worker_id, token=task.token),
        contract=task.contract,
        input=None if task.input_left_out else types_pb2.Payload(data=task.input),
        input_left_out=task.input_left_out,
        attempts=task.attempts,
        crashes=task.crashes,
        retries=task.retries,
        checkpoints=len(task.checkpoints),
        cancel_requested=task.cancel_requested,
        wake=None if task.input_left_out else task.wake,
        early_answers=len(task.early_answers),
        lease_ms=task.lease_ms,
    )


def _given(amounts: types_pb2.BudgetAmounts) -> dict[str, int]:
    return {one.name: value for one, value in amounts.ListFields()}


def _input_wake(waiting: Waiting) -> leases_pb2.InputWake:
    answered = [key for key in waiting.keys if key in waiting.answers]
    answers = [types_pb2.InputAnswer(key=key, response=waiting.answers[key]) for key in answered]
    return leases_pb2.InputWake(answers=answers, keys=waiting.keys)
