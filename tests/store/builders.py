"""What the tests of the store say again and again: requests with sensible values, refusals read from their trailers, and
waits that end when something has really happened."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import asyncpg
import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from taskstore.v1 import leases_pb2, tasks_pb2, tenants_pb2, types_pb2

from tests.conftest import Stubs

TENANT: Final = "acme"
OWNER: Final = types_pb2.Owner(issuer="test", subject="ann")
DAY_MS: Final = 86_400_000
MOST_SECONDS: Final = 60.0
"""How long a test waits for what must happen."""
LISTENERS = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'tenure-wakeups'"
WHO_LISTEN = f"{LISTENERS} AND state = 'idle' AND query <> ''"  # the first thing they say is LISTEN


def new_task(
    *,
    workflow: str = "report",
    version: int = 1,
    tenant_id: str = TENANT,
    data: bytes = b'{"a": 1}',
    request_id: str | None = None,
    owner: types_pb2.Owner = OWNER,
    priority: int = 0,
    deadline_ms: int = 0,
    abandon_ms: int = 0,
    ttl_ms: int = 0,
    reference: str = "",
) -> tasks_pb2.CreateTaskRequest:
    """A creation that is valid as it stands."""
    return tasks_pb2.CreateTaskRequest(
        tenant_id=tenant_id,
        request_id=request_id or uuid4().hex,
        contract=types_pb2.TaskContract(
            tool="report",
            workflow=workflow,
            workflow_version=version,
            owner=owner,
            execution_deadline_ms=deadline_ms,
            ttl_ms=ttl_ms,
        ),
        priority=priority,
        input=types_pb2.Payload(data=data),
        abandon_after_ms=abandon_ms,
        reference=reference,
    )


def claim(
    *,
    workflow: str = "report",
    version: int = 1,
    worker_id: str = "w1",
    tenant_ids: Sequence[str] = (),
    limit: int = 10,
    wait_ms: int = 0,
    lease_ms: int = 30_000,
    request_id: str | None = None,
) -> leases_pb2.LeaseTasksRequest:
    """A claim that is valid as it stands."""
    return leases_pb2.LeaseTasksRequest(
        request_id=request_id or uuid4().hex,
        worker_id=worker_id,
        workflows=[leases_pb2.WorkflowVersion(workflow=workflow, version=version)],
        tenant_ids=tenant_ids,
        limit=limit,
        lease_ms=lease_ms,
        wait_ms=wait_ms,
    )


def complete(lease: types_pb2.Lease, data: bytes = b"1") -> leases_pb2.CompleteTaskRequest:
    """The completion of a task."""
    return leases_pb2.CompleteTaskRequest(lease=lease, result=types_pb2.Payload(data=data))


def fail(
    lease: types_pb2.Lease, *, message: str = "it broke", retry: leases_pb2.RetryPolicy | None = None
) -> leases_pb2.FailTaskRequest:
    """The failure of a task."""
    return leases_pb2.FailTaskRequest(lease=lease, error=types_pb2.TaskError(code=-32000, message=message), retry=retry)


def retry_policy(*, max_attempts: int = 10, initial_ms: int = 1_000, most_ms: int = 60_000) -> leases_pb2.RetryPolicy:
    """When a failed task is tried again."""
    return leases_pb2.RetryPolicy(max_attempts=max_attempts, initial_backoff_ms=initial_ms, max_backoff_ms=most_ms)


async def report_at_once(database: asyncpg.Connection, lease: types_pb2.Lease, *values: float) -> None:
    """Reports that nobody can read one without the others, and that no hint tells of."""
    async with database.transaction():
        for value in values:
            await database.execute(
                "SELECT tenure.report_progress(ARRAY[$1], ARRAY[$2::uuid], ARRAY[$3], ARRAY[$4::bigint], ARRAY[$5::bigint], "
                "ARRAY[$6::float8], ARRAY[NULL::float8], ARRAY[''])",
                lease.tenant_id, lease.task_id, lease.worker_id, lease.token, lease.epoch, value,
            )  # fmt: skip


def report(lease: types_pb2.Lease, value: float) -> leases_pb2.ReportProgressRequest:
    """A report of progress."""
    return leases_pb2.ReportProgressRequest(lease=lease, value=value)


def release(lease: types_pb2.Lease, *, delay_ms: int = 0) -> leases_pb2.ReleaseTaskRequest:
    """The return of a task."""
    return leases_pb2.ReleaseTaskRequest(lease=lease, delay_ms=delay_ms)


def heartbeat(lease: types_pb2.Lease, *, lease_ms: int = 30_000) -> leases_pb2.HeartbeatTaskRequest:
    """A heartbeat."""
    return leases_pb2.HeartbeatTaskRequest(lease=lease, lease_ms=lease_ms)


def checkpoint(
    lease: types_pb2.Lease, *, revision: int = 0, data: bytes = b"1", step: str = "step"
) -> leases_pb2.AppendCheckpointRequest:
    """A step that is done."""
    return leases_pb2.AppendCheckpointRequest(lease=lease, revision=revision, step=step, payload=types_pb2.Payload(data=data))


def question(name: str, params: bytes = b'{"message": "?"}') -> leases_pb2.NewInputRequest:
    """A question to be asked."""
    return leases_pb2.NewInputRequest(name=name, method="elicitation/create", params=types_pb2.Payload(data=params))


def suspend(
    lease: types_pb2.Lease,
    *,
    step: str = "wait",
    timer_ms: int | None = None,
    signal: str | None = None,
    questions: Sequence[leases_pb2.NewInputRequest] = (),
    timeout_ms: int = 0,
    fitting: Sequence[str] = (),
) -> leases_pb2.SuspendTaskRequest:
    """The suspension of a task, until one of the time, a signal, or answers."""
    request = leases_pb2.SuspendTaskRequest(lease=lease, step=step)
    if timer_ms is not None:
        request.timer.delay_ms = timer_ms
    elif signal is not None:
        request.signal.CopyFrom(leases_pb2.NewSignalWait(name=signal, timeout_ms=timeout_ms))
    else:
        request.input.CopyFrom(leases_pb2.NewInputWait(requests=questions, timeout_ms=timeout_ms, fitting=fitting))
    return request


async def publish(
    store: Stubs,
    task_id: str,
    *,
    name: str,
    signal_id: str | None = None,
    data: bytes = b"1",
    owner: types_pb2.Owner | None = None,
) -> tasks_pb2.PublishSignalResponse:
    """Publishes a signal."""
    request = tasks_pb2.PublishSignalRequest(
        tenant_id=TENANT,
        signal_id=signal_id or uuid4().hex,
        task_id=task_id,
        name=name,
        payload=types_pb2.Payload(data=data),
        owner=owner,
    )
    return await store.tasks.PublishSignal(request)


async def answer(store: Stubs, task_id: str, **answers: bytes) -> list[str]:
    """Answers questions; returns what became of each answer."""
    given = [types_pb2.InputAnswer(key=key, response=types_pb2.Payload(data=data)) for key, data in answers.items()]
    request = tasks_pb2.AnswerInputsRequest(tenant_id=TENANT, task_id=task_id, answers=given)
    outcomes = (await store.tasks.AnswerInputs(request)).outcomes
    return [tasks_pb2.AnswerOutcome.Name(one).removeprefix("ANSWER_OUTCOME_") for one in outcomes]


def cancel(task_id: str, *, tenant_id: str = TENANT, force: bool = False) -> tasks_pb2.CancelTaskRequest:
    """The wish that a task ends."""
    mode = tasks_pb2.CANCEL_MODE_FORCE if force else tasks_pb2.CANCEL_MODE_REQUEST
    return tasks_pb2.CancelTaskRequest(tenant_id=tenant_id, task_id=task_id, mode=mode)


async def create(store: Stubs, **fields: Any) -> types_pb2.Task:
    """Creates a task."""
    return (await store.tasks.CreateTask(new_task(**fields))).task


async def lease(store: Stubs, **fields: Any) -> leases_pb2.LeasedTask:
    """Takes the one task that is ready."""
    (leased,) = (await store.leases.LeaseTasks(claim(**fields))).tasks
    return leased


async def create_and_lease(store: Stubs, **fields: Any) -> leases_pb2.LeasedTask:
    """Creates a task and takes it."""
    await create(store, **fields)
    return await lease(store)


async def get(
    store: Stubs, task_id: str, *, tenant_id: str = TENANT, view: types_pb2.TaskView.ValueType = types_pb2.TASK_VIEW_FULL
) -> types_pb2.Task:
    """Reads a task."""
    request = tasks_pb2.GetTaskRequest(tenant_id=tenant_id, task_id=task_id, view=view)
    return (await store.tasks.GetTask(request)).task


async def history(store: Stubs, task_id: str, *, tenant_id: str = TENANT) -> list[str]:
    """What happened to a task, by name. Its lines are dense."""
    request = tasks_pb2.ListTaskHistoryRequest(tenant_id=tenant_id, task_id=task_id, page_size=256)
    lines = (await store.tasks.ListTaskHistory(request)).lines
    assert [line.line for line in lines] == list(range(len(lines)))
    return [tasks_pb2.HistoryEvent.Name(line.event).removeprefix("HISTORY_EVENT_") for line in lines]


async def set_policy(
    store: Stubs, *, tenant_id: str = TENANT, outstanding: int = 1_000, leased: int = 100, retention_ms: int = DAY_MS
) -> tenants_pb2.Tenant:
    """Sets a tenant's policy."""
    policy = tenants_pb2.TenantPolicy(max_outstanding=outstanding, max_leased=leased, retention_ms=retention_ms)
    request = tenants_pb2.SetTenantPolicyRequest(tenant_id=tenant_id, policy=policy)
    return (await store.tenants.SetTenantPolicy(request)).tenant


@dataclass(frozen=True)
class Refused:
    """A refusal as a client in any language reads it."""

    code: grpc.StatusCode
    reason: str
    message: str
    retry_after_ms: int


async def refusal_of(call: Awaitable[Any]) -> Refused:
    """The refusal of a call, read from its trailers."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    status = rpc_status.from_call(raised.value)
    assert status is not None, raised.value.details()
    assert status.code == raised.value.code().value[0]
    return refusal_in(status)


def refusal_in(status: Any) -> Refused:
    """The refusal in a `google.rpc.Status`, of a call or of one item."""
    info, delay = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    detail: any_pb2.Any
    for detail in status.details:
        assert detail.Unpack(info) or detail.Unpack(delay)
    assert info.domain == "taskstore.tenure"
    code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
    return Refused(code, info.reason, status.message, delay.retry_delay.ToMilliseconds())


async def assert_lease_lost(call: Awaitable[Any]) -> None:
    """The call is refused with what every fence says."""
    refused = await refusal_of(call)
    assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "LEASE_LOST")


async def assert_invalid(call: Awaitable[Any], field: str) -> None:
    """The call is refused for this field."""
    refused = await refusal_of(call)
    assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_INPUT")
    assert refused.message.startswith(f"{field} "), refused.message


async def until(condition: Any, what: str) -> None:
    """Looks again and again until `condition()`, a coroutine function, says yes."""
    end = time.monotonic() + MOST_SECONDS
    while not await condition():
        assert time.monotonic() < end, f"in vain: {what}"
        await asyncio.sleep(0.005)


async def none_ready(store: Stubs) -> bool:
    """Whether a claim finds nothing."""
    return not (await store.leases.LeaseTasks(claim())).tasks


async def bring_along(store: Stubs, database: asyncpg.Connection) -> None:
    """Returns when nothing is due any more. A claim that finds nothing brings along what has fallen due."""

    async def is_done() -> bool:
        await store.leases.LeaseTasks(claim(workflow="nobody's"))
        return not await database.fetchval("SELECT EXISTS (SELECT FROM tenure.task_state WHERE check_at <= tenure.task_now())")

    await until(is_done, "what is due changes")


async def blocked(database: asyncpg.Connection, count: int = 1) -> None:
    """Returns when so many statements of stores wait for locks that others hold."""

    async def is_blocked() -> bool:
        waiting: int = await database.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'tenure-store' "
            "AND wait_event_type = 'Lock'"
        )
        return waiting >= count

    await until(is_blocked, f"{count} statements wait for locks")


@contextlib.asynccontextmanager
async def holding(dsn: str, query: str, *arguments: Any) -> AsyncIterator[asyncpg.Connection]:
    """Another session that has run a query, usually one that locks, and has not committed."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute(query, *arguments)
            yield connection
    finally:
        await connection.close()


LOCK_TENANT: Final = "SELECT FROM tenure.tenant WHERE tenant_id = $1 FOR UPDATE"
LOCK_TASK: Final = "SELECT FROM tenure.task_state WHERE task_id = $1::text::uuid FOR UPDATE"
