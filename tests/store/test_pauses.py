"""Work that an operator holds back is not leased; what runs may end."""

import asyncio
from typing import Any

import asyncpg
import grpc
import pytest
from taskstore.v1 import leases_pb2, tenants_pb2

from tests.conftest import Clock, Stubs
from tests.store.builders import (
    TENANT,
    assert_invalid,
    bring_along,
    checkpoint,
    claim,
    complete,
    create,
    create_and_lease,
    get,
    heartbeat,
    history,
    lease,
    refusal_of,
    release,
    set_policy,
    suspend,
)

FAILED_PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION


def scope(workflow: str = "", version: int = 0) -> tenants_pb2.WorkScope:
    return tenants_pb2.WorkScope(workflow=workflow, workflow_version=version)


async def pause(
    store: Stubs, workflow: str = "", version: int = 0, *, tenant_id: str = TENANT, actor: str = "ann", reason: str = ""
) -> tenants_pb2.Tenant:
    """Holds work back."""
    request = tenants_pb2.PauseWorkRequest(tenant_id=tenant_id, scope=scope(workflow, version), actor=actor, reason=reason)
    return (await store.tenants.PauseWork(request)).tenant


async def resume(store: Stubs, workflow: str = "", version: int = 0, *, tenant_id: str = TENANT) -> tenants_pb2.Tenant:
    """Takes a pause away."""
    request = tenants_pb2.ResumeWorkRequest(tenant_id=tenant_id, scope=scope(workflow, version))
    return (await store.tenants.ResumeWork(request)).tenant


async def taken(store: Stubs, *workflows: tuple[str, int], **fields: Any) -> set[str]:
    """What a worker gets that runs all these workflows."""
    request = claim(**fields)
    request.ClearField("workflows")
    request.workflows.extend(leases_pb2.WorkflowVersion(workflow=name, version=version) for name, version in workflows)
    return {task.lease.task_id for task in (await store.leases.LeaseTasks(request)).tasks}


async def test_nothing_of_a_paused_tenant_is_leased_until_it_is_resumed(store: Stubs) -> None:
    first, second = await create(store), await create(store, tenant_id="other")
    tenant = await pause(store, reason="the printer burns")
    assert [(one.scope, one.actor, one.reason) for one in tenant.pauses] == [(scope(), "ann", "the printer burns")]
    assert tenant.pauses[0].paused_at.seconds >= first.created_at.seconds
    later = await create(store)
    assert (await get(store, later.task_id)).change == 1
    for tenants in ([], [TENANT]):
        expected = set() if tenants else {second.task_id}
        assert await taken(store, ("report", 1), tenant_ids=tenants) == expected
    resumed = await resume(store)
    assert (list(resumed.pauses), resumed.outstanding) == ([], 2)
    assert await taken(store, ("report", 1)) == {first.task_id, later.task_id}


async def test_what_runs_may_end_and_what_comes_back_waits(store: Stubs, database: asyncpg.Connection, clock: Clock) -> None:
    held = [(await create_and_lease(store)).lease for _ in range(4)]
    await pause(store)
    await store.leases.HeartbeatTask(heartbeat(held[0]))
    await store.leases.AppendCheckpoint(checkpoint(held[0]))
    await store.leases.CompleteTask(complete(held[0]))
    await store.leases.ReleaseTask(release(held[1]))
    await store.leases.SuspendTask(suspend(held[2], timer_ms=1_000))
    await clock.advance(seconds=31)
    await bring_along(store, database)
    assert [(await history(store, one.task_id))[-1] for one in held] == ["COMPLETED", "RELEASED", "WOKEN", "LEASE_EXPIRED"]
    assert await taken(store, ("report", 1)) == set()
    await resume(store)
    assert await taken(store, ("report", 1)) == {one.task_id for one in held[1:]}


async def test_a_workflow_or_a_version_is_paused_alone(store: Stubs) -> None:
    ids = {
        (name, version): (await create(store, workflow=name, version=version)).task_id
        for name in ("a", "b")
        for version in (1, 2)
    }
    await pause(store, "a")
    await pause(store, "b", 2)
    assert await taken(store, *ids, limit=1) == {ids["b", 1]}
    assert await taken(store, *ids) == set()
    await resume(store, "b", 2)
    assert await taken(store, *ids) == {ids["b", 2]}
    await resume(store, "a")
    assert await taken(store, *ids) == {ids["a", 1], ids["a", 2]}


async def test_pauses_lie_over_each_other_and_each_lasts_until_it_is_resumed_itself(store: Stubs) -> None:
    task = await create(store)
    for one in ((), ("report",), ("report", 1)):
        await pause(store, *one)
    assert await resume(store, "report", 2) == await resume(store, "nobody's")
    for one in (("report",), ()):
        await resume(store, *one)
        assert await taken(store, ("report", 1)) == set()
    assert [one.scope for one in (await resume(store, "report", 2)).pauses] == [scope("report", 1)]
    await resume(store, "report", 1)
    assert await taken(store, ("report", 1)) == {task.task_id}


async def test_a_repeated_pause_changes_nothing(store: Stubs) -> None:
    first = await pause(store, reason="why")
    assert await pause(store, actor="bob", reason="other") == first
    assert await resume(store) == await resume(store)


async def test_work_that_is_new_to_a_paused_tenant_waits_too(store: Stubs) -> None:
    await pause(store, tenant_id="new")
    await pause(store, "report", tenant_id="newer")
    tasks = [await create(store, tenant_id=tenant) for tenant in ("new", "newer", "newest")]
    assert await taken(store, ("report", 1)) == {tasks[2].task_id}


async def test_neither_a_policy_nor_room_opens_what_is_paused(store: Stubs, database: asyncpg.Connection) -> None:
    await set_policy(store, leased=1)
    held = (await create_and_lease(store)).lease
    await create(store)
    await pause(store)
    await store.leases.CompleteTask(complete(held))
    await set_policy(store, leased=5)
    assert await database.fetchval("SELECT count(*) FROM tenure.lane WHERE open") == 0
    await resume(store)
    await lease(store)


async def test_paused_lanes_are_not_in_the_index_that_claims_walk(store: Stubs, database: asyncpg.Connection) -> None:
    for number in range(40):
        await create(store, tenant_id=f"paused-{number}")
        await pause(store, tenant_id=f"paused-{number}")
    task = await create(store)
    assert await database.fetchval("SELECT count(*) FROM tenure.lane WHERE open") == 1
    assert await taken(store, ("report", 1), limit=1) == {task.task_id}


async def test_a_tenant_has_so_many_pauses_and_no_more(store: Stubs) -> None:
    await asyncio.gather(*(pause(store, "w", version) for version in range(1, 201)))
    assert len((await pause(store, "w", 1)).pauses) == 200
    refused = await refusal_of(store.tenants.PauseWork(tenants_pb2.PauseWorkRequest(tenant_id=TENANT, actor="ann")))
    assert (refused.code, refused.reason) == (FAILED_PRECONDITION, "PAUSE_LIMIT")


async def test_a_tenant_that_is_not_there_can_be_paused_and_not_resumed(store: Stubs) -> None:
    refused = await refusal_of(store.tenants.ResumeWork(tenants_pb2.ResumeWorkRequest(tenant_id="nobody")))
    assert refused.reason == "TENANT_NOT_FOUND"
    assert len((await pause(store, tenant_id="nobody")).pauses) == 1


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("tenant_id", {"tenant_id": ""}),
        ("actor", {"actor": " "}),
        ("actor", {"actor": "a" * 257}),
        ("actor", {"actor": "a\0"}),
        ("reason", {"reason": "r" * 1025}),
        ("scope.workflow", {"scope": scope(" ")}),
        ("scope.workflow", {"scope": scope("w" * 257)}),
        ("scope.workflow_version", {"scope": scope("w", -1)}),
        ("scope.workflow_version", {"scope": scope("", 1)}),
    ],
)
async def test_what_is_no_pause_is_refused_for_its_field(store: Stubs, field: str, wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"tenant_id": TENANT, "actor": "ann"}
    await assert_invalid(store.tenants.PauseWork(tenants_pb2.PauseWorkRequest(**right | wrong)), field)
    if field.startswith("scope"):
        await assert_invalid(store.tenants.ResumeWork(tenants_pb2.ResumeWorkRequest(tenant_id=TENANT, **wrong)), field)
