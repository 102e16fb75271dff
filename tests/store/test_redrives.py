"""Failed tasks go back to work as an operator wishes, each once, and their history says so."""

import asyncio
from typing import Any

import asyncpg
import grpc
import pytest
from google.protobuf import timestamp_pb2
from taskstore.v1 import leases_pb2, retention_pb2, tasks_pb2, tenants_pb2, types_pb2

from tests.conftest import Clock, Stubs
from tests.store.builders import (
    DAY_MS,
    TENANT,
    answer,
    assert_invalid,
    assert_lease_lost,
    bring_along,
    cancel,
    checkpoint,
    complete,
    create,
    create_and_lease,
    fail,
    get,
    history,
    lease,
    publish,
    question,
    refusal_of,
    retry_policy,
    set_policy,
    suspend,
)
from tests.store.retention import remove

QUEUED, FAILED = types_pb2.TASK_STATE_QUEUED, types_pb2.TASK_STATE_FAILED
UNKNOWN = "5d0f3c7a-91be-42d6-80c4-7e2f6a1b93d8"
DAY = 86_400.0


async def redrive(store: Stubs, request_id: str = "r1", **fields: Any) -> tenants_pb2.RedriveTasksResponse:
    """Redrives."""
    fields = {"tenant_id": TENANT, "request_id": request_id, "actor": "ann", **fields}
    return await store.tenants.RedriveTasks(tenants_pb2.RedriveTasksRequest(**fields))


def outcomes(response: tenants_pb2.RedriveTasksResponse) -> list[tuple[str, str]]:
    """Each task and what became of it."""
    name = tenants_pb2.RedriveOutcome.Name
    return [(item.task_id, name(item.outcome).removeprefix("REDRIVE_OUTCOME_")) for item in response.items]


async def failed(store: Stubs, **fields: Any) -> str:
    """A task that its worker failed."""
    task = await create(store, **fields)
    names = {"workflow": fields.get("workflow", "report"), "version": fields.get("version", 1)}
    held = (await lease(store, tenant_ids=[task.tenant_id], **names)).lease
    assert held.task_id == task.task_id
    await store.leases.FailTask(fail(held))
    return task.task_id


async def test_a_redriven_task_keeps_what_it_is_and_has_and_counts_anew(store: Stubs) -> None:
    task_id = (await create(store, data=b'{"n": 1}')).task_id
    held = (await lease(store)).lease
    await store.leases.AppendCheckpoint(checkpoint(held, data=b"7"))
    await store.leases.FailTask(fail(held, retry=retry_policy(max_attempts=2, initial_ms=1, most_ms=1)))
    held = (await rested(store)).lease
    before = await get(store, task_id)
    await store.leases.FailTask(fail(held))
    assert outcomes(await redrive(store)) == [(task_id, "REDRIVEN")]
    task = await get(store, task_id)
    assert (task.state, task.WhichOneof("outcome"), task.HasField("ended_at"), task.HasField("handle_expires_at")) == (
        QUEUED, None, False, True,
    )  # fmt: skip
    assert (before.attempts, before.retries, task.attempts, task.retries, task.crashes) == (2, 1, 0, 0, 0)
    assert (task.checkpoints, task.input, task.contract, task.created_at) == (
        1, before.input, before.contract, before.created_at,
    )  # fmt: skip
    assert task.change == before.change + 2
    assert task.changed_at.ToNanoseconds() >= before.changed_at.ToNanoseconds()
    lines = (await store.tasks.ListTaskHistory(tasks_pb2.ListTaskHistoryRequest(tenant_id=TENANT, task_id=task_id))).lines
    assert (lines[-1].event, lines[-1].detail, lines[-1].worker_id) == (tasks_pb2.HISTORY_EVENT_REDRIVEN, "ann", "")
    assert lines[-2].detail == "it broke"
    again = await lease(store)
    assert (again.lease.task_id, again.lease.token, again.attempts, again.checkpoints) == (task_id, 3, 1, 1)
    await assert_lease_lost(store.leases.CompleteTask(complete(held)))
    await store.leases.CompleteTask(complete(again.lease, b"2"))
    assert (await get(store, task_id)).result.data == b"2"


async def rested(store: Stubs) -> leases_pb2.LeasedTask:
    """The task, once its rest is over."""
    request = leases_pb2.LeaseTasksRequest(
        request_id="rested", worker_id="w1", workflows=[leases_pb2.WorkflowVersion(workflow="report", version=1)], limit=1,
        lease_ms=30_000, wait_ms=20_000,
    )  # fmt: skip
    (task,) = (await store.leases.LeaseTasks(request)).tasks
    return task


async def test_only_what_matches_is_redriven_oldest_failure_first(
    store: Stubs, database: asyncpg.Connection, clock: Clock
) -> None:
    first = await failed(store, workflow="a", version=1)
    await clock.advance(seconds=10)
    second = await failed(store, workflow="a", version=2)
    late = (await create(store, workflow="b", deadline_ms=1_000)).task_id
    await clock.advance(seconds=10)
    await bring_along(store, database)
    last = await failed(store, workflow="b")
    foreign = await failed(store, tenant_id="other")
    live = (await create(store, workflow="a")).task_id
    times = {one: (await get(store, one)).ended_at for one in (first, second, late, last)}
    deadline, worker = types_pb2.FAILURE_REASON_EXECUTION_DEADLINE, types_pb2.FAILURE_REASON_WORKER

    async def would(**fields: Any) -> list[str]:
        found = outcomes(await redrive(store, "", dry_run=True, **fields))
        assert {outcome for _, outcome in found} <= {"REDRIVEN"}
        return [task_id for task_id, _ in found]

    assert await would() == [first, second, late, last]
    assert await would(limit=2) == [first, second]
    assert await would(scope=tenants_pb2.WorkScope(workflow="a")) == [first, second]
    assert await would(scope=tenants_pb2.WorkScope(workflow="a", workflow_version=2)) == [second]
    assert await would(scope=tenants_pb2.WorkScope(workflow="c")) == []
    assert await would(reasons=[deadline]) == [late]
    assert await would(reasons=[deadline, worker, worker]) == [first, second, late, last]
    assert await would(reasons=[types_pb2.FAILURE_REASON_CRASH_LIMIT]) == []
    assert await would(failed_from=times[second]) == [second, late, last]
    assert await would(failed_before=times[second]) == [first]
    assert await would(failed_from=times[second], failed_before=times[last], reasons=[worker]) == [second]
    assert await would(task_ids=[last, first]) == [first, last]
    assert await would(tenant_id="other") == [foreign]
    named = await redrive(store, "", dry_run=True, task_ids=[live, UNKNOWN, first, foreign, last], limit=1)
    assert outcomes(named) == [(first, "REDRIVEN")] + [(one, "NOT_FAILED") for one in (live, UNKNOWN, foreign, last)]


async def test_a_dry_run_changes_nothing(store: Stubs, database: asyncpg.Connection) -> None:
    task_id = await failed(store)
    before = await get(store, task_id)
    assert outcomes(await redrive(store, "r1", dry_run=True)) == [(task_id, "REDRIVEN")]
    after = await get(store, task_id)
    before.read_at.CopyFrom(after.read_at)
    assert after == before
    assert await database.fetchval("SELECT count(*) FROM tenure.redrive") == 0
    assert outcomes(await redrive(store, "r1")) == [(task_id, "REDRIVEN")]


async def test_the_same_request_is_answered_again_and_does_nothing_more(
    store: Stubs, second_store: Stubs, clock: Clock
) -> None:
    task_id = await failed(store)
    first = await redrive(store, task_ids=[task_id, UNKNOWN])
    await store.leases.FailTask(fail((await lease(store)).lease))
    again = await redrive(second_store, task_ids=[task_id, UNKNOWN])
    assert (first.replayed, again.replayed, again.items) == (False, True, first.items)
    assert (await get(store, task_id)).state == FAILED
    others: list[dict[str, Any]] = [{"actor": "bob"}, {"task_ids": [task_id]}, {"limit": 7}]
    for other in others:
        refused = await refusal_of(redrive(store, **{"task_ids": [task_id, UNKNOWN]} | other))
        assert (refused.code, refused.reason) == (grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_CONFLICT")
    await clock.advance(seconds=31 * DAY)
    await redrive(store, "another")  # which forgets what is older than 30 days
    assert not (await redrive(store, task_ids=[task_id, UNKNOWN])).replayed


async def test_one_request_sent_by_many_at_once_redrives_once(store: Stubs, second_store: Stubs) -> None:
    ids = [await failed(store) for _ in range(3)]
    answers = await asyncio.gather(*(redrive(each) for each in (store, second_store) for _ in range(5)))
    assert sorted(one.replayed for one in answers) == [False] + [True] * 9
    assert {str(one.items) for one in answers} == {str(answers[0].items)}
    for task_id in ids:
        assert (await history(store, task_id)).count("REDRIVEN") == 1


async def test_batches_go_on_until_there_are_none_and_no_two_redrive_the_same(store: Stubs, second_store: Stubs) -> None:
    ids = [await failed(store) for _ in range(25)]
    seen: list[str] = []

    async def operator(each: Stubs, name: str) -> None:
        number = 0
        while items := (await redrive(each, f"{name}-{number}", limit=4)).items:
            number += 1
            seen.extend(item.task_id for item in items)

    await asyncio.gather(*(operator(each, f"o{n}") for n, each in enumerate((store, second_store, store))))
    assert sorted(seen) == sorted(ids)
    tenant = (await store.tenants.GetTenant(tenants_pb2.GetTenantRequest(tenant_id=TENANT))).tenant
    assert tenant.outstanding == 25


async def test_redriven_tasks_count_against_the_tenants_limit(store: Stubs) -> None:
    ids = [await failed(store) for _ in range(3)]
    await set_policy(store, outstanding=2, leased=1)
    await create(store)
    expected = list(zip(ids, ["REDRIVEN", "OUTSTANDING_LIMIT", "OUTSTANDING_LIMIT"], strict=True))
    assert outcomes(await redrive(store, dry_run=True)) == expected
    assert outcomes(await redrive(store)) == expected
    assert outcomes(await redrive(store, "r2")) == [(one, "OUTSTANDING_LIMIT") for one in ids[1:]]
    assert [(await get(store, one)).state for one in ids] == [QUEUED, FAILED, FAILED]


async def test_deadline_and_cancel_and_abandonment_begin_anew(store: Stubs, database: asyncpg.Connection, clock: Clock) -> None:
    task_id = (await create(store, deadline_ms=60_000, abandon_ms=90_000)).task_id
    held = (await lease(store, lease_ms=300_000)).lease
    await store.tasks.CancelTask(cancel(task_id))
    await store.leases.FailTask(fail(held))
    await clock.advance(seconds=1_000)
    await redrive(store)
    task = await get(store, task_id)
    assert (task.state, task.cancel_requested) == (QUEUED, False)
    await clock.advance(seconds=59)
    await bring_along(store, database)
    assert (await get(store, task_id)).state == QUEUED
    await clock.advance(seconds=2)
    await bring_along(store, database)
    assert (await get(store, task_id)).error.reason == types_pb2.FAILURE_REASON_EXECUTION_DEADLINE


async def test_what_woke_the_task_comes_with_it_though_signals_were_compacted(store: Stubs, clock: Clock) -> None:
    held = (await create_and_lease(store)).lease
    await store.leases.SuspendTask(suspend(held, signal="go"))
    await publish(store, held.task_id, name="go", signal_id="s1", data=b'"now"')
    await store.leases.FailTask(fail((await lease(store)).lease))
    await publish(store, held.task_id, name="go", signal_id="s2")
    await clock.advance(seconds=DAY)
    request = retention_pb2.CompactSignalsRequest(tenant_id=TENANT, older_than_ms=1)
    assert (await store.retention.CompactSignals(request)).compacted == 1  # the dead letter
    await redrive(store)
    wake = (await lease(store)).wake
    assert (wake.signal.signal_id, wake.signal.payload.data) == ("s1", b'"now"')


async def test_a_task_that_failed_while_it_waited_asks_anew(store: Stubs, database: asyncpg.Connection, clock: Clock) -> None:
    task_id = (await create(store, deadline_ms=1_000)).task_id
    await store.leases.SuspendTask(suspend((await lease(store)).lease, questions=[question("q")]))
    await clock.advance(seconds=2)
    await bring_along(store, database)
    assert (await get(store, task_id)).state == FAILED
    await redrive(store)
    assert await answer(store, task_id, q=b"1") == ["IGNORED"]
    leased = await lease(store)
    assert not leased.HasField("wake")
    keys = (await store.leases.SuspendTask(suspend(leased.lease, questions=[question("q")]))).keys
    assert list(keys) == ["q#2"]


async def test_what_is_removed_is_not_redriven_and_what_is_redriven_is_not_removed(store: Stubs, clock: Clock) -> None:
    await set_policy(store, retention_ms=DAY_MS)
    gone, kept = await failed(store, ttl_ms=1), await failed(store, ttl_ms=1)
    await clock.advance(seconds=DAY + 60)
    await redrive(store, task_ids=[kept])
    assert [one.task_id for one in await remove(store)] == [gone]
    assert outcomes(await redrive(store, "r2", task_ids=[gone, kept])) == [(gone, "NOT_FAILED"), (kept, "NOT_FAILED")]


async def test_a_redrive_for_a_tenant_that_is_not_there_is_refused(store: Stubs) -> None:
    for dry_run in (False, True):
        refused = await refusal_of(redrive(store, tenant_id="nobody", dry_run=dry_run))
        assert refused.reason == "TENANT_NOT_FOUND"


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("tenant_id", {"tenant_id": "a b"}),
        ("request_id", {"request_id": ""}),
        ("request_id", {"request_id": "r" * 129}),
        ("actor", {"actor": ""}),
        ("actor", {"actor": "a" * 257}),
        ("scope.workflow_version", {"scope": tenants_pb2.WorkScope(workflow_version=1)}),
        ("reasons", {"reasons": [types_pb2.FAILURE_REASON_UNSPECIFIED]}),
        ("failed_from", {"failed_from": timestamp_pb2.Timestamp(seconds=-(10**12))}),
        ("failed_before", {"failed_before": timestamp_pb2.Timestamp(nanos=-1)}),
        ("task_ids", {"task_ids": ["x"]}),
        ("task_ids", {"task_ids": [UNKNOWN] * 1_001}),
        ("limit", {"limit": -1}),
        ("limit", {"limit": 1_001}),
    ],
)
async def test_what_is_no_redrive_is_refused_for_its_field(store: Stubs, field: str, wrong: dict[str, Any]) -> None:
    await failed(store)
    await assert_invalid(redrive(store, **{"request_id": "r1", **wrong}), field)
    assert (await store.tenants.GetTenant(tenants_pb2.GetTenantRequest(tenant_id=TENANT))).tenant.outstanding == 0
