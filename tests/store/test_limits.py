"""Every field is held to its bounds before anything is read or written. Source: contract, section 1."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final
from uuid import uuid4

import asyncpg
import pytest
from google.protobuf.message import Message
from taskstore.v1 import leases_pb2, retention_pb2, tasks_pb2, tenants_pb2, types_pb2

from tests.conftest import Stubs
from tests.store.builders import (
    DAY_MS,
    OWNER,
    TENANT,
    assert_invalid,
    cancel,
    checkpoint,
    claim,
    create_and_lease,
    fail,
    heartbeat,
    new_task,
    refusal_in,
    release,
    retry_policy,
)
from tests.store.retention import (
    OPERATOR,
    approve_purge,
    claim_cleanup,
    claim_purge,
    cleanup_lease,
    confirm_export,
    ended,
    execute_purge,
    place_hold,
    prepare_purge,
    reject_purge,
    remove_tasks,
)

YEAR_MS: Final = 366 * DAY_MS
NAMES_REFUSED: Final = ("", "a b", "a/b", "ü", "a\n", "a\0", "a" * 129, "*")
NAMES_TAKEN: Final = ("a", "A-z_0.9", "a" * 128, ".")
SOME_ID: Final = str(uuid4())
IDS_REFUSED: Final = (
    "",
    "x",
    SOME_ID.upper(),
    SOME_ID.replace("-", ""),
    f"{{{SOME_ID}}}",
    f"urn:uuid:{SOME_ID}",
    SOME_ID + " ",
)


def texts_refused(most: int, *, blank: bool = False) -> tuple[str, ...]:
    """Texts that a bound of so many bytes refuses."""
    return ("a" * (most + 1), "ü" * (most // 2 + 1), "a\0b", *(() if blank else ("", " ", "\n\t\u3000")))


def texts_taken(most: int, *, blank: bool = False) -> tuple[str, ...]:
    """Texts at the bound, in one and in two bytes a character."""
    return ("a" * most, "ü" * (most // 2), " a ", "\n'; DROP TABLE task --", *(("",) if blank else ()))


def changed(request: Message, path: str, value: Any) -> Any:
    """A copy with one field set; the path may go through messages and, by number, through repeated ones."""
    copy = type(request)()
    copy.CopyFrom(request)
    at: Any = copy
    *steps, last = path.split(".")
    for step in steps:
        at = at[int(step)] if step.isdigit() else getattr(at, step)
    field = getattr(at, last)
    if isinstance(value, list):
        del field[:]
        field.extend(value)
    else:
        setattr(at, last, value)
    return copy


Bound = tuple[str, str, Iterable[Any], Iterable[Any]]


async def assert_bounds(call: Callable[[Any], Awaitable[Any]], request: Message, bounds: Iterable[Bound]) -> None:
    """For each (path, name in messages, refused values, taken values): just that."""
    for path, name, refused, taken in bounds:
        for value in refused:
            print(path, repr(value)[:80])  # told when it is taken
            await assert_invalid(call(changed(request, path, value)), name)
        for value in taken:
            print(path, repr(value)[:80])
            await call(changed(request, path, value))


async def test_the_fields_of_a_creation(store: Stubs, database: asyncpg.Connection) -> None:
    async def create(request: tasks_pb2.CreateTaskRequest) -> None:
        if request.request_id == template.request_id:
            request.request_id = uuid4().hex
        await store.tasks.CreateTask(request)

    template = new_task()
    milliseconds: list[Bound] = [
        ("contract.ttl_ms", "contract.ttl_ms", (-1, 10 * YEAR_MS, 2**63 - 1), (0, 1, 10 * YEAR_MS - 1)),
        ("contract.poll_interval_ms", "contract.poll_interval_ms", (-1, 3_600_001), (0, 1, 3_600_000)),
        ("contract.execution_deadline_ms", "contract.execution_deadline_ms", (-1, YEAR_MS), (0, 1, YEAR_MS - 1)),
        ("abandon_after_ms", "abandon_after_ms", (-1, YEAR_MS), (0, 1, YEAR_MS - 1)),
    ]
    texts: list[Bound] = [
        ("tenant_id", "tenant_id", NAMES_REFUSED, NAMES_TAKEN),
        ("request_id", "request_id", texts_refused(128), texts_taken(128)),
        ("reference", "reference", texts_refused(128, blank=True), texts_taken(128, blank=True)),
        ("asked_before", "asked_before", (["a#2"], [""], ["a"] * 17, ["k" * 129], ["\0"]), ([], ["k" * 128] * 16)),
        ("contract.tool", "contract.tool", texts_refused(128, blank=True), texts_taken(128, blank=True)),
        ("contract.workflow", "contract.workflow", texts_refused(256), texts_taken(256)),
        ("contract.owner.issuer", "owner.issuer", texts_refused(512), texts_taken(512)),
        ("contract.owner.subject", "owner.subject", texts_refused(512), texts_taken(512)),
        ("contract.trace_parent", "contract.trace_parent", texts_refused(512, blank=True), texts_taken(512, blank=True)),
        ("contract.trace_state", "contract.trace_state", texts_refused(512, blank=True), texts_taken(512, blank=True)),
        ("contract.baggage", "contract.baggage", texts_refused(8192, blank=True), texts_taken(8192, blank=True)),
        ("input.media_type", "input.media_type", texts_refused(128)[:3], ("", "text/plain", "a" * 128)),
    ]
    numbers: list[Bound] = [
        ("contract.workflow_version", "contract.workflow_version", (0, -1, -(2**31)), (1, 2**31 - 1)),
        ("priority", "priority", (), (-(2**31), 0, 2**31 - 1)),
    ]
    refused_only = [(path, name, refused, ()) for path, name, refused, _ in (*milliseconds, *texts, *numbers)]
    await assert_bounds(create, template, refused_only)
    await assert_invalid(store.tasks.CreateTask(tasks_pb2.CreateTaskRequest()), "tenant_id")
    await assert_invalid(
        store.tasks.CreateTask(tasks_pb2.CreateTaskRequest(tenant_id="a", request_id="b")), "contract.workflow"
    )
    for table in ("tenant", "lane", "task", "task_state", "history"):
        assert await database.fetchval(f"SELECT count(*) FROM tenure.{table}") == 0
    await assert_bounds(
        create, template, [(path, name, (), taken) for path, name, _, taken in (*milliseconds, *texts, *numbers)]
    )


async def test_the_fields_of_reads(store: Stubs) -> None:
    task = (await store.tasks.CreateTask(new_task())).task
    named: Any = {"tenant_id": TENANT, "task_id": task.task_id}
    ids: list[Bound] = [("tenant_id", "tenant_id", NAMES_REFUSED, ()), ("task_id", "task_id", IDS_REFUSED, ())]
    owner: list[Bound] = [
        ("owner.issuer", "owner.issuer", texts_refused(512), ()),
        ("owner.subject", "owner.subject", texts_refused(512), ()),
    ]
    view: list[Bound] = [("view", "view", (-1, 4, 2**31 - 1), (0, 1, 2, 3))]
    page: list[Bound] = [("page_size", "page_size", (-1, 257), (0, 1, 256))]
    get = tasks_pb2.GetTaskRequest(**named, owner=OWNER)
    await assert_bounds(store.tasks.GetTask, get, [*ids, *owner, *view])
    await assert_bounds(
        store.tasks.AttachTask,
        tasks_pb2.AttachTaskRequest(**named, owner=OWNER),
        [*ids, *owner, ("abandon_after_ms", "abandon_after_ms", (-1, YEAR_MS), (1, YEAR_MS - 1, 0))],
    )
    lines = tasks_pb2.ListTaskHistoryRequest(**named)
    find = tasks_pb2.FindTaskRequest(tenant_id=TENANT, reference="r", owner=OWNER)
    find_bounds: list[Bound] = [
        ("tenant_id", "tenant_id", NAMES_REFUSED, ()),
        ("reference", "reference", texts_refused(128), ()),
    ]
    await assert_bounds(store.tasks.FindTask, find, [*find_bounds, *owner, ("view", "view", (-1, 4), ())])
    await assert_bounds(store.tasks.ListTaskHistory, lines, [*ids, *page, ("from_line", "from_line", (-1,), (0, 2**31 - 1))])
    steps = tasks_pb2.ListCheckpointsRequest(**named)
    await assert_bounds(
        store.tasks.ListCheckpoints, steps, [*ids, *page, ("from_revision", "from_revision", (-1,), (0, 2**31 - 1))]
    )
    step = tasks_pb2.GetCheckpointRequest(**named)
    await assert_bounds(store.tasks.GetCheckpoint, step, [*ids, ("revision", "revision", (-1,), ())])
    listed = tasks_pb2.ListTasksRequest(tenant_id=TENANT)
    await assert_bounds(
        store.tasks.ListTasks,
        listed,
        [
            ("tenant_id", "tenant_id", NAMES_REFUSED, ()),
            ("page_size", "page_size", (-1, 1_001), (0, 1, 1_000)),
            ("states", "states", ([0], [7], [1, -1]), ([1, 2, 3, 4, 5, 6],)),
            ("workflow", "workflow", texts_refused(256, blank=True), texts_taken(256, blank=True)),
            (
                "page_token",
                "page_token",
                ("x", "zz.1", "1.2", f".{uuid4()}", f"{'f' * 99}.{uuid4()}"),
                (f"1.{uuid4()}",),
            ),
            ("created_from.seconds", "created_from", (-(2**62), 2**62, 253_402_300_800), (-62_135_596_800, 0, 253_402_300_799)),
            ("created_before.nanos", "created_before", (-1, 10**9), (0, 999_999_999)),
        ],
    )

    async def first_of(watched: tasks_pb2.WatchedTask) -> tasks_pb2.WatchTasksResponse.Item:
        call = store.tasks.WatchTasks(iter([tasks_pb2.WatchTasksRequest(add=[watched])]))
        answer: tasks_pb2.WatchTasksResponse = await anext(aiter(call))
        call.cancel()
        return answer.items[0]

    watched = tasks_pb2.WatchedTask(tenant_id=TENANT, task_id=task.task_id, owner=OWNER)
    known: Bound = ("known_change", "known_change", (-1,), (0, 2**63 - 1))
    for path, name, refused, taken in (*ids, *owner, *view, known):
        for value in refused:
            told = refusal_in((await first_of(changed(watched, path, value))).refused)
            assert (told.reason, told.message.split()[0]) == ("INVALID_INPUT", name)
        for value in taken:
            assert not (await first_of(changed(watched, path, value))).refused.message.startswith(name)
    many = tasks_pb2.WatchTasksRequest(add=[watched] * 501)
    await assert_invalid(anext(aiter(store.tasks.WatchTasks(iter([many])))), "add")
    await assert_bounds(store.tasks.CancelTask, cancel(task.task_id), [*ids, ("mode", "mode", (-1, 3), (0, 1, 2))])


async def test_the_fields_of_claims(store: Stubs, database: asyncpg.Connection) -> None:
    one = leases_pb2.WorkflowVersion(workflow="w", version=1)
    alike, other = (leases_pb2.WorkflowVersion(workflow="w", version=1, lease_ms=ms) for ms in (30_000, 60_000))
    many = [leases_pb2.WorkflowVersion(workflow="w", version=number + 1) for number in range(501)]
    bounds: list[Bound] = [
        ("request_id", "request_id", texts_refused(128), texts_taken(128)),
        ("worker_id", "worker_id", NAMES_REFUSED, NAMES_TAKEN),
        ("workflows", "workflows", ([], many, [one] * 501), ([one], [one] * 500, many[:500])),
        ("workflows.0.workflow", "workflows.workflow", texts_refused(256), texts_taken(256)),
        ("workflows.0.version", "workflows.version", (0, -1), (1, 2**31 - 1)),
        ("workflows.0.lease_ms", "workflows.lease_ms", (-1, 999, 900_001), (0, 1_000, 900_000)),
        ("workflows", "workflows.lease_ms", ([one, other],), ([one, alike],)),
        ("tenant_ids", "tenant_ids", (["a b"], ["a"] * 1_001), ([], ["a"] * 1_000)),
        ("limit", "limit", (0, -1, 501), (1, 500)),
        ("lease_ms", "lease_ms", (0, -1, 999, 900_001, 2**63 - 1), (1_000, 900_000)),
        ("wait_ms", "wait_ms", (-1, 60_001), (0, 1)),
    ]
    await assert_bounds(store.leases.LeaseTasks, claim(), bounds)
    assert await database.fetchval("SELECT count(*) FROM tenure.worker_claim") == 0


async def test_the_fields_of_what_is_done_under_a_lease(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    lease_fields: list[Bound] = [
        ("lease.tenant_id", "lease.tenant_id", NAMES_REFUSED, ()),
        ("lease.task_id", "lease.task_id", IDS_REFUSED, ()),
        ("lease.worker_id", "lease.worker_id", NAMES_REFUSED, ()),
    ]
    await assert_bounds(
        store.leases.HeartbeatTask,
        heartbeat(held),
        [*lease_fields, ("lease_ms", "lease_ms", (-1, 999, 900_001), (0, 1_000, 900_000))],
    )
    report = leases_pb2.ReportProgressRequest(lease=held, value=1)
    floats = (float("nan"), float("inf"), float("-inf"))
    await assert_bounds(
        store.leases.ReportProgress,
        report,
        [
            *lease_fields,
            ("value", "value and total", floats, (-1e308, 0, 5e-324)),
            ("total", "value and total", floats, (0, 1e308)),
            ("message", "message", texts_refused(1024, blank=True), texts_taken(1024, blank=True)),
        ],
    )
    pages: list[Bound] = [
        ("page_size", "page_size", (-1, 257), (0, 1, 256)),
        ("from_revision", "from_revision", (-1,), (0, 2**31 - 1)),
    ]
    await assert_bounds(store.leases.LoadCheckpoints, leases_pb2.LoadCheckpointsRequest(lease=held), [*lease_fields, *pages])
    await assert_bounds(store.leases.LoadInput, leases_pb2.LoadInputRequest(lease=held), lease_fields)
    await assert_bounds(store.leases.LoadEarlyAnswers, leases_pb2.LoadEarlyAnswersRequest(lease=held), lease_fields)
    await assert_bounds(
        store.leases.AppendCheckpoint,
        checkpoint(held),
        [*lease_fields, ("revision", "revision", (-1,), ()), ("step", "step", texts_refused(256), ())],
    )
    for number, step in enumerate(texts_taken(256)):
        await store.leases.AppendCheckpoint(checkpoint(held, revision=number, step=step))
    retried = fail(held, retry=retry_policy())
    await assert_bounds(
        store.leases.FailTask,
        retried,
        [
            *lease_fields,
            ("error.message", "error.message", texts_refused(1024), ()),
            ("retry.max_attempts", "retry.max_attempts", (0, -1), ()),
            ("retry.initial_backoff_ms", "retry.initial_backoff_ms", (0, -1, DAY_MS + 1), ()),
            ("retry.max_backoff_ms", "retry.max_backoff_ms", (0, 999, DAY_MS + 1), ()),
        ],
    )
    await assert_bounds(
        store.leases.ReleaseTask, release(held), [*lease_fields, ("delay_ms", "delay_ms", (-1, DAY_MS + 1), (DAY_MS,))]
    )


@pytest.mark.parametrize(
    "policy", [{"initial_ms": 1, "most_ms": 1, "max_attempts": 2}, {"initial_ms": DAY_MS, "most_ms": DAY_MS}]
)
async def test_a_retry_policy_at_its_bounds_is_taken(store: Stubs, policy: dict[str, int]) -> None:
    held = (await create_and_lease(store)).lease
    answer = await store.leases.FailTask(fail(held, message="ü" * 512, retry=retry_policy(**policy)))
    assert answer.HasField("retry_at")


async def test_the_fields_of_policies_and_of_retention(store: Stubs) -> None:
    policy = tenants_pb2.TenantPolicy(max_outstanding=10, max_leased=10, retention_ms=DAY_MS)
    most = 100 * YEAR_MS
    await assert_bounds(
        store.tenants.SetTenantPolicy,
        tenants_pb2.SetTenantPolicyRequest(tenant_id=TENANT, policy=policy),
        [
            ("tenant_id", "tenant_id", NAMES_REFUSED, NAMES_TAKEN),
            ("policy.max_outstanding", "policy.max_outstanding", (0, -1), (10, 2**31 - 1)),
            ("policy.max_leased", "policy.max_leased", (0, -1, 11), (1, 10)),
            ("policy.retention_ms", "policy.retention_ms", (0, -1, DAY_MS - 1, most), (DAY_MS, most - 1)),
        ],
    )
    tenant = tenants_pb2.GetTenantRequest(tenant_id=TENANT)
    await assert_bounds(store.tenants.GetTenant, tenant, [("tenant_id", "tenant_id", NAMES_REFUSED, ())])
    await assert_retention_bounds(store)
    listed = retention_pb2.ListTombstonesRequest(tenant_id=TENANT)
    bounds: list[Bound] = [
        ("page_size", "page_size", (-1, 1_001), (0, 1, 1_000)),
        ("after_cursor", "after_cursor", (-1,), (0, 2**63 - 1)),
    ]
    await assert_bounds(store.retention.ListTombstones, listed, bounds)
    await assert_bounds(store.tenants.ListAuditLines, tenants_pb2.ListAuditLinesRequest(tenant_id=TENANT), bounds)
    stone = retention_pb2.GetTombstoneRequest(tenant_id=TENANT, task_id=SOME_ID)
    await assert_bounds(store.retention.GetTombstone, stone, [("task_id", "task_id", IDS_REFUSED, ())])


async def assert_retention_bounds(store: Stubs) -> None:
    lease_ms: Bound = ("lease_ms", "lease_ms", (999, 900_001), (1_000, 900_000))
    principal: Bound = ("principal", "principal", ("", " ", "p" * 2_049, "\0"), ())
    owner: Bound = ("owner_id", "owner_id", NAMES_REFUSED, NAMES_TAKEN[:1])
    await assert_bounds(store.retention.ClaimCleanup, claim_cleanup(owner_id=NAMES_TAKEN[0]), [owner, lease_ms, principal])
    lease = await cleanup_lease(store, owner_id=NAMES_TAKEN[0])
    leased = [
        (f"lease.{name}", f"lease.{name}", NAMES_REFUSED, ()) for name in ("tenant_id", "owner_id")
    ]  # fmt: skip
    limit: Bound = ("limit", "limit", (-1, 1_001), (0, 1, 1_000))
    await assert_bounds(store.retention.RemoveTasks, remove_tasks(lease), [*leased, limit, principal])
    beat = retention_pb2.HeartbeatCleanupRequest(lease=lease, lease_ms=1_000, principal=OPERATOR)
    await assert_bounds(store.retention.HeartbeatCleanup, beat, [*leased, lease_ms, principal])
    looked = retention_pb2.ListCleanupTenantsRequest()
    page: Bound = ("page_size", "page_size", (-1, 1_001), (0, 1, 1_000))
    after: Bound = ("after_tenant_id", "after_tenant_id", ("a b", "x" * 129), ("", "a"))
    await assert_bounds(store.retention.ListCleanupTenants, looked, [page, after])
    placed = place_hold(await ended(store))
    reason: Bound = ("reason", "reason", ("", " ", "r" * 1_025, "\0"), ("r" * 1_024,))
    ids: Bound = ("task_id", "task_id", IDS_REFUSED, ())
    await assert_bounds(store.governance.PlaceHold, placed, [reason, ids, principal])
    await assert_purge_bounds(store, lease)
    listed = retention_pb2.ListHoldsRequest(tenant_id=TENANT)
    number: Bound = ("after_number", "after_number", (-1,), (0, 2**63 - 1))
    await assert_bounds(store.governance.ListHolds, listed, [page, number])


async def assert_purge_bounds(store: Stubs, lease: retention_pb2.CleanupLease) -> None:
    principal: Bound = ("principal", "principal", ("", "p" * 2_049), ())
    receipt: Bound = ("receipt", "receipt", ("", " ", "r" * 513, "a\nb", "\x7f"), ())
    through: Bound = ("through_cursor", "through_cursor", (0, -1, 1), ())
    await assert_bounds(store.governance.ConfirmExport, confirm_export(1), [receipt, through, principal])
    times: list[Bound] = [(name, name, (0, -1), ()) for name in ("retention_ms", "approval_ms")]
    request_id: Bound = ("request_id", "request_id", ("", "r" * 129), ())
    limit: Bound = ("limit", "limit", (-1, 1_001), ())
    await assert_bounds(store.governance.PreparePurge, prepare_purge(lease), [request_id, limit, principal, *times])
    number: Bound = ("number", "number", (-1,), ())
    token: Bound = ("claim_token", "claim_token", (-1,), ())
    reason: Bound = ("reason", "reason", ("", " ", "r" * 1_025, "a\tb"), ())
    await assert_bounds(store.governance.ApprovePurge, approve_purge(), [number, token, principal])
    await assert_bounds(store.governance.RejectPurge, reject_purge(), [number, token, principal, reason])
    claim_bounds: list[Bound] = [number, ("lease_ms", "lease_ms", (999, 900_001), (1_000, 900_000)), principal]
    await assert_bounds(store.governance.ClaimPurge, claim_purge(), claim_bounds)
    await assert_bounds(store.governance.ExecutePurge, execute_purge(lease), [number, principal])
    listed = retention_pb2.ListPurgesRequest(tenant_id=TENANT)
    states: Bound = ("states", "states", ([0], [7], [1, -1]), ([1, 6], []))
    page: Bound = ("page_size", "page_size", (-1, 1_001), (0, 1, 1_000))
    await assert_bounds(store.governance.ListPurges, listed, [states, page])


async def test_defaults_stand_for_zero(store: Stubs) -> None:
    contract = (await store.tasks.CreateTask(new_task())).task.contract
    assert (contract.ttl_ms, contract.poll_interval_ms, contract.execution_deadline_ms) == (DAY_MS, 1_000, 0)
    tenant = (await store.tenants.GetTenant(tenants_pb2.GetTenantRequest(tenant_id=TENANT))).tenant
    policy = tenant.policy
    assert (policy.max_outstanding, policy.max_leased, policy.retention_ms) == (10_000, 100, DAY_MS)
    assert types_pb2.TASK_VIEW_UNSPECIFIED == 0
