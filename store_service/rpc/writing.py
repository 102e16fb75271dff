"""From values to messages. It cannot fail."""

from collections.abc import Hashable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import assert_never

from google.protobuf import timestamp_pb2
from taskstore.v1 import leases_pb2, retention_pb2, tasks_pb2, tenants_pb2, types_pb2

from store_service.model.audit import AuditLine
from store_service.model.leases import (
    Extended,
    LeasedTask,
)
from store_service.model.payloads import JSON, Payload
from store_service.model.purges import TombstoneExport
from store_service.model.retention import Hold, Tombstone
from store_service.model.states import TaskState
from store_service.model.tasks import (
    Checkpoint,
    Created,
    HistoryLine,
    Progress,
    Task,
    TaskContract,
    TaskError,
    Tenant,
)
from store_service.model.waits import Answer, Wait, WaitKind, Wake, WakeCause

_INT31 = range(2**31)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_REMEMBERED_BYTES = 4096
Alike = dict[Hashable, types_pb2.Task]
_STATES = {state: types_pb2.TaskState.Value(f"TASK_STATE_{state}") for state in TaskState}


def to_time(value: datetime | None) -> timestamp_pb2.Timestamp | None:
    """A time, or none."""
    if value is None:
        return None
    since = value - _EPOCH  # a quarter of what `FromDatetime` takes
    return timestamp_pb2.Timestamp(seconds=since.days * 86_400 + since.seconds, nanos=since.microseconds * 1_000)


def to_payload(value: Payload | None) -> types_pb2.Payload | None:
    """A payload, or none."""
    return None if value is None else types_pb2.Payload(media_type=value.media_type, data=value.data)


def to_contract(value: TaskContract) -> types_pb2.TaskContract:
    """A contract: a message that several share."""
    if len(value.client_capabilities) + len(value.output_schema) + len(value.baggage) > _REMEMBERED_BYTES:
        return _make_contract(value)
    return _remembered_contract(value)


@lru_cache(maxsize=1024)
def _remembered_contract(value: TaskContract) -> types_pb2.TaskContract:
    return _make_contract(value)


def _make_contract(value: TaskContract) -> types_pb2.TaskContract:
    return types_pb2.TaskContract(
        tool=value.tool,
        workflow=value.workflow,
        workflow_version=value.workflow_version,
        owner=types_pb2.Owner(issuer=value.owner.issuer, subject=value.owner.subject),
        client_capabilities=value.client_capabilities,
        output_schema=value.output_schema,
        ttl_ms=value.ttl_ms,
        poll_interval_ms=value.poll_interval_ms,
        execution_deadline_ms=value.execution_deadline_ms,
        trace_parent=value.trace_parent,
        trace_state=value.trace_state,
        baggage=value.baggage,
    )


def to_task(value: Task) -> types_pb2.Task:
    """A task. Its handle ends one ttl after its end, or when it is sent back to work."""
    message = _without_outcome(value)
    _write_outcome(value, message)
    return message


def write_task(value: Task, message: types_pb2.Task) -> None:
    """The same, written where it shall stand, so that what may be large is not copied."""
    message.CopyFrom(_without_outcome(value))
    _write_outcome(value, message)


def write_created(value: Created, message: tasks_pb2.CreateTaskResponse, alike: Alike) -> None:
    """What a creation made or found, written where it shall stand. Of tasks that were just made, those of one contract and one
    moment differ in their ids alone: `alike` has the first of each, of which the others are copies."""
    task = value.task
    kind = None if value.replayed else (task.tenant_id, task.contract, task.priority, task.created_at)
    if (like := alike.get(kind)) is not None:
        message.task.CopyFrom(like)
        message.task.task_id = task.task_id
        return
    write_task(task, message.task)
    message.replayed = value.replayed
    if kind is not None:
        alike[kind] = message.task


def _without_outcome(value: Task) -> types_pb2.Task:
    handle_expires_at = value.redriven_at or (value.ended_at and value.ended_at + timedelta(milliseconds=value.contract.ttl_ms))
    return types_pb2.Task(
        tenant_id=value.tenant_id,
        task_id=value.task_id,
        state=to_state(value.state),
        contract=to_contract(value.contract),
        priority=value.priority,
        created_at=to_time(value.created_at),
        changed_at=to_time(value.changed_at),
        ended_at=to_time(value.ended_at),
        read_at=to_time(value.read_at),
        wait=_to_wait(value.wait),
        forked_from_task_id=value.forked_from or "",
        forked_from_checkpoints=value.forked_checkpoints,
        change=value.change,
        progress=to_progress(value.reports[-1]) if value.reports else None,
        cancel_requested=value.cancel_requested,
        attempts=value.attempts,
        crashes=value.crashes,
        retries=value.retries,
        checkpoints=value.checkpoints,
        worker_id=value.worker_id or "",
        token=value.token,
        lease_expires_at=to_time(value.lease_expires_at),
        handle_expires_at=to_time(handle_expires_at),
        input=to_payload(value.input),
    )


def _write_outcome(value: Task, message: types_pb2.Task) -> None:
    match value.outcome:
        case Payload(media_type, data):
            message.result.media_type = media_type
            message.result.data = data
        case TaskError(code, text, data, reason):
            message.error.CopyFrom(
                types_pb2.TaskError(
                    code=code,
                    message=text,
                    data=to_payload(data),
                    reason=types_pb2.FailureReason.Value(f"FAILURE_REASON_{reason}"),
                )
            )


def _to_wait(value: Wait | None) -> types_pb2.Wait | None:
    if value is None:
        return None
    message = types_pb2.Wait(step=value.step, until=to_time(value.until))
    match value.kind:
        case WaitKind.TIMER:
            message.timer.SetInParent()
        case WaitKind.SIGNAL:
            message.signal.name = value.signal_name or ""
        case WaitKind.INPUT:
            message.input.requests.extend(
                types_pb2.InputRequest(
                    key=question.key,
                    method=question.method,
                    params=types_pb2.Payload(media_type=JSON, data=question.params),
                    asked_at=to_time(question.asked_at),
                )
                for question in value.questions
            )
            message.input.SetInParent()
        case kind:
            assert_never(kind)
    return message


def to_wake(value: Wake | None) -> leases_pb2.Wake | None:
    """What ended a wait, or none."""
    if value is None:
        return None
    message = leases_pb2.Wake(step=value.step)
    match value.cause:
        case WakeCause.TIMER:
            message.timer.SetInParent()
        case WakeCause.TIMEOUT:
            message.timeout.SetInParent()
        case WakeCause.SIGNAL:
            message.signal.CopyFrom(
                leases_pb2.SignalWake(
                    signal_id=value.signal_id or "", name=value.signal_name or "", payload=to_payload(value.signal)
                )
            )
        case WakeCause.INPUT:
            message.input.keys.extend(value.keys)
            message.input.answers.extend(
                types_pb2.InputAnswer(key=key, response=types_pb2.Payload(media_type=JSON, data=response))
                for key, response in zip(value.keys, value.responses, strict=True)
                if response is not None
            )
        case cause:
            assert_never(cause)
    return message


def to_answer(value: Answer) -> types_pb2.InputAnswer:
    """An answer to a question."""
    return types_pb2.InputAnswer(key=value.key, response=types_pb2.Payload(media_type=JSON, data=value.response))


def to_state(value: TaskState) -> types_pb2.TaskState.ValueType:
    """A state."""
    return _STATES[value]


def to_progress(value: Progress) -> types_pb2.Progress:
    """A report."""
    return types_pb2.Progress(sequence=value.sequence, value=value.value, total=value.total, message=value.message)


def to_history_line(value: HistoryLine) -> tasks_pb2.HistoryLine:
    """A line of history."""
    return tasks_pb2.HistoryLine(
        line=value.line,
        event=tasks_pb2.HistoryEvent.Value(f"HISTORY_EVENT_{value.event}"),
        at=to_time(value.at),
        worker_id=value.worker_id or "",
        token=value.token or 0,
        detail=value.detail,
    )


def to_checkpoint(value: Checkpoint) -> types_pb2.Checkpoint:
    """A checkpoint."""
    return types_pb2.Checkpoint(
        revision=value.revision,
        step=value.step,
        payload=to_payload(value.payload),
        token=value.token,
        created_at=to_time(value.created_at),
    )


def to_leased_task(value: LeasedTask) -> leases_pb2.LeasedTask:
    """A task taken."""
    lease = value.lease
    return leases_pb2.LeasedTask(
        lease=types_pb2.Lease(
            tenant_id=lease.tenant_id,
            task_id=lease.task_id,
            worker_id=lease.worker_id,
            token=lease.token,
            epoch=lease.epoch,
        ),
        expires_at=to_time(value.expires_at),
        contract=to_contract(value.contract),
        input=to_payload(value.input),
        input_left_out=value.input is None,
        attempts=value.attempts,
        crashes=value.crashes,
        retries=value.retries,
        checkpoints=value.checkpoints,
        cancel_requested=value.cancel_requested,
        deadline_at=to_time(value.deadline_at),
        created_at=to_time(value.created_at),
        early_answers=value.early_answers,
        lease_ms=value.lease_ms,
        wake=to_wake(value.wake),
    )


def to_extended(value: Extended) -> leases_pb2.HeartbeatTaskResponse:
    """A lease that was extended."""
    return leases_pb2.HeartbeatTaskResponse(expires_at=to_time(value.expires_at), cancel_requested=value.cancel_requested)


def to_tenant(value: Tenant) -> tenants_pb2.Tenant:
    """A tenant."""
    return tenants_pb2.Tenant(
        tenant_id=value.tenant_id,
        policy=tenants_pb2.TenantPolicy(
            max_outstanding=value.policy.max_outstanding,
            max_leased=value.policy.max_leased,
            retention_ms=value.policy.retention_ms,
            max_input_bytes=value.policy.max_input_bytes,
            max_creates_per_second=value.policy.max_creates_per_second,
        ),
        outstanding=value.outstanding,
        leased=value.leased,
        pauses=[
            tenants_pb2.Pause(
                scope=tenants_pb2.WorkScope(workflow=pause.scope.workflow, workflow_version=pause.scope.version),
                actor=pause.actor,
                reason=pause.reason,
                paused_at=to_time(pause.paused_at),
            )
            for pause in value.pauses
        ],
    )


def to_tombstone(value: Tombstone) -> retention_pb2.Tombstone:
    """A tombstone."""
    return retention_pb2.Tombstone(
        tenant_id=value.tenant_id,
        cursor=value.cursor,
        task_id=value.task_id,
        tool=value.tool,
        workflow=value.workflow,
        workflow_version=value.version,
        state=to_state(value.state),
        created_at=to_time(value.created_at),
        ended_at=to_time(value.ended_at),
        removed_at=to_time(value.removed_at),
        removed_by=value.removed_by,
        history_lines=value.history_lines,
        history_digest=value.history_digest,
        history=value.history or b"",
    )


def to_hold(value: Hold) -> retention_pb2.Hold:
    """A hold."""
    return retention_pb2.Hold(
        tenant_id=value.tenant_id,
        number=value.number,
        task_id=value.task_id,
        generation=value.generation,
        reason=value.reason,
        placed_by=value.placed_by,
        placed_at=to_time(value.placed_at),
        released_by=value.released_by or "",
        released_at=to_time(value.released_at),
    )


def to_export(value: TombstoneExport) -> retention_pb2.TombstoneExport:
    """That tombstones are kept elsewhere."""
    return retention_pb2.TombstoneExport(
        tenant_id=value.tenant_id,
        through_cursor=value.through_cursor,
        receipt=value.receipt,
        confirmed_by=value.confirmed_by,
        confirmed_at=to_time(value.confirmed_at),
    )


def to_audit_line(value: AuditLine) -> tenants_pb2.AuditLine:
    """A line of the audit."""
    return tenants_pb2.AuditLine(
        tenant_id=value.tenant_id,
        cursor=value.cursor,
        caller=value.caller,
        method=value.method,
        request=value.request,
        at=to_time(value.at),
        outcome=value.outcome,
    )


def to_page_token(at: datetime, last_id: str) -> str:
    """Where the next page of a list starts: after the row of this time and id."""
    return f"{(at - _EPOCH) // timedelta(microseconds=1):x}.{last_id}"
