"""Between messages and values. Reading checks every field; writing cannot fail."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from google.protobuf import timestamp_pb2
from taskstore.v1 import leases_pb2, retention_pb2, tasks_pb2, tenants_pb2, types_pb2

from store_service.model import limits
from store_service.model.leases import (
    Claim,
    Disposition,
    Extended,
    Finish,
    Heartbeat,
    Lease,
    LeasedTask,
    NewCheckpoint,
    Report,
    RetryPolicy,
    WorkflowVersion,
)
from store_service.model.limits import check_name, check_range, check_task_id, check_text
from store_service.model.payloads import JSON, Payload, check_json, check_payload
from store_service.model.refusals import invalid
from store_service.model.states import TaskState
from store_service.model.tasks import (
    Checkpoint,
    HistoryLine,
    NewTask,
    Owner,
    Progress,
    Task,
    TaskContract,
    TaskError,
    TaskRef,
    TaskView,
    Tenant,
    Tombstone,
)

_INT31 = range(2**31)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read_owner(message: types_pb2.Owner) -> Owner:
    """An owner, both parts given."""
    return Owner(
        check_text("owner.issuer", message.issuer, most_bytes=512), check_text("owner.subject", message.subject, most_bytes=512)
    )


def read_ref(message: tasks_pb2.GetTaskRequest | tasks_pb2.CancelTaskRequest | tasks_pb2.AttachTaskRequest) -> TaskRef:
    """Which task a caller means."""
    owner = read_owner(message.owner) if message.HasField("owner") else None
    return TaskRef(check_name("tenant_id", message.tenant_id), check_task_id("task_id", message.task_id), owner)


def read_view(view: types_pb2.TaskView.ValueType) -> TaskView:
    """How much of a task is wanted."""
    check_range("view", view, range(types_pb2.TASK_VIEW_FULL + 1))
    return TaskView(max(view, types_pb2.TASK_VIEW_BASIC))


def read_states(states: Sequence[types_pb2.TaskState.ValueType]) -> tuple[TaskState, ...]:
    """A filter of states."""
    for state in states:
        check_range("states", state, range(1, types_pb2.TASK_STATE_CANCELLED + 1))
    return tuple(TaskState(types_pb2.TaskState.Name(state).removeprefix("TASK_STATE_")) for state in states)


def read_time(field: str, message: timestamp_pb2.Timestamp) -> datetime:
    """A point in time that the calendar knows."""
    try:
        return message.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise invalid(field, "must be a time between the years 1 and 9999") from None


def read_new_task(message: tasks_pb2.CreateTaskRequest) -> NewTask:
    """A task to be created."""
    return NewTask(
        tenant_id=check_name("tenant_id", message.tenant_id),
        request_id=check_text("request_id", message.request_id, most_bytes=128),
        contract=_read_contract(message.contract),
        priority=message.priority,
        input=check_payload("input", message.input.media_type, message.input.data, most_bytes=limits.INPUT_BYTES),
        abandon_after_ms=check_range("abandon_after_ms", message.abandon_after_ms, limits.DEADLINE_MS),
    )


def _read_contract(message: types_pb2.TaskContract) -> TaskContract:
    field = "contract."
    return TaskContract(
        tool=check_text(field + "tool", message.tool, most_bytes=128, blank=True),
        workflow=check_text(field + "workflow", message.workflow, most_bytes=256),
        workflow_version=check_range(field + "workflow_version", message.workflow_version, range(1, 2**31)),
        owner=read_owner(message.owner),
        client_capabilities=_read_json(
            field + "client_capabilities", message.client_capabilities, most_bytes=limits.CAPABILITIES_BYTES
        ),
        output_schema=_read_json(field + "output_schema", message.output_schema, most_bytes=limits.OUTPUT_SCHEMA_BYTES),
        ttl_ms=check_range(field + "ttl_ms", message.ttl_ms or limits.DEFAULT_TTL_MS, limits.TTL_MS),
        poll_interval_ms=check_range(
            field + "poll_interval_ms", message.poll_interval_ms or limits.DEFAULT_POLL_MS, limits.POLL_MS
        ),
        execution_deadline_ms=check_range(field + "execution_deadline_ms", message.execution_deadline_ms, limits.DEADLINE_MS),
        trace_parent=check_text(field + "trace_parent", message.trace_parent, most_bytes=512, blank=True),
    )


def _read_json(field: str, data: bytes, *, most_bytes: int) -> bytes:
    if len(data) > most_bytes:
        raise invalid(field, f"must be at most {most_bytes} bytes")
    if data:
        check_json(field, data)
    return data


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
    workflows = [
        WorkflowVersion(
            check_text("workflows.workflow", one.workflow, most_bytes=256),
            check_range("workflows.version", one.version, range(1, 2**31)),
        )
        for one in message.workflows
    ]
    return Claim(
        request_id=check_text("request_id", message.request_id, most_bytes=128),
        worker_id=check_name("worker_id", message.worker_id),
        workflows=tuple(dict.fromkeys(workflows)),
        tenant_ids=tuple(check_name("tenant_ids", tenant_id) for tenant_id in message.tenant_ids),
        limit=check_range("limit", message.limit, range(1, limits.BATCH_ITEMS + 1)),
        lease_ms=check_range("lease_ms", message.lease_ms, limits.LEASE_MS),
        wait_ms=check_range("wait_ms", message.wait_ms, limits.WAIT_MS),
    )


def read_heartbeat(message: leases_pb2.HeartbeatTaskRequest) -> Heartbeat:
    """A wish to hold a lease longer."""
    return Heartbeat(read_lease(message.lease), check_range("lease_ms", message.lease_ms, limits.LEASE_MS))


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
        data = check_payload("error.data", error.data.media_type, error.data.data, most_bytes=limits.ERROR_DATA_BYTES)
        if data.media_type != JSON:
            raise invalid("error.data.media_type", f"must be {JSON}")
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


def to_time(value: datetime | None) -> timestamp_pb2.Timestamp | None:
    """A time, or none."""
    if value is None:
        return None
    message = timestamp_pb2.Timestamp()
    message.FromDatetime(value)
    return message


def to_payload(value: Payload | None) -> types_pb2.Payload | None:
    """A payload, or none."""
    return None if value is None else types_pb2.Payload(media_type=value.media_type, data=value.data)


def to_contract(value: TaskContract) -> types_pb2.TaskContract:
    """A contract."""
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
    )


def to_task(value: Task) -> types_pb2.Task:
    """A task. Its handle ends one ttl after its end."""
    handle_expires_at = value.ended_at and value.ended_at + timedelta(milliseconds=value.contract.ttl_ms)
    message = types_pb2.Task(
        tenant_id=value.tenant_id,
        task_id=str(value.task_id),
        state=to_state(value.state),
        contract=to_contract(value.contract),
        priority=value.priority,
        created_at=to_time(value.created_at),
        changed_at=to_time(value.changed_at),
        ended_at=to_time(value.ended_at),
        read_at=to_time(value.read_at),
        change=value.change,
        progress=_to_progress(value.progress),
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
    match value.outcome:
        case Payload():
            message.result.CopyFrom(types_pb2.Payload(media_type=value.outcome.media_type, data=value.outcome.data))
        case TaskError(code, text, data, reason):
            message.error.CopyFrom(
                types_pb2.TaskError(
                    code=code,
                    message=text,
                    data=to_payload(data),
                    reason=types_pb2.FailureReason.Value(f"FAILURE_REASON_{reason}"),
                )
            )
    return message


def to_state(value: TaskState) -> types_pb2.TaskState.ValueType:
    """A state."""
    return types_pb2.TaskState.Value(f"TASK_STATE_{value}")


def _to_progress(value: Progress | None) -> types_pb2.Progress | None:
    if value is None:
        return None
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
            task_id=str(lease.task_id),
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
    )


def to_extended(value: Extended) -> leases_pb2.HeartbeatTaskResponse:
    """A lease that was extended."""
    return leases_pb2.HeartbeatTaskResponse(expires_at=to_time(value.expires_at), cancel_requested=value.cancel_requested)


def to_tenant(value: Tenant) -> tenants_pb2.Tenant:
    """A tenant."""
    return tenants_pb2.Tenant(
        tenant_id=value.tenant_id,
        policy=tenants_pb2.TenantPolicy(
            max_outstanding=value.max_outstanding, max_leased=value.max_leased, retention_ms=value.retention_ms
        ),
        outstanding=value.outstanding,
        leased=value.leased,
    )


def to_tombstone(value: Tombstone) -> retention_pb2.Tombstone:
    """A tombstone."""
    return retention_pb2.Tombstone(
        tenant_id=value.tenant_id,
        cursor=value.cursor,
        task_id=str(value.task_id),
        tool=value.tool,
        workflow=value.workflow,
        workflow_version=value.version,
        state=to_state(value.state),
        created_at=to_time(value.created_at),
        ended_at=to_time(value.ended_at),
        removed_at=to_time(value.removed_at),
    )


def to_page_token(last: Task) -> str:
    """Where the next page of a list starts."""
    return f"{(last.created_at - _EPOCH) // timedelta(microseconds=1):x}.{last.task_id.hex}"


def read_page_token(token: str) -> tuple[datetime, UUID] | None:
    """Where a page starts; None for the first."""
    if not token:
        return None
    try:
        micros, _, task_id = token.partition(".")
        return _EPOCH + timedelta(microseconds=int(micros, 16)), UUID(hex=task_id)
    except (ValueError, OverflowError):
        raise invalid("page_token", "must be one that an earlier answer gave") from None
