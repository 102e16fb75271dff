"""What the methods under a lease refuse, those of its budget among them."""

from typing import Final

from google.protobuf.message import Message
from taskstore.v1 import tasks_pb2

from tests.store.budgets import Amounts, reserve, reserved_task, set_budget, settle
from tests.store.builders import (
    TENANT,
    cancel,
    checkpoint,
    claim,
    create_and_lease,
    question,
    suspend,
)
from tests.store.refusals.calls import (
    ANSWER,
    ENDINGS,
    UNDER_LEASE,
    Scene,
)
from tests.store.refusals.case import Case, Cases

OF_LEASES: Final = Cases()
case = OF_LEASES.case


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
for _method in ENDINGS:
    case(_method, "BUDGET_RESERVED")(_budget_reserved(_method))
