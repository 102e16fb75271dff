"""From messages of workers to values: every field is checked."""

import math
from collections.abc import Sequence

from taskstore.v1 import leases_pb2, types_pb2

from store_service.model import limits
from store_service.model.leases import (
    Claim,
    Disposition,
    Finish,
    Heartbeat,
    Lease,
    NewCheckpoint,
    Report,
    RetryPolicy,
    Suspend,
    WorkflowVersion,
)
from store_service.model.limits import check_name, check_range, check_task_id, check_text
from store_service.model.payloads import check_payload
from store_service.model.refusals import invalid
from store_service.model.waits import NewQuestion, WaitKind
from store_service.rpc.reading import read_json_payload, read_question_name

_INT31 = range(2**31)


def read_lease(message: types_pb2.Lease) -> Lease:
    """A lease as a worker presents it."""
    return Lease(
        check_name("lease.tenant_id", message.tenant_id),
        check_task_id("lease.task_id", message.task_id),
        check_name("lease.worker_id", message.worker_id),
        message.token,
        message.epoch,
    )


def read_claim(message: leases_pb2.LeaseTasksRequest) -> Claim:
    """What a worker asks for."""
    check_range("workflows", len(message.workflows), range(1, 501))
    check_range("tenant_ids", len(message.tenant_ids), range(1_001))
    lease_ms = check_range("lease_ms", message.lease_ms, limits.LEASE_MS)
    workflows = [
        WorkflowVersion(
            check_text("workflows.workflow", one.workflow, most_bytes=256),
            check_range("workflows.version", one.version, range(1, 2**31)),
            check_range("workflows.lease_ms", one.lease_ms or lease_ms, limits.LEASE_MS),
        )
        for one in message.workflows
    ]
    workflows = list(dict.fromkeys(workflows))
    if len({one.lane for one in workflows}) < len(workflows):
        raise invalid("workflows.lease_ms", "must be the same where a workflow is named twice")
    return Claim(
        request_id=check_text("request_id", message.request_id, most_bytes=128),
        worker_id=check_name("worker_id", message.worker_id),
        workflows=tuple(workflows),
        tenant_ids=tuple(check_name("tenant_ids", tenant_id) for tenant_id in message.tenant_ids),
        limit=check_range("limit", message.limit, range(1, limits.BATCH_ITEMS + 1)),
        wait_ms=check_range("wait_ms", message.wait_ms, limits.WAIT_MS),
        is_new=message.is_new,
    )


def read_heartbeat(message: leases_pb2.HeartbeatTaskRequest) -> Heartbeat:
    """A wish to hold a lease longer."""
    lease_ms = check_range("lease_ms", message.lease_ms, limits.LEASE_MS) if message.lease_ms else 0
    return Heartbeat(read_lease(message.lease), lease_ms)


def read_report(message: leases_pb2.ReportProgressRequest) -> Report:
    """A progress report."""
    total = message.total if message.HasField("total") else None
    if not math.isfinite(message.value) or (total is not None and not math.isfinite(total)):
        raise invalid("value and total", "must be finite")
    text = check_text("message", message.message, most_bytes=1024, blank=True)
    return Report(read_lease(message.lease), message.value, total, text)


def read_new_checkpoint(message: leases_pb2.AppendCheckpointRequest) -> NewCheckpoint:
    """A checkpoint to be appended."""
    return NewCheckpoint(
        read_lease(message.lease),
        check_range("revision", message.revision, _INT31),
        check_text("step", message.step, most_bytes=256),
        check_payload("payload", message.payload.media_type, message.payload.data, most_bytes=limits.CHECKPOINT_BYTES),
    )


def read_complete(message: leases_pb2.CompleteTaskRequest) -> Finish:
    """The completion of a task."""
    result = check_payload("result", message.result.media_type, message.result.data, most_bytes=limits.RESULT_BYTES)
    return Finish(lease=read_lease(message.lease), disposition=Disposition.COMPLETED, payload=result)


def read_fail(message: leases_pb2.FailTaskRequest) -> Finish:
    """The failure of a task, with the policy by which it is tried again."""
    error, retry = message.error, None
    if message.HasField("retry"):
        initial = check_range("retry.initial_backoff_ms", message.retry.initial_backoff_ms, limits.DELAY_MS[1:])
        retry = RetryPolicy(
            check_range("retry.max_attempts", message.retry.max_attempts, range(1, 2**31)),
            initial,
            check_range("retry.max_backoff_ms", message.retry.max_backoff_ms, limits.DELAY_MS[initial:]),
        )
    data = None
    if error.HasField("data"):
        data = read_json_payload("error.data", error.data, most_bytes=limits.ERROR_DATA_BYTES)
    return Finish(
        lease=read_lease(message.lease),
        disposition=Disposition.FAILED,
        payload=data,
        error_code=error.code,
        error_message=check_text("error.message", error.message, most_bytes=1024),
        retry=retry,
    )


def read_release(message: leases_pb2.ReleaseTaskRequest) -> Finish:
    """The return of a task."""
    delay_ms = check_range("delay_ms", message.delay_ms, limits.DELAY_MS)
    return Finish(lease=read_lease(message.lease), disposition=Disposition.RELEASED, delay_ms=delay_ms)


def read_confirm_cancel(message: leases_pb2.ConfirmCancelRequest) -> Finish:
    """The confirmed cancel of a task."""
    return Finish(lease=read_lease(message.lease), disposition=Disposition.CANCELLED)


def read_suspend(message: leases_pb2.SuspendTaskRequest) -> Suspend:
    """A wish to suspend a leased task."""
    lease = read_lease(message.lease)
    step = check_text("step", message.step, most_bytes=256)
    match message.WhichOneof("wait"):
        case "timer":
            delay_ms = check_range("timer.delay_ms", message.timer.delay_ms, limits.DEADLINE_MS[1:])
            return Suspend(lease=lease, step=step, kind=WaitKind.TIMER, delay_ms=delay_ms)
        case "signal":
            name = check_name("signal.name", message.signal.name)
            timeout_ms = check_range("signal.timeout_ms", message.signal.timeout_ms, limits.DEADLINE_MS)
            return Suspend(lease=lease, step=step, kind=WaitKind.SIGNAL, delay_ms=timeout_ms, signal_name=name)
        case "input":
            check_range("input.requests", len(message.input.requests), range(1, limits.QUESTIONS_PER_WAIT + 1))
            questions = tuple(map(_read_question, message.input.requests))
            if len({question.name for question in questions}) < len(questions):
                raise invalid("input.requests.name", "must be different for each question of a wait")
            timeout_ms = check_range("input.timeout_ms", message.input.timeout_ms, limits.DEADLINE_MS)
            fitting = _read_keys("input.fitting", message.input.fitting)
            return Suspend(
                lease=lease, step=step, kind=WaitKind.INPUT, delay_ms=timeout_ms, questions=questions, fitting=fitting
            )
        case _:
            raise invalid("wait", "must be a timer, a signal or an input")


def _read_question(message: leases_pb2.NewInputRequest) -> NewQuestion:
    name = read_question_name("input.requests.name", message.name)
    method = check_text("input.requests.method", message.method, most_bytes=128)
    params = read_json_payload("input.requests.params", message.params, most_bytes=limits.QUESTION_BYTES).data
    return NewQuestion(name, method, params)


def _read_keys(field: str, keys: Sequence[str]) -> tuple[str, ...]:
    """Keys of early answers, each once."""
    check_range(field, len(keys), range(limits.QUESTIONS_PER_WAIT + 1))
    return tuple(dict.fromkeys(check_text(field, key, most_bytes=160) for key in keys))
