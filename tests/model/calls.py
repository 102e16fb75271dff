"""From the arguments of the model's operations to calls of the API. One line a field, nothing decided."""

from collections.abc import Sequence
from typing import Any

from google.protobuf import timestamp_pb2
from taskstore.v1 import budgets_pb2, leases_pb2, retention_pb2, tasks_pb2, tenants_pb2, types_pb2

from tests.model.contract.checks import Answer, Owner
from tests.model.contract.ledger import Amounts
from tests.model.contract.rows import CleanupLease, Lease


def _owner(owner: Owner | None) -> types_pb2.Owner | None:
    return None if owner is None else types_pb2.Owner(issuer=owner[0], subject=owner[1])


def _payload(data: bytes | None, media_type: str = "") -> types_pb2.Payload | None:
    return None if data is None else types_pb2.Payload(media_type=media_type, data=data)


def _lease(lease: Lease) -> types_pb2.Lease:
    return types_pb2.Lease(**lease._asdict())


def _answers(answers: Sequence[tuple[str, bytes]], media_type: str) -> list[types_pb2.InputAnswer]:
    return [types_pb2.InputAnswer(key=key, response=_payload(data, media_type)) for key, data in answers]


def _time(us: int | None) -> timestamp_pb2.Timestamp | None:
    return None if us is None else timestamp_pb2.Timestamp(seconds=us // 1_000_000, nanos=us % 1_000_000 * 1_000)


def _amounts(amounts: Amounts) -> types_pb2.BudgetAmounts:
    return types_pb2.BudgetAmounts(**amounts)


def _scope(workflow: str, version: int) -> tenants_pb2.WorkScope | None:
    return tenants_pb2.WorkScope(workflow=workflow, workflow_version=version) if workflow or version else None


def create_task(
    *, tenant_id: str, request_id: str, workflow: str, version: int, owner: Owner, data: bytes, media_type: str = "",
    tool: str = "tool", capabilities: bytes = b"", schema: bytes = b"", trace: str = "", trace_state: str = "",
    baggage: str = "", priority: int = 0, ttl_ms: int = 0, poll_ms: int = 0, deadline_ms: int = 0, abandon_ms: int = 0,
    digest: bytes = b"", early: Sequence[tuple[str, bytes]] = (), early_type: str = "", reference: str = "",
    asked_before: Sequence[str] = (),
) -> tasks_pb2.CreateTaskRequest:  # fmt: skip
    contract = types_pb2.TaskContract(
        tool=tool, workflow=workflow, workflow_version=version, owner=_owner(owner), client_capabilities=capabilities,
        output_schema=schema, ttl_ms=ttl_ms, poll_interval_ms=poll_ms, execution_deadline_ms=deadline_ms, trace_parent=trace,
        trace_state=trace_state, baggage=baggage,
    )  # fmt: skip
    return tasks_pb2.CreateTaskRequest(
        tenant_id=tenant_id, request_id=request_id, contract=contract, priority=priority, input=_payload(data, media_type),
        abandon_after_ms=abandon_ms, early_answers=_answers(early, early_type), content_digest=digest,
        reference=reference, asked_before=asked_before,
    )  # fmt: skip


def fork_task(*, owner: Owner | None = None, **fields: Any) -> tasks_pb2.ForkTaskRequest:
    return tasks_pb2.ForkTaskRequest(owner=_owner(owner), **fields)


def get_task(*, owner: Owner | None = None, **fields: Any) -> tasks_pb2.GetTaskRequest:
    return tasks_pb2.GetTaskRequest(owner=_owner(owner), **fields)


def find_task(*, owner: Owner | None = None, **fields: Any) -> tasks_pb2.FindTaskRequest:
    return tasks_pb2.FindTaskRequest(owner=_owner(owner), **fields)


def watch_tasks(*, add: Sequence[Answer]) -> tasks_pb2.WatchTasksRequest:
    watched = [tasks_pb2.WatchedTask(**one | {"owner": _owner(one.get("owner"))}) for one in add]
    return tasks_pb2.WatchTasksRequest(add=watched)


def list_tasks(
    *, states: Sequence[str | int] = (), created_from: int | None = None, created_before: int | None = None, **fields: Any
) -> tasks_pb2.ListTasksRequest:
    numbers: list[Any] = [one if isinstance(one, int) else types_pb2.TaskState.Value(f"TASK_STATE_{one}") for one in states]
    return tasks_pb2.ListTasksRequest(
        states=numbers, created_from=_time(created_from), created_before=_time(created_before), **fields
    )  # fmt: skip


def list_signals(*, states: Sequence[str | int] = (), **fields: Any) -> tasks_pb2.ListSignalsRequest:
    numbers: list[Any] = [one if isinstance(one, int) else tasks_pb2.SignalState.Value(f"SIGNAL_STATE_{one}") for one in states]
    return tasks_pb2.ListSignalsRequest(states=numbers, **fields)


def list_task_history(**fields: Any) -> tasks_pb2.ListTaskHistoryRequest:
    return tasks_pb2.ListTaskHistoryRequest(**fields)


def list_checkpoints(**fields: Any) -> tasks_pb2.ListCheckpointsRequest:
    return tasks_pb2.ListCheckpointsRequest(**fields)


def get_checkpoint(**fields: Any) -> tasks_pb2.GetCheckpointRequest:
    return tasks_pb2.GetCheckpointRequest(**fields)


def cancel_task(*, owner: Owner | None = None, **fields: Any) -> tasks_pb2.CancelTaskRequest:
    return tasks_pb2.CancelTaskRequest(owner=_owner(owner), **fields)


def attach_task(*, abandon_ms: int, owner: Owner | None = None, **fields: Any) -> tasks_pb2.AttachTaskRequest:
    return tasks_pb2.AttachTaskRequest(owner=_owner(owner), abandon_after_ms=abandon_ms, **fields)


def answer_inputs(
    *, answers: Sequence[tuple[str, bytes]], answer_type: str = "", owner: Owner | None = None,
    answered_by: Owner | None = None, **fields: Any,
) -> tasks_pb2.AnswerInputsRequest:  # fmt: skip
    return tasks_pb2.AnswerInputsRequest(
        owner=_owner(owner), answered_by=_owner(answered_by), answers=_answers(answers, answer_type), **fields
    )  # fmt: skip


def publish_signal(
    *, data: bytes, media_type: str = "", owner: Owner | None = None, **fields: Any
) -> tasks_pb2.PublishSignalRequest:
    return tasks_pb2.PublishSignalRequest(owner=_owner(owner), payload=_payload(data, media_type), **fields)


def get_signal(**fields: Any) -> tasks_pb2.GetSignalRequest:
    return tasks_pb2.GetSignalRequest(**fields)


def lease_tasks(
    *, workflows: Sequence[tuple[str, int]], own_ms: int = 0, **fields: Any
) -> leases_pb2.LeaseTasksRequest:  # fmt: skip
    wanted = [leases_pb2.WorkflowVersion(workflow=name, version=version) for name, version in workflows]
    if wanted:
        wanted[0].lease_ms = own_ms
    return leases_pb2.LeaseTasksRequest(workflows=wanted, **fields)


def heartbeat_task(*, lease: Lease, lease_ms: int) -> leases_pb2.HeartbeatTaskRequest:
    return leases_pb2.HeartbeatTaskRequest(lease=_lease(lease), lease_ms=lease_ms)


def report_progress(*, lease: Lease, **fields: Any) -> leases_pb2.ReportProgressRequest:
    return leases_pb2.ReportProgressRequest(lease=_lease(lease), **fields)


def load_input(*, lease: Lease) -> leases_pb2.LoadInputRequest:
    return leases_pb2.LoadInputRequest(lease=_lease(lease))


def load_early_answers(*, lease: Lease) -> leases_pb2.LoadEarlyAnswersRequest:
    return leases_pb2.LoadEarlyAnswersRequest(lease=_lease(lease))


def load_checkpoints(*, lease: Lease, **fields: Any) -> leases_pb2.LoadCheckpointsRequest:
    return leases_pb2.LoadCheckpointsRequest(lease=_lease(lease), **fields)


def watch_leases(**fields: Any) -> leases_pb2.WatchLeasesRequest:
    return leases_pb2.WatchLeasesRequest(**fields)


def append_checkpoint(
    *, lease: Lease, revision: int, step: str, data: bytes, media_type: str = ""
) -> leases_pb2.AppendCheckpointRequest:
    return leases_pb2.AppendCheckpointRequest(
        lease=_lease(lease), revision=revision, step=step, payload=_payload(data, media_type)
    )  # fmt: skip


def complete_task(*, lease: Lease, data: bytes, media_type: str = "") -> leases_pb2.CompleteTaskRequest:
    return leases_pb2.CompleteTaskRequest(lease=_lease(lease), result=_payload(data, media_type))


def fail_task(
    *, lease: Lease, message: str, code: int = -32000, data: bytes | None = None, media_type: str = "",
    retry: tuple[int, int, int] | None = None,
) -> leases_pb2.FailTaskRequest:  # fmt: skip
    policy = None
    if retry is not None:
        policy = leases_pb2.RetryPolicy(max_attempts=retry[0], initial_backoff_ms=retry[1], max_backoff_ms=retry[2])
    error = types_pb2.TaskError(code=code, message=message, data=_payload(data, media_type))
    return leases_pb2.FailTaskRequest(lease=_lease(lease), error=error, retry=policy)


def release_task(*, lease: Lease, delay_ms: int) -> leases_pb2.ReleaseTaskRequest:
    return leases_pb2.ReleaseTaskRequest(lease=_lease(lease), delay_ms=delay_ms)


def confirm_cancel(*, lease: Lease) -> leases_pb2.ConfirmCancelRequest:
    return leases_pb2.ConfirmCancelRequest(lease=_lease(lease))


def suspend_task(
    *, lease: Lease, step: str, timer_ms: int | None = None, signal: str | None = None,
    questions: Sequence[tuple[str, bytes]] | None = None, timeout_ms: int = 0, params_type: str = "",
    fitting: Sequence[str] = (),
) -> leases_pb2.SuspendTaskRequest:  # fmt: skip
    request = leases_pb2.SuspendTaskRequest(lease=_lease(lease), step=step)
    if timer_ms is not None:
        request.timer.CopyFrom(leases_pb2.NewTimerWait(delay_ms=timer_ms))
    elif signal is not None:
        request.signal.CopyFrom(leases_pb2.NewSignalWait(name=signal, timeout_ms=timeout_ms))
    elif questions is not None:
        asked = [
            leases_pb2.NewInputRequest(name=name, method="elicitation/create", params=_payload(data, params_type))
            for name, data in questions
        ]
        request.input.CopyFrom(leases_pb2.NewInputWait(requests=asked, timeout_ms=timeout_ms, fitting=fitting))
    return request


def reserve_budget(*, lease: Lease, limits: Amounts, usage: Amounts) -> leases_pb2.ReserveBudgetRequest:
    return leases_pb2.ReserveBudgetRequest(lease=_lease(lease), limits=_amounts(limits), usage=_amounts(usage))


def settle_budget(*, lease: Lease, usage: Amounts) -> leases_pb2.SettleBudgetRequest:
    return leases_pb2.SettleBudgetRequest(lease=_lease(lease), usage=_amounts(usage))


def set_tenant_policy(*, tenant_id: str, **fields: Any) -> tenants_pb2.SetTenantPolicyRequest:
    return tenants_pb2.SetTenantPolicyRequest(tenant_id=tenant_id, policy=tenants_pb2.TenantPolicy(**fields))


def get_tenant(*, tenant_id: str) -> tenants_pb2.GetTenantRequest:
    return tenants_pb2.GetTenantRequest(tenant_id=tenant_id)


def pause_work(*, workflow: str = "", version: int = 0, **fields: Any) -> tenants_pb2.PauseWorkRequest:
    return tenants_pb2.PauseWorkRequest(scope=_scope(workflow, version), **fields)


def resume_work(*, workflow: str = "", version: int = 0, **fields: Any) -> tenants_pb2.ResumeWorkRequest:
    return tenants_pb2.ResumeWorkRequest(scope=_scope(workflow, version), **fields)


def redrive_tasks(
    *, workflow: str = "", version: int = 0, reasons: Sequence[str | int] = (), failed_from: int | None = None,
    failed_before: int | None = None, **fields: Any,
) -> tenants_pb2.RedriveTasksRequest:  # fmt: skip
    numbers: list[Any] = [
        one if isinstance(one, int) else types_pb2.FailureReason.Value(f"FAILURE_REASON_{one}") for one in reasons
    ]
    return tenants_pb2.RedriveTasksRequest(
        scope=_scope(workflow, version), reasons=numbers, failed_from=_time(failed_from), failed_before=_time(failed_before),
        **fields,
    )  # fmt: skip


def _cleanup(lease: CleanupLease) -> retention_pb2.CleanupLease:
    return retention_pb2.CleanupLease(**lease._asdict())


def list_cleanup_tenants(**fields: Any) -> retention_pb2.ListCleanupTenantsRequest:
    return retention_pb2.ListCleanupTenantsRequest(**fields)


def claim_cleanup(**fields: Any) -> retention_pb2.ClaimCleanupRequest:
    return retention_pb2.ClaimCleanupRequest(**fields)


def heartbeat_cleanup(*, lease: CleanupLease, **fields: Any) -> retention_pb2.HeartbeatCleanupRequest:
    return retention_pb2.HeartbeatCleanupRequest(lease=_cleanup(lease), **fields)


def release_cleanup(*, lease: CleanupLease, **fields: Any) -> retention_pb2.ReleaseCleanupRequest:
    return retention_pb2.ReleaseCleanupRequest(lease=_cleanup(lease), **fields)


def remove_tasks(*, lease: CleanupLease, **fields: Any) -> retention_pb2.RemoveTasksRequest:
    return retention_pb2.RemoveTasksRequest(lease=_cleanup(lease), **fields)


def place_hold(**fields: Any) -> retention_pb2.PlaceHoldRequest:
    return retention_pb2.PlaceHoldRequest(**fields)


def release_hold(**fields: Any) -> retention_pb2.ReleaseHoldRequest:
    return retention_pb2.ReleaseHoldRequest(**fields)


def get_retention(**fields: Any) -> retention_pb2.GetRetentionRequest:
    return retention_pb2.GetRetentionRequest(**fields)


def confirm_export(**fields: Any) -> retention_pb2.ConfirmExportRequest:
    return retention_pb2.ConfirmExportRequest(**fields)


def prepare_purge(*, lease: CleanupLease, **fields: Any) -> retention_pb2.PreparePurgeRequest:
    return retention_pb2.PreparePurgeRequest(lease=_cleanup(lease), **fields)


def list_purges(*, states: Sequence[str | int] = (), **fields: Any) -> retention_pb2.ListPurgesRequest:
    numbers: list[Any] = [
        one if isinstance(one, int) else retention_pb2.PurgeState.Value(f"PURGE_STATE_{one}") for one in states
    ]
    return retention_pb2.ListPurgesRequest(states=numbers, **fields)


def claim_purge(**fields: Any) -> retention_pb2.ClaimPurgeRequest:
    return retention_pb2.ClaimPurgeRequest(**fields)


def approve_purge(**fields: Any) -> retention_pb2.ApprovePurgeRequest:
    return retention_pb2.ApprovePurgeRequest(**fields)


def reject_purge(**fields: Any) -> retention_pb2.RejectPurgeRequest:
    return retention_pb2.RejectPurgeRequest(**fields)


def execute_purge(*, lease: CleanupLease, **fields: Any) -> retention_pb2.ExecutePurgeRequest:
    return retention_pb2.ExecutePurgeRequest(lease=_cleanup(lease), **fields)


def get_purge_evidence(**fields: Any) -> retention_pb2.GetPurgeEvidenceRequest:
    return retention_pb2.GetPurgeEvidenceRequest(**fields)


def list_holds(**fields: Any) -> retention_pb2.ListHoldsRequest:
    return retention_pb2.ListHoldsRequest(**fields)


def list_tombstones(**fields: Any) -> retention_pb2.ListTombstonesRequest:
    return retention_pb2.ListTombstonesRequest(**fields)


def get_tombstone(**fields: Any) -> retention_pb2.GetTombstoneRequest:
    return retention_pb2.GetTombstoneRequest(**fields)


def compact_signals(**fields: Any) -> retention_pb2.CompactSignalsRequest:
    return retention_pb2.CompactSignalsRequest(**fields)


def set_budget_policy(
    *, tenant_id: str, limits: Amounts, window_ms: int, recovery_ms: int
) -> budgets_pb2.SetBudgetPolicyRequest:
    policy = budgets_pb2.BudgetPolicy(limits=_amounts(limits), window_ms=window_ms, recovery_ms=recovery_ms)
    return budgets_pb2.SetBudgetPolicyRequest(tenant_id=tenant_id, policy=policy)


def remove_budget_policy(**fields: Any) -> budgets_pb2.RemoveBudgetPolicyRequest:
    return budgets_pb2.RemoveBudgetPolicyRequest(**fields)


def get_budget(**fields: Any) -> budgets_pb2.GetBudgetRequest:
    return budgets_pb2.GetBudgetRequest(**fields)


def confirm_budget_export(**fields: Any) -> budgets_pb2.ConfirmBudgetExportRequest:
    return budgets_pb2.ConfirmBudgetExportRequest(**fields)


def compact_budget_facts(**fields: Any) -> budgets_pb2.CompactBudgetFactsRequest:
    return budgets_pb2.CompactBudgetFactsRequest(**fields)


def list_budget_facts(**fields: Any) -> budgets_pb2.ListBudgetFactsRequest:
    return budgets_pb2.ListBudgetFactsRequest(**fields)
