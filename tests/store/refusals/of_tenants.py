"""What the methods of tenants and their budgets refuse."""

from typing import Final

from google.protobuf.message import Message
from taskstore.v1 import budgets_pb2, tenants_pb2

from tests.store.budgets import HOUR_MS, Amounts, reserved_task, set_budget
from tests.store.builders import (
    TENANT,
    create,
)
from tests.store.refusals.calls import (
    Scene,
)
from tests.store.refusals.case import Cases

OF_TENANTS: Final = Cases()
case = OF_TENANTS.case


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
