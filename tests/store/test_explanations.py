"""Why a task is where it is, and who asks for work."""

from itertools import pairwise
from typing import Any

import asyncpg
import grpc
import pytest
from taskstore.v1 import leases_pb2, tasks_pb2, tenants_pb2, types_pb2

from store_service.operations.explanations import MOST_RECORDED
from tests.conftest import Clock, Stubs
from tests.store.builders import (
    OWNER,
    TENANT,
    bring_along,
    cancel,
    claim,
    complete,
    create,
    create_and_lease,
    fail,
    holding,
    lease,
    question,
    refusal_of,
    retry_policy,
    set_policy,
    suspend,
)


async def why(store: Stubs, task_id: str, **fields: Any) -> tasks_pb2.ExplainTaskResponse:
    """Why a task is where it is."""
    return await store.tasks.ExplainTask(tasks_pb2.ExplainTaskRequest(tenant_id=TENANT, task_id=task_id, **fields))


async def cause(store: Stubs, task_id: str) -> str:
    """The cause alone."""
    return tasks_pb2.TaskCause.Name((await why(store, task_id)).cause).removeprefix("TASK_CAUSE_")


async def registrations(store: Stubs, tenant_id: str = TENANT) -> list[tuple[str, int]]:
    """What workers asked for on behalf of a tenant."""
    answer = await store.tenants.ListRegistrations(tenants_pb2.ListRegistrationsRequest(tenant_id=tenant_id))
    return [(one.workflow, one.workflow_version) for one in answer.registrations]


async def test_a_task_that_no_worker_asks_for_says_so_and_one_that_waits_its_turn_says_how_many_come_first(
    store: Stubs, clock: Clock
) -> None:
    first, second = await create(store), await create(store)
    never = await why(store, second.task_id)
    assert never.cause == tasks_pb2.TASK_CAUSE_NO_WORKER
    assert never.text == "No worker asks for report version 1, nor did one during the last day."
    assert never.since == second.created_at
    await store.leases.LeaseTasks(claim(version=2))
    assert await cause(store, second.task_id) == "NO_WORKER", "of another version"
    await store.leases.LeaseTasks(claim(tenant_ids=["other"]))
    assert await cause(store, second.task_id) == "NO_WORKER", "for another tenant"
    assert (await lease(store, limit=1)).lease.task_id == first.task_id
    turn = await why(store, second.task_id)
    assert (turn.cause, turn.text) == (
        tasks_pb2.TASK_CAUSE_TURN,
        "It waits for its turn; 0 of its tenant's report version 1 come first.",
    )
    third = await create(store, priority=-1)
    assert "; 1 of" in (await why(store, third.task_id)).text
    await clock.advance(seconds=61)
    assert await cause(store, second.task_id) == "NO_WORKER"
    assert "none is there, or all have as much as they can hold" in (await why(store, second.task_id)).text


async def test_who_asks_is_remembered_for_its_tenants_by_all_stores_for_a_day(
    store: Stubs, second_store: Stubs, database: asyncpg.Connection, clock: Clock
) -> None:
    await store.leases.LeaseTasks(claim())
    await second_store.leases.LeaseTasks(claim(version=3, tenant_ids=["other"]))
    assert await registrations(second_store, "other") == [("report", 3)]
    assert await registrations(store) == [("report", 1)]
    assert await registrations(second_store, "other") == [("report", 1), ("report", 3)]
    await clock.advance(seconds=86_401)
    await store.leases.LeaseTasks(claim(workflow="bill"))
    assert await registrations(store) == [("bill", 1), ("report", 1)]
    assert await database.fetchval("SELECT tenure.forget_registrations(86400000, 1000)") == 2
    assert await registrations(store) == [("bill", 1)]


async def test_a_claim_of_more_kinds_than_are_written_at_once_is_written_little_by_little(
    store: Stubs, database: asyncpg.Connection
) -> None:
    wanted = claim(tenant_ids=[f"t{number}" for number in range(2 * MOST_RECORDED // 500 + 1)])
    wanted.workflows.extend(leases_pb2.WorkflowVersion(workflow=f"w{number}", version=1) for number in range(499))
    await store.leases.LeaseTasks(wanted)
    counts = []
    for _ in range(4):
        await registrations(store)
        counts.append(await database.fetchval("SELECT count(*) FROM tenure.registration"))
    assert all(after - before <= MOST_RECORDED for before, after in pairwise([0, *counts]))
    assert counts[-1] == len(wanted.tenant_ids) * 500


async def test_a_limit_and_a_pause_are_told_before_everything_else(store: Stubs) -> None:
    await set_policy(store, leased=1)
    await create_and_lease(store)
    task = await create(store)
    limit = await why(store, task.task_id)
    assert (limit.cause, limit.text) == (
        tasks_pb2.TASK_CAUSE_LEASE_LIMIT,
        "Its tenant has 1 tasks at work and may have 1; it comes when one of them is done.",
    )
    scope = tenants_pb2.WorkScope(workflow="report")
    pause = tenants_pb2.PauseWorkRequest(tenant_id=TENANT, scope=scope, actor="ann", reason="the printer burns")
    await store.tenants.PauseWork(pause)
    paused = await why(store, task.task_id)
    assert paused.cause == tasks_pb2.TASK_CAUSE_PAUSED
    assert paused.text.startswith("ann holds its work back since ")
    assert paused.text.endswith("Z: the printer burns.")


async def test_a_lease_tells_its_worker_to_operators_and_to_nobody_in_its_sentence(
    store: Stubs, dsn: str, clock: Clock
) -> None:
    await create(store)
    held = (await lease(store, worker_id="w-secret")).lease
    running = await why(store, held.task_id)
    assert (running.cause, running.worker_id) == (tasks_pb2.TASK_CAUSE_RUNNING, "w-secret")
    assert running.until.ToDatetime() > running.since.ToDatetime()
    assert "w-secret" not in running.text
    await store.tasks.CancelTask(cancel(held.task_id))
    assert await cause(store, held.task_id) == "CANCELLING"
    await create(store)
    other = (await lease(store, lease_ms=1_000)).lease
    async with holding(dsn, "SELECT FROM tenure.tenant WHERE tenant_id = $1 FOR UPDATE", TENANT):  # nobody may take it back
        await clock.advance(seconds=2)
        assert await cause(store, other.task_id) == "LEASE_EXPIRED"


async def test_what_rests_and_what_waits_says_for_what_and_until_when(
    store: Stubs, database: asyncpg.Connection, clock: Clock
) -> None:
    resting = (await create_and_lease(store)).lease
    await store.leases.FailTask(fail(resting, retry=retry_policy(initial_ms=60_000)))
    rest = await why(store, resting.task_id)
    assert (rest.cause, rest.HasField("until")) == (tasks_pb2.TASK_CAUSE_RESTING, True)
    assert rest.text.endswith("Z: retry 1 of it comes then.")
    waits: dict[str, dict[str, Any]] = {
        "TIMER": {"timer_ms": 60_000},
        "SIGNAL": {"signal": "go", "timeout_ms": 60_000},
        "INPUT": {"questions": [question("size"), question("colour")]},
    }
    texts = {}
    for name, fields in waits.items():
        held = (await create_and_lease(store)).lease
        await store.leases.SuspendTask(suspend(held, **fields))
        assert await cause(store, held.task_id) == name
        texts[name] = (await why(store, held.task_id)).text
    assert texts["TIMER"].startswith("It sleeps until ")
    assert texts["SIGNAL"].startswith("It waits for the signal go since ")
    assert ", at the longest until " in texts["SIGNAL"]
    assert "size" in texts["INPUT"]
    assert "colour" in texts["INPUT"]
    assert "until" not in texts["INPUT"]


async def test_what_has_ended_says_how(store: Stubs, database: asyncpg.Connection, clock: Clock) -> None:
    done, failed = (await create_and_lease(store)).lease, (await create_and_lease(store)).lease
    await store.leases.CompleteTask(complete(done))
    await store.leases.FailTask(fail(failed))
    gone, late = await create(store), await create(store, deadline_ms=1_000)
    await store.tasks.CancelTask(cancel(gone.task_id))
    await clock.advance(seconds=2)
    await bring_along(store, database)
    texts = [(await why(store, task_id)).text for task_id in (done.task_id, failed.task_id, gone.task_id, late.task_id)]
    starts = ("It completed at ", "It failed at ", "It was cancelled at ", "It failed, as it did not end before its execution ")
    for text, start in zip(texts, starts, strict=True):
        assert text.startswith(start)


@pytest.mark.row("P2")
async def test_a_task_is_explained_to_its_owner_and_tenant_alone(store: Stubs) -> None:
    task = await create(store)
    assert (await why(store, task.task_id, owner=OWNER)).text
    for wrong in (
        tasks_pb2.ExplainTaskRequest(tenant_id="other", task_id=task.task_id),
        tasks_pb2.ExplainTaskRequest(
            tenant_id=TENANT, task_id=task.task_id, owner=types_pb2.Owner(issuer="test", subject="bob")
        ),
    ):
        refused = await refusal_of(store.tasks.ExplainTask(wrong))
        assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "TASK_NOT_FOUND")


async def test_a_claim_that_waits_is_heard_of_while_it_waits(store: Stubs) -> None:
    call = store.leases.LeaseTasks(claim(workflow="bill", wait_ms=30_000))
    await call.wait_for_connection()
    found: list[tuple[str, int]] = []
    while not found:
        found = await registrations(store)
    assert found == [("bill", 1)]
    call.cancel()
