"""How the methods of the API are called where all of them are: with which request, and where their refusal is found."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, fields
from typing import Any, Final

import asyncpg
import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_status import rpc_status
from taskstore.v1 import budgets_pb2, leases_pb2, retention_pb2, tasks_pb2, tenants_pb2, types_pb2

from tests.conftest import Stubs
from tests.descriptors import methods
from tests.store.budgets import HOUR_MS, Amounts, reserve, reserved_task, settle
from tests.store.builders import (
    TENANT,
    Refused,
    checkpoint,
    claim,
    complete,
    create,
    create_and_lease,
    fail,
    heartbeat,
    new_task,
    refusal_in,
    release,
    suspend,
)
from tests.store.retention import (
    OPERATOR,
    claim_cleanup,
    cleanup_lease,
    execute_purge,
    place_hold,
    prepare_purge,
    remove_tasks,
)


@dataclass(frozen=True)
class Scene:
    """What a case has to make what its method refuses."""

    store: Stubs
    database: asyncpg.Connection


NO_ID: Final = "00000000-0000-4000-8000-000000000000"
ANSWER: Final = types_pb2.InputAnswer(key="q", response=types_pb2.Payload(data=b"{}"))

ONE_OF: Final = {
    "CreateTasks": "CreateTask",
    "GetTasks": "GetTask",
    "HeartbeatTasks": "HeartbeatTask",
    "AppendCheckpoints": "AppendCheckpoint",
    "CompleteTasks": "CompleteTask",
    "CompleteAndLeaseTasks": "CompleteTask",
    "FailTasks": "FailTask",
    "ReleaseTasks": "ReleaseTask",
}
"""Methods that take several of what another takes one of."""

UNDER_LEASE: Final[dict[str, Callable[[types_pb2.Lease], Message]]] = {
    "HeartbeatTask": heartbeat,
    "ReportProgress": lambda held: leases_pb2.ReportProgressRequest(lease=held, value=1),
    "LoadInput": lambda held: leases_pb2.LoadInputRequest(lease=held),
    "LoadEarlyAnswers": lambda held: leases_pb2.LoadEarlyAnswersRequest(lease=held),
    "LoadCheckpoints": lambda held: leases_pb2.LoadCheckpointsRequest(lease=held),
    "AppendCheckpoint": checkpoint,
    "CompleteTask": complete,
    "FailTask": fail,
    "ReleaseTask": release,
    "SuspendTask": lambda held: suspend(held, timer_ms=1_000),
    "ConfirmCancel": lambda held: leases_pb2.ConfirmCancelRequest(lease=held),
    "ReserveBudget": lambda held: reserve(held, 10),
    "SettleBudget": lambda held: settle(held, 1),
}
"""What is done under a lease."""

UNDER_CLEANUP: Final[dict[str, Callable[[retention_pb2.CleanupLease], Message]]] = {
    "HeartbeatCleanup": lambda held: retention_pb2.HeartbeatCleanupRequest(lease=held, lease_ms=1_000, principal=OPERATOR),
    "ReleaseCleanup": lambda held: retention_pb2.ReleaseCleanupRequest(lease=held, principal=OPERATOR),
    "RemoveTasks": remove_tasks,
    "PreparePurge": prepare_purge,
    "ExecutePurge": execute_purge,
}
"""What is done under a cleanup lease."""

ENDINGS: Final = ("CompleteTask", "FailTask", "ReleaseTask", "SuspendTask", "ConfirmCancel")
"""What ends a lease."""


def _task_of(kind: Callable[..., Message], **more: Any) -> Callable[[Scene], Awaitable[Message]]:
    async def request(scene: Scene) -> Message:
        return kind(tenant_id=TENANT, task_id=(await create(scene.store)).task_id, **more)

    return request


def _tenant_of(kind: Callable[..., Message], **more: Any) -> Callable[[Scene], Awaitable[Message]]:
    async def request(_: Scene) -> Message:
        return kind(tenant_id=TENANT, **more)

    return request


def signal(task_id: str, *, signal_id: str = "", data: bytes = b"1") -> tasks_pb2.PublishSignalRequest:
    """A signal to a task."""
    payload = types_pb2.Payload(data=data)
    signal_id = signal_id or f"to-{task_id}"
    return tasks_pb2.PublishSignalRequest(tenant_id=TENANT, signal_id=signal_id, task_id=task_id, name="go", payload=payload)


def fork(source: str, *, request_id: str = "fork", checkpoints: int = 0) -> tasks_pb2.ForkTaskRequest:
    """A fork of a task."""
    return tasks_pb2.ForkTaskRequest(tenant_id=TENANT, request_id=request_id, source_task_id=source, checkpoints=checkpoints)


async def _set_budget_policy(_: Scene) -> Message:
    policy = budgets_pb2.BudgetPolicy(limits=Amounts(tokens=1), window_ms=HOUR_MS)
    return budgets_pb2.SetBudgetPolicyRequest(tenant_id=TENANT, policy=policy)


async def _publish_signal(scene: Scene) -> Message:
    return signal((await create(scene.store)).task_id)


async def _fork_task(scene: Scene) -> Message:
    return fork((await create(scene.store)).task_id)


async def _create_task(_: Scene) -> Message:
    return new_task()


async def _find_task(scene: Scene) -> Message:
    await create(scene.store, reference="r")
    return tasks_pb2.FindTaskRequest(tenant_id=TENANT, reference="r")


async def _lease_tasks(_: Scene) -> Message:
    return claim()


async def _list_cleanup_tenants(_: Scene) -> Message:
    return retention_pb2.ListCleanupTenantsRequest()


async def _claim_cleanup(_: Scene) -> Message:
    return claim_cleanup()


async def _place_hold(scene: Scene) -> Message:
    return place_hold((await create(scene.store)).task_id)


_POLICY: Final = tenants_pb2.TenantPolicy(max_outstanding=1_000, max_leased=100, retention_ms=86_400_000)
_OTHERS: Final[dict[str, Callable[[Scene], Awaitable[Message]]]] = {
    "CreateTask": _create_task,
    "GetTask": _task_of(tasks_pb2.GetTaskRequest),
    "FindTask": _find_task,
    "ExplainTask": _task_of(tasks_pb2.ExplainTaskRequest),
    "ListTasks": _tenant_of(tasks_pb2.ListTasksRequest),
    "CancelTask": _task_of(tasks_pb2.CancelTaskRequest),
    "AttachTask": _task_of(tasks_pb2.AttachTaskRequest),
    "ListTaskHistory": _task_of(tasks_pb2.ListTaskHistoryRequest),
    "ListCheckpoints": _task_of(tasks_pb2.ListCheckpointsRequest),
    "GetCheckpoint": _task_of(tasks_pb2.GetCheckpointRequest),
    "AnswerInputs": _task_of(tasks_pb2.AnswerInputsRequest, answers=[ANSWER]),
    "PublishSignal": _publish_signal,
    "GetSignal": _tenant_of(tasks_pb2.GetSignalRequest, signal_id="s"),
    "ListSignals": _tenant_of(tasks_pb2.ListSignalsRequest),
    "ForkTask": _fork_task,
    "LeaseTasks": _lease_tasks,
    "SetTenantPolicy": _tenant_of(tenants_pb2.SetTenantPolicyRequest, policy=_POLICY),
    "GetTenant": _tenant_of(tenants_pb2.GetTenantRequest),
    "PauseWork": _tenant_of(tenants_pb2.PauseWorkRequest, actor="ann"),
    "ResumeWork": _tenant_of(tenants_pb2.ResumeWorkRequest),
    "ListRegistrations": _tenant_of(tenants_pb2.ListRegistrationsRequest),
    "RedriveTasks": _tenant_of(tenants_pb2.RedriveTasksRequest, request_id="redrive", actor="ann"),
    "ListAuditLines": _tenant_of(tenants_pb2.ListAuditLinesRequest),
    "SetBudgetPolicy": _set_budget_policy,
    "RemoveBudgetPolicy": _tenant_of(budgets_pb2.RemoveBudgetPolicyRequest),
    "GetBudget": _tenant_of(budgets_pb2.GetBudgetRequest),
    "ListBudgetFacts": _tenant_of(budgets_pb2.ListBudgetFactsRequest),
    "ConfirmBudgetExport": _tenant_of(budgets_pb2.ConfirmBudgetExportRequest, through_cursor=1),
    "CompactBudgetFacts": _tenant_of(budgets_pb2.CompactBudgetFactsRequest, older_than_ms=1),
    "ListCleanupTenants": _list_cleanup_tenants,
    "ClaimCleanup": _claim_cleanup,
    "PlaceHold": _place_hold,
    "ReleaseHold": _tenant_of(retention_pb2.ReleaseHoldRequest, number=1, principal=OPERATOR),
    "ListHolds": _tenant_of(retention_pb2.ListHoldsRequest),
    "GetRetention": _tenant_of(retention_pb2.GetRetentionRequest),
    "ConfirmExport": _tenant_of(retention_pb2.ConfirmExportRequest, through_cursor=1, receipt="r", principal=OPERATOR),
    "ListPurges": _tenant_of(retention_pb2.ListPurgesRequest),
    "ClaimPurge": _tenant_of(retention_pb2.ClaimPurgeRequest, lease_ms=1_000, principal=OPERATOR),
    "ApprovePurge": _tenant_of(retention_pb2.ApprovePurgeRequest, number=1, principal=OPERATOR),
    "RejectPurge": _tenant_of(retention_pb2.RejectPurgeRequest, number=1, reason="r", principal=OPERATOR),
    "GetPurgeEvidence": _tenant_of(retention_pb2.GetPurgeEvidenceRequest, number=1),
    "ListTombstones": _tenant_of(retention_pb2.ListTombstonesRequest),
    "GetTombstone": _tenant_of(retention_pb2.GetTombstoneRequest, task_id=NO_ID),
    "CompactSignals": _tenant_of(retention_pb2.CompactSignalsRequest, older_than_ms=1),
}

WATCHES: Final = frozenset({"WatchTasks", "WatchLeases"})
"""Methods that say nothing while the database is away."""


async def a_request(scene: Scene, method: str) -> Message:
    """A request that there is nothing against, where the tenant has a budget and nothing else is ready."""
    one = ONE_OF.get(method, method)
    if one in UNDER_CLEANUP:
        await create(scene.store)
        return UNDER_CLEANUP[one](await cleanup_lease(scene.store))
    if one not in UNDER_LEASE:
        return in_batch(method, await _OTHERS[one](scene))
    reserved = one == "SettleBudget"
    held = await reserved_task(scene.store) if reserved else (await create_and_lease(scene.store)).lease
    return in_batch(method, UNDER_LEASE[one](held))


def in_batch(method: str, request: Message) -> Message:
    """The request as the method takes it: alone, or as the one item of a batch."""
    if method not in ONE_OF:
        return request
    more = {"lease": claim()} if method == "CompleteAndLeaseTasks" else {}
    return GetMessageClass(methods()[method].input_type)(items=[request], **more)


async def call(store: Stubs, method: str, request: Message) -> Message:
    """Calls a method; of a stream, its first answer."""
    stub = next(stub for field in fields(store) if hasattr(stub := getattr(store, field.name), method))
    about = methods()[method]
    call: Any = getattr(stub, method)(iter([request]) if about.client_streaming else request)
    if not about.server_streaming:
        answer: Message = await call
        return answer
    stream: AsyncIterator[Message] = aiter(call)
    return await anext(stream)


async def refused(store: Stubs, method: str, request: Message) -> Refused:
    """How the call, its last item, or its first answer is refused."""
    try:
        answer: Any = await call(store, method, request)
    except grpc.aio.AioRpcError as error:
        return refusal_in(rpc_status.from_call(error))
    told = answer.items[-1] if "items" in answer.DESCRIPTOR.fields_by_name else answer
    assert told.HasField("refused"), f"{method} was not refused"
    return refusal_in(told.refused)
