"""From the arguments of the model's operations to calls of the API. One line a field, nothing decided."""

from collections.abc import Mapping, Sequence
from typing import Any

from taskstore.v1 import leases_pb2, retention_pb2, tasks_pb2, tenants_pb2, types_pb2

from tests.model.checks import Owner
from tests.model.rows import Lease


def _owner(owner: Owner | None) -> types_pb2.Owner | None:
    return None if owner is None else types_pb2.Owner(issuer=owner[0], subject=owner[1])


def _payload(data: bytes | None, media_type: str = "") -> types_pb2.Payload | None:
    return None if data is None else types_pb2.Payload(media_type=media_type, data=data)


def _lease(lease: Lease) -> types_pb2.Lease:
    return types_pb2.Lease(**lease._asdict())


def _answers(answers: Mapping[str, bytes] | None) -> list[types_pb2.InputAnswer]:
    return [types_pb2.InputAnswer(key=key, response=_payload(data)) for key, data in (answers or {}).items()]


def create_task(
    *, tenant_id: str, request_id: str, workflow: str, version: int, owner: Owner, data: bytes, media_type: str = "",
    priority: int = 0, ttl_ms: int = 0, poll_ms: int = 0, deadline_ms: int = 0, abandon_ms: int = 0,
    early: Mapping[str, bytes] | None = None, digest: bytes = b"",
) -> tasks_pb2.CreateTaskRequest:  # fmt: skip
    contract = types_pb2.TaskContract(
        tool="tool", workflow=workflow, workflow_version=version, owner=_owner(owner), ttl_ms=ttl_ms, poll_interval_ms=poll_ms,
        execution_deadline_ms=deadline_ms,
    )  # fmt: skip
    return tasks_pb2.CreateTaskRequest(
        tenant_id=tenant_id, request_id=request_id, contract=contract, priority=priority, input=_payload(data, media_type),
        abandon_after_ms=abandon_ms, early_answers=_answers(early), content_digest=digest,
    )  # fmt: skip


def fork_task(*, owner: Owner | None = None, **fields: Any) -> tasks_pb2.ForkTaskRequest:
    return tasks_pb2.ForkTaskRequest(owner=_owner(owner), **fields)


def get_task(*, owner: Owner | None = None, **fields: Any) -> tasks_pb2.GetTaskRequest:
    return tasks_pb2.GetTaskRequest(owner=_owner(owner), **fields)


def list_tasks(*, tenant_id: str, states: Sequence[str] = (), workflow: str = "") -> tasks_pb2.ListTasksRequest:
    numbers = [types_pb2.TaskState.Value(f"TASK_STATE_{state}") for state in states]
    return tasks_pb2.ListTasksRequest(tenant_id=tenant_id, states=numbers, workflow=workflow, page_size=1_000)


def list_task_history(*, tenant_id: str, task_id: str) -> tasks_pb2.ListTaskHistoryRequest:
    return tasks_pb2.ListTaskHistoryRequest(tenant_id=tenant_id, task_id=task_id, page_size=256)


def list_checkpoints(*, tenant_id: str, task_id: str, from_revision: int = 0) -> tasks_pb2.ListCheckpointsRequest:
    return tasks_pb2.ListCheckpointsRequest(
        tenant_id=tenant_id, task_id=task_id, from_revision=from_revision, page_size=256
    )  # fmt: skip


def get_checkpoint(**fields: Any) -> tasks_pb2.GetCheckpointRequest:
    return tasks_pb2.GetCheckpointRequest(**fields)


def cancel_task(*, owner: Owner | None = None, **fields: Any) -> tasks_pb2.CancelTaskRequest:
    return tasks_pb2.CancelTaskRequest(owner=_owner(owner), **fields)


def attach_task(*, abandon_ms: int, owner: Owner | None = None, **fields: Any) -> tasks_pb2.AttachTaskRequest:
    return tasks_pb2.AttachTaskRequest(owner=_owner(owner), abandon_after_ms=abandon_ms, **fields)


def answer_inputs(*, answers: Mapping[str, bytes], owner: Owner | None = None, **fields: Any) -> tasks_pb2.AnswerInputsRequest:
    return tasks_pb2.AnswerInputsRequest(owner=_owner(owner), answers=_answers(answers), **fields)


def publish_signal(
    *, data: bytes, media_type: str = "", owner: Owner | None = None, **fields: Any
) -> tasks_pb2.PublishSignalRequest:
    return tasks_pb2.PublishSignalRequest(owner=_owner(owner), payload=_payload(data, media_type), **fields)


def get_signal(**fields: Any) -> tasks_pb2.GetSignalRequest:
    return tasks_pb2.GetSignalRequest(**fields)


def lease_tasks(*, workflows: Sequence[tuple[str, int]], **fields: Any) -> leases_pb2.LeaseTasksRequest:
    wanted = [leases_pb2.WorkflowVersion(workflow=name, version=version) for name, version in workflows]
    return leases_pb2.LeaseTasksRequest(workflows=wanted, **fields)


def heartbeat_task(*, lease: Lease, lease_ms: int) -> leases_pb2.HeartbeatTaskRequest:
    return leases_pb2.HeartbeatTaskRequest(lease=_lease(lease), lease_ms=lease_ms)


def report_progress(*, lease: Lease, **fields: Any) -> leases_pb2.ReportProgressRequest:
    return leases_pb2.ReportProgressRequest(lease=_lease(lease), **fields)


def load_input(*, lease: Lease) -> leases_pb2.LoadInputRequest:
    return leases_pb2.LoadInputRequest(lease=_lease(lease))


def load_checkpoints(*, lease: Lease, from_revision: int = 0) -> leases_pb2.LoadCheckpointsRequest:
    return leases_pb2.LoadCheckpointsRequest(lease=_lease(lease), from_revision=from_revision)


def append_checkpoint(
    *, lease: Lease, revision: int, step: str, data: bytes, media_type: str = ""
) -> leases_pb2.AppendCheckpointRequest:
    return leases_pb2.AppendCheckpointRequest(
        lease=_lease(lease), revision=revision, step=step, payload=_payload(data, media_type)
    )  # fmt: skip


def complete_task(*, lease: Lease, data: bytes, media_type: str = "") -> leases_pb2.CompleteTaskRequest:
    return leases_pb2.CompleteTaskRequest(lease=_lease(lease), result=_payload(data, media_type))


def fail_task(
    *, lease: Lease, message: str, code: int = -32000, data: bytes | None = None, retry: tuple[int, int, int] | None = None
) -> leases_pb2.FailTaskRequest:
    policy = None
    if retry is not None:
        policy = leases_pb2.RetryPolicy(max_attempts=retry[0], initial_backoff_ms=retry[1], max_backoff_ms=retry[2])
    error = types_pb2.TaskError(code=code, message=message, data=_payload(data))
    return leases_pb2.FailTaskRequest(lease=_lease(lease), error=error, retry=policy)


def release_task(*, lease: Lease, delay_ms: int) -> leases_pb2.ReleaseTaskRequest:
    return leases_pb2.ReleaseTaskRequest(lease=_lease(lease), delay_ms=delay_ms)


def confirm_cancel(*, lease: Lease) -> leases_pb2.ConfirmCancelRequest:
    return leases_pb2.ConfirmCancelRequest(lease=_lease(lease))


def suspend_task(
    *, lease: Lease, step: str, timer_ms: int | None = None, signal: str | None = None,
    questions: Sequence[tuple[str, bytes]] = (), timeout_ms: int = 0, fitting: Sequence[str] = (),
) -> leases_pb2.SuspendTaskRequest:  # fmt: skip
    request = leases_pb2.SuspendTaskRequest(lease=_lease(lease), step=step)
    if timer_ms is not None:
        request.timer.delay_ms = timer_ms
        request.timer.SetInParent()
    elif signal is not None:
        request.signal.CopyFrom(leases_pb2.NewSignalWait(name=signal, timeout_ms=timeout_ms))
    else:
        asked = [
            leases_pb2.NewInputRequest(name=name, method="elicitation/create", params=_payload(data))
            for name, data in questions
        ]
        request.input.CopyFrom(leases_pb2.NewInputWait(requests=asked, timeout_ms=timeout_ms, fitting=fitting))
    return request


def set_tenant_policy(*, tenant_id: str, **fields: Any) -> tenants_pb2.SetTenantPolicyRequest:
    return tenants_pb2.SetTenantPolicyRequest(tenant_id=tenant_id, policy=tenants_pb2.TenantPolicy(**fields))


def get_tenant(*, tenant_id: str) -> tenants_pb2.GetTenantRequest:
    return tenants_pb2.GetTenantRequest(tenant_id=tenant_id)


def remove_tasks(**fields: Any) -> retention_pb2.RemoveTasksRequest:
    return retention_pb2.RemoveTasksRequest(**fields)


def list_tombstones(**fields: Any) -> retention_pb2.ListTombstonesRequest:
    return retention_pb2.ListTombstonesRequest(**fields)


def get_tombstone(**fields: Any) -> retention_pb2.GetTombstoneRequest:
    return retention_pb2.GetTombstoneRequest(**fields)


def compact_signals(**fields: Any) -> retention_pb2.CompactSignalsRequest:
    return retention_pb2.CompactSignalsRequest(**fields)
