"""A case for each method and reason: it makes a state and returns the request that the method refuses in it."""

from collections.abc import Awaitable, Callable
from typing import Final

from google.protobuf.message import Message
from taskstore.v1 import budgets_pb2, retention_pb2, tasks_pb2, tenants_pb2

from tests.store.budgets import HOUR_MS, Amounts, reserve, reserved_task, set_budget, settle
from tests.store.builders import (
    TENANT,
    cancel,
    checkpoint,
    claim,
    create,
    create_and_lease,
    new_task,
    question,
    set_policy,
    suspend,
)
from tests.store.refusals.calls import (
    ANSWER,
    ENDINGS,
    NO_ID,
    ONE_OF,
    UNDER_CLEANUP,
    UNDER_LEASE,
    Scene,
    fork,
    signal,
)
from tests.store.refusals.promised import Pair
from tests.store.retention import (
    OPERATOR,
    REVIEWER,
    approve_purge,
    claim_cleanup,
    claim_purge,
    cleanup_lease,
    confirm_export,
    ended,
    execute_purge,
    hold,
    place_hold,
    prepare_purge,
    reject_purge,
    release_hold,
    remove,
)

Case = Callable[[Scene], Awaitable[Message]]

CASES: Final[dict[Pair, Case]] = {}


def case(method: str, reason: str) -> Callable[[Case], Case]:
    """Registers a case of a method, and of the method that takes several of what it takes one of."""

    def register(make: Case) -> Case:
        for one in (method, *(batch for batch, single in ONE_OF.items() if single == method)):
            assert (one, reason) not in CASES
            CASES[one, reason] = make
        return make

    return register


@case("CreateTask", "REQUEST_ID_CONFLICT")
async def _(scene: Scene) -> Message:
    await create(scene.store, request_id="once")
    return new_task(request_id="once", data=b"2")


@case("CreateTask", "OUTSTANDING_LIMIT")
async def _(scene: Scene) -> Message:
    await set_policy(scene.store, outstanding=1, leased=1)
    await create(scene.store)
    return new_task()


@case("CreateTask", "CREATE_RATE")
async def _(scene: Scene) -> Message:
    await _set_policy(scene, max_creates_per_second=1)
    await create(scene.store)
    return new_task()


@case("CreateTask", "INPUT_TOO_LARGE")
async def _(scene: Scene) -> Message:
    await _set_policy(scene, max_input_bytes=1)
    return new_task(data=b"10")


@case("GetTasks", "BATCH_FULL")
async def _(scene: Scene) -> Message:
    request = new_task()
    request.contract.output_schema = b'"' + b"x" * (256 * 1024 - 2) + b'"'
    task_id = (await scene.store.tasks.CreateTask(request)).task.task_id
    return tasks_pb2.GetTasksRequest(items=[tasks_pb2.GetTaskRequest(tenant_id=TENANT, task_id=task_id)] * 17)


@case("WatchTasks", "TASK_NOT_FOUND")
async def _(_: Scene) -> Message:
    return tasks_pb2.WatchTasksRequest(add=[tasks_pb2.WatchedTask(number=1, tenant_id=TENANT, task_id=NO_ID)])


@case("GetTask", "TASK_NOT_FOUND")
async def _(_: Scene) -> Message:
    return tasks_pb2.GetTaskRequest(tenant_id=TENANT, task_id=NO_ID)


@case("FindTask", "TASK_NOT_FOUND")
async def _(scene: Scene) -> Message:
    await create(scene.store, reference="one")
    return tasks_pb2.FindTaskRequest(tenant_id=TENANT, reference="other")


@case("ExplainTask", "TASK_NOT_FOUND")
async def _(scene: Scene) -> Message:
    return tasks_pb2.ExplainTaskRequest(tenant_id=TENANT, task_id=NO_ID)


@case("CancelTask", "TASK_NOT_FOUND")
async def _(_: Scene) -> Message:
    return cancel(NO_ID)


@case("AttachTask", "TASK_NOT_FOUND")
async def _(_: Scene) -> Message:
    return tasks_pb2.AttachTaskRequest(tenant_id=TENANT, task_id=NO_ID)


@case("ListTaskHistory", "TASK_NOT_FOUND")
async def _(_: Scene) -> Message:
    return tasks_pb2.ListTaskHistoryRequest(tenant_id=TENANT, task_id=NO_ID)


@case("ListCheckpoints", "TASK_NOT_FOUND")
async def _(_: Scene) -> Message:
    return tasks_pb2.ListCheckpointsRequest(tenant_id=TENANT, task_id=NO_ID)


@case("GetCheckpoint", "TASK_NOT_FOUND")
async def _(_: Scene) -> Message:
    return tasks_pb2.GetCheckpointRequest(tenant_id=TENANT, task_id=NO_ID)


@case("GetCheckpoint", "CHECKPOINT_NOT_FOUND")
async def _(scene: Scene) -> Message:
    return tasks_pb2.GetCheckpointRequest(tenant_id=TENANT, task_id=(await create(scene.store)).task_id)


@case("AnswerInputs", "TASK_NOT_FOUND")
async def _(_: Scene) -> Message:
    return tasks_pb2.AnswerInputsRequest(tenant_id=TENANT, task_id=NO_ID, answers=[ANSWER])


@case("PublishSignal", "TASK_NOT_FOUND")
async def _(_: Scene) -> Message:
    return signal(NO_ID)


@case("PublishSignal", "SIGNAL_ID_CONFLICT")
async def _(scene: Scene) -> Message:
    task_id = (await create(scene.store)).task_id
    await scene.store.tasks.PublishSignal(signal(task_id, signal_id="once"))
    return signal(task_id, signal_id="once", data=b"2")


@case("PublishSignal", "SIGNAL_LIMIT")
async def _(scene: Scene) -> Message:
    task_id = (await create(scene.store)).task_id
    await scene.store.tasks.PublishSignal(signal(task_id))
    await scene.database.execute(
        "INSERT INTO tenure.signal SELECT (jsonb_populate_record(s, jsonb_build_object('signal_id', 'copy-' || n))).* "
        "FROM tenure.signal s, generate_series(2, 1000) n"
    )
    return signal(task_id, signal_id="one more")


@case("GetSignal", "SIGNAL_NOT_FOUND")
async def _(_: Scene) -> Message:
    return tasks_pb2.GetSignalRequest(tenant_id=TENANT, signal_id="none")


@case("ForkTask", "TASK_NOT_FOUND")
async def _(_: Scene) -> Message:
    return fork(NO_ID)


@case("ForkTask", "CHECKPOINT_NOT_FOUND")
async def _(scene: Scene) -> Message:
    return fork((await create(scene.store)).task_id, checkpoints=1)


@case("ForkTask", "REQUEST_ID_CONFLICT")
async def _(scene: Scene) -> Message:
    await create(scene.store, request_id="once")
    return fork((await create(scene.store)).task_id, request_id="once")


@case("ForkTask", "CREATE_RATE")
async def _(scene: Scene) -> Message:
    task = await create(scene.store)
    await _set_policy(scene, max_creates_per_second=1)
    await create(scene.store)
    return fork(task.task_id)


@case("ForkTask", "OUTSTANDING_LIMIT")
async def _(scene: Scene) -> Message:
    await set_policy(scene.store, outstanding=1, leased=1)
    return fork((await create(scene.store)).task_id)


@case("AppendCheckpoint", "REVISION_CONFLICT")
async def _(scene: Scene) -> Message:
    return checkpoint((await create_and_lease(scene.store)).lease, revision=1)


@case("AppendCheckpoint", "CHECKPOINT_LIMIT")
async def _(scene: Scene) -> Message:
    held = (await create_and_lease(scene.store)).lease
    await scene.database.execute("UPDATE tenure.task_state SET checkpoints = 10000")
    return checkpoint(held, revision=10_000)


@case("SuspendTask", "INPUT_LIMIT")
async def _(scene: Scene) -> Message:
    held = (await create_and_lease(scene.store)).lease
    await scene.store.leases.SuspendTask(suspend(held, questions=[question("q")]))
    await scene.store.tasks.AnswerInputs(
        tasks_pb2.AnswerInputsRequest(tenant_id=TENANT, task_id=held.task_id, answers=[ANSWER])
    )
    await scene.database.execute(
        "INSERT INTO tenure.input_request SELECT (jsonb_populate_record(r, jsonb_build_object("
        "'key', 'q#' || n, 'number', n))).* FROM tenure.input_request r, generate_series(2, 1000) n"
    )
    (again,) = (await scene.store.leases.LeaseTasks(claim())).tasks
    return suspend(again.lease, questions=[question("other")])


@case("ReserveBudget", "BUDGET_NOT_CONFIGURED")
async def _(scene: Scene) -> Message:
    return reserve((await create_and_lease(scene.store)).lease, 1)


@case("ReserveBudget", "BUDGET_DENIED")
async def _(scene: Scene) -> Message:
    await set_budget(scene.store, Amounts(tokens=1))
    return reserve((await create_and_lease(scene.store)).lease, 2)


@case("ReserveBudget", "BUDGET_CONFLICT")
async def _(scene: Scene) -> Message:
    await set_budget(scene.store, Amounts(tokens=9))
    return reserve(await reserved_task(scene.store, 1), 2)


@case("ReserveBudget", "BUDGET_EXCEEDED")
async def _(scene: Scene) -> Message:
    await set_budget(scene.store, Amounts(tokens=9))
    return reserve(await reserved_task(scene.store, 1), 1, used=2)


@case("SettleBudget", "BUDGET_NOT_CONFIGURED")
async def _(scene: Scene) -> Message:
    return settle((await create_and_lease(scene.store)).lease, 1)


@case("SettleBudget", "BUDGET_CONFLICT")
async def _(scene: Scene) -> Message:
    await set_budget(scene.store, Amounts(tokens=9))
    return settle((await create_and_lease(scene.store)).lease, 1)


@case("SettleBudget", "BUDGET_EXCEEDED")
async def _(scene: Scene) -> Message:
    await set_budget(scene.store, Amounts(tokens=9))
    return settle(await reserved_task(scene.store, 1), 2)


@case("GetTenant", "TENANT_NOT_FOUND")
async def _(_: Scene) -> Message:
    return tenants_pb2.GetTenantRequest(tenant_id=TENANT)


@case("PauseWork", "PAUSE_LIMIT")
async def _(scene: Scene) -> Message:
    await create(scene.store)
    await scene.database.execute(
        "INSERT INTO tenure.pause SELECT $1, 'w', n, 'ann', '', tenure.task_now() FROM generate_series(1, 200) n", TENANT
    )
    return tenants_pb2.PauseWorkRequest(tenant_id=TENANT, actor="ann")


@case("ResumeWork", "TENANT_NOT_FOUND")
async def _(_: Scene) -> Message:
    return tenants_pb2.ResumeWorkRequest(tenant_id=TENANT)


@case("RedriveTasks", "TENANT_NOT_FOUND")
async def _(_: Scene) -> Message:
    return tenants_pb2.RedriveTasksRequest(tenant_id=TENANT, request_id="once", actor="ann")


@case("RedriveTasks", "REQUEST_ID_CONFLICT")
async def _(scene: Scene) -> Message:
    await create(scene.store)
    request = tenants_pb2.RedriveTasksRequest(tenant_id=TENANT, request_id="once", actor="ann")
    await scene.store.tenants.RedriveTasks(request)
    request.actor = "bob"
    return request


@case("SetBudgetPolicy", "BUDGET_RESERVED")
async def _(scene: Scene) -> Message:
    await set_budget(scene.store, Amounts(tokens=9))
    await reserved_task(scene.store, 1)
    policy = budgets_pb2.BudgetPolicy(limits=Amounts(tokens=1), window_ms=HOUR_MS)
    return budgets_pb2.SetBudgetPolicyRequest(tenant_id=TENANT, policy=policy)


@case("RemoveBudgetPolicy", "BUDGET_RESERVED")
async def _(scene: Scene) -> Message:
    await set_budget(scene.store, Amounts(tokens=9))
    await reserved_task(scene.store, 1)
    return budgets_pb2.RemoveBudgetPolicyRequest(tenant_id=TENANT)


@case("RemoveBudgetPolicy", "BUDGET_NOT_CONFIGURED")
async def _(_: Scene) -> Message:
    return budgets_pb2.RemoveBudgetPolicyRequest(tenant_id=TENANT)


@case("GetBudget", "BUDGET_NOT_CONFIGURED")
async def _(_: Scene) -> Message:
    return budgets_pb2.GetBudgetRequest(tenant_id=TENANT)


@case("GetTombstone", "TOMBSTONE_NOT_FOUND")
async def _(_: Scene) -> Message:
    return retention_pb2.GetTombstoneRequest(tenant_id=TENANT, task_id=NO_ID)


@case("ClaimCleanup", "TENANT_NOT_FOUND")
async def _(_: Scene) -> Message:
    return claim_cleanup(tenant_id="nobody")


@case("PlaceHold", "TASK_NOT_FOUND")
async def _(_: Scene) -> Message:
    return place_hold(NO_ID)


@case("ReleaseHold", "HOLD_NOT_FOUND")
async def _(_: Scene) -> Message:
    return release_hold(1)


@case("ReleaseHold", "HOLD_RELEASED")
async def _(scene: Scene) -> Message:
    placed = await hold(scene.store, (await create(scene.store)).task_id)
    await scene.store.governance.ReleaseHold(release_hold(placed.number, principal=REVIEWER))
    return release_hold(placed.number)


@case("GetRetention", "TENANT_NOT_FOUND")
async def _(_: Scene) -> Message:
    return retention_pb2.GetRetentionRequest(tenant_id=TENANT)


@case("ConfirmExport", "EXPORT_CONFLICT")
async def _(scene: Scene) -> Message:
    await _exported(scene)
    return confirm_export(1, receipt="another")


@case("PreparePurge", "NOT_EXPORTED")
async def _(scene: Scene) -> Message:
    await create(scene.store)
    return prepare_purge(await cleanup_lease(scene.store))


@case("PreparePurge", "NOTHING_TO_PURGE")
async def _(scene: Scene) -> Message:
    await _exported(scene)
    return prepare_purge(await cleanup_lease(scene.store), retention_ms=HOUR_MS)


@case("PreparePurge", "REQUEST_ID_CONFLICT")
async def _(scene: Scene) -> Message:
    await _prepared(scene)
    return prepare_purge(await cleanup_lease(scene.store), limit=1_000)


for _method, _request in (
    ("ApprovePurge", approve_purge()),
    ("RejectPurge", reject_purge()),
    ("ClaimPurge", claim_purge(1)),
    ("GetPurgeEvidence", retention_pb2.GetPurgeEvidenceRequest(tenant_id=TENANT, number=1)),
):

    @case(_method, "PURGE_NOT_FOUND")
    async def _(_: Scene, request: Message = _request) -> Message:
        return request


@case("ExecutePurge", "PURGE_NOT_FOUND")
async def _(scene: Scene) -> Message:
    await create(scene.store)
    return execute_purge(await cleanup_lease(scene.store))


@case("ApprovePurge", "SECOND_PERSON_REQUIRED")
async def _(scene: Scene) -> Message:
    await _prepared(scene)
    return approve_purge(principal=OPERATOR)


for _method, _request in (("ApprovePurge", approve_purge(claim_token=1)), ("RejectPurge", reject_purge(claim_token=1))):

    @case(_method, "LEASE_LOST")
    async def _(scene: Scene, request: Message = _request) -> Message:
        await _prepared(scene)
        return request


@case("ApprovePurge", "PURGE_CONFLICT")
async def _(scene: Scene) -> Message:
    await _prepared(scene)
    await scene.store.governance.RejectPurge(reject_purge())
    return approve_purge()


@case("RejectPurge", "PURGE_CONFLICT")
async def _(scene: Scene) -> Message:
    await _prepared(scene)
    await scene.store.governance.ApprovePurge(approve_purge())
    return reject_purge()


@case("ExecutePurge", "PURGE_CONFLICT")
async def _(scene: Scene) -> Message:
    await _prepared(scene)
    return execute_purge(await cleanup_lease(scene.store))


async def _exported(scene: Scene) -> None:
    """One task was removed, and its tombstone is kept elsewhere."""
    await ended(scene.store, ttl_ms=1)
    await scene.database.execute("UPDATE clock.shift SET by = '2 days'")
    await remove(scene.store)
    await scene.store.governance.ConfirmExport(confirm_export(1))
    await scene.database.execute("UPDATE clock.shift SET by = '2 days 1 second'")


async def _prepared(scene: Scene) -> None:
    await _exported(scene)
    await scene.store.governance.PreparePurge(prepare_purge(await cleanup_lease(scene.store)))


def _cleanup_lost(method: str) -> Case:
    async def make(scene: Scene) -> Message:
        if method == "ExecutePurge":
            await _prepared(scene)
        else:
            await create(scene.store)
        held = await cleanup_lease(scene.store)
        await scene.store.retention.ReleaseCleanup(retention_pb2.ReleaseCleanupRequest(lease=held, principal=OPERATOR))
        return UNDER_CLEANUP[method](held)

    return make


def _lease_lost(method: str) -> Case:
    async def make(scene: Scene) -> Message:
        held = (await create_and_lease(scene.store)).lease
        await scene.store.tasks.CancelTask(cancel(held.task_id, force=True))
        return UNDER_LEASE[method](held)

    return make


def _budget_reserved(method: str) -> Case:
    async def make(scene: Scene) -> Message:
        await set_budget(scene.store, Amounts(tokens=9))
        return UNDER_LEASE[method](await reserved_task(scene.store, 1))

    return make


for _method in UNDER_LEASE:
    case(_method, "LEASE_LOST")(_lease_lost(_method))
for _method in UNDER_CLEANUP:
    case(_method, "LEASE_LOST")(_cleanup_lost(_method))
for _method in ENDINGS:
    case(_method, "BUDGET_RESERVED")(_budget_reserved(_method))


async def _set_policy(scene: Scene, **limits: int) -> None:
    policy = tenants_pb2.TenantPolicy(max_outstanding=9, max_leased=9, retention_ms=86_400_000, **limits)
    await scene.store.tenants.SetTenantPolicy(tenants_pb2.SetTenantPolicyRequest(tenant_id=TENANT, policy=policy))
