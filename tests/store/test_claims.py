"""What a claim takes: what the worker can run, tenant by tenant in turn, by priority within one, within the limits."""

import asyncio
from collections import Counter
from datetime import timedelta

import asyncpg
import grpc
import pytest
from taskstore.v1 import leases_pb2, types_pb2

from tests.conftest import Clock, Stubs
from tests.store.builders import (
    LOCK_TASK,
    LOCK_TENANT,
    TENANT,
    blocked,
    bring_along,
    claim,
    complete,
    create,
    create_and_lease,
    fail,
    get,
    history,
    holding,
    lease,
    release,
    retry_policy,
    set_policy,
)


async def taken(store: Stubs, *, limit: int = 1, worker_id: str = "w1") -> list[str]:
    """The tenants of what one claim takes."""
    found = await store.leases.LeaseTasks(claim(limit=limit, worker_id=worker_id))
    return [task.lease.tenant_id for task in found.tasks]


async def test_a_worker_takes_exactly_what_it_can_run(store: Stubs) -> None:
    for workflow, version in (("report", 2), ("Report", 1), ("report2", 1), ("repor", 1), ("other", 1)):
        await create(store, workflow=workflow, version=version)
    assert not (await store.leases.LeaseTasks(claim())).tasks
    two = claim()
    two.workflows.append(leases_pb2.WorkflowVersion(workflow="report", version=2))
    two.workflows.append(leases_pb2.WorkflowVersion(workflow="other", version=1))
    found = (await store.leases.LeaseTasks(two)).tasks
    assert {(task.contract.workflow, task.contract.workflow_version) for task in found} == {("report", 2), ("other", 1)}


async def test_what_no_worker_here_can_run_stays_as_it_was(store: Stubs, clock: Clock, database: asyncpg.Connection) -> None:
    await create(store, workflow="special")
    held = (await lease(store, workflow="special")).lease
    await clock.advance(seconds=31)
    for _ in range(3):
        assert not (await store.leases.LeaseTasks(claim())).tasks
    await bring_along(store, database)
    task = await get(store, held.task_id)
    assert (task.state, task.attempts, task.token) == (types_pb2.TASK_STATE_QUEUED, 1, 1)
    assert (await lease(store, workflow="special", worker_id="w2")).attempts == 2


async def test_a_claim_may_be_narrowed_to_tenants(store: Stubs) -> None:
    for tenant_id in ("a", "b", "c", "d"):
        await create(store, tenant_id=tenant_id)
    found = (await store.leases.LeaseTasks(claim(tenant_ids=["c", "nobody", "b", "b"], limit=20))).tasks
    assert [task.lease.tenant_id for task in found] == ["b", "c"]
    assert not (await store.leases.LeaseTasks(claim(tenant_ids=["nobody"]))).tasks
    assert await taken(store, limit=20) == ["a", "d"]


async def test_higher_priority_first_then_what_waits_longest(store: Stubs, clock: Clock) -> None:
    wanted: list[tuple[int, int, str]] = []
    for priority in (0, 5, -5, 5, 2**31 - 1, 0):
        task = await create(store, priority=priority)
        wanted.append((-priority, len(wanted), task.task_id))
        await clock.advance(seconds=1)
    found = (await store.leases.LeaseTasks(claim(limit=6))).tasks
    assert [task.lease.task_id for task in found] == [task_id for _, _, task_id in sorted(wanted)]


async def test_priority_holds_across_the_workflows_of_a_worker(store: Stubs) -> None:
    for workflow, priority in (("a", 1), ("b", 3), ("a", 2), ("b", 0)):
        await create(store, workflow=workflow, priority=priority)
    both = claim(workflow="a", limit=3)
    both.workflows.append(leases_pb2.WorkflowVersion(workflow="b", version=1))
    found = (await store.leases.LeaseTasks(both)).tasks
    assert [task.contract.workflow for task in found] == ["b", "a", "a"]


async def test_tenants_are_served_in_turn_however_much_one_has(store: Stubs) -> None:
    for _ in range(20):
        await create(store, tenant_id="big")
    for tenant_id in ("a", "b"):
        await create(store, tenant_id=tenant_id)
    assert [await taken(store) for _ in range(3)] == [["a"], ["b"], ["big"]]
    await create(store, tenant_id="c")
    await create(store, tenant_id="a")
    assert [await taken(store) for _ in range(4)] == [["c"], ["a"], ["big"], ["big"]]


async def test_one_large_claim_visits_several_tenants(store: Stubs) -> None:
    for tenant_id in ("a", "b", "c"):
        for _ in range(30):
            await create(store, tenant_id=tenant_id)
    assert Counter(await taken(store, limit=30)) == {"a": 10, "b": 10, "c": 10}
    assert Counter(await taken(store, limit=60)) == {"a": 20, "b": 20, "c": 20}


async def test_a_tenant_at_its_lease_limit_is_passed_over_and_comes_first_when_it_has_room(store: Stubs) -> None:
    await set_policy(store, tenant_id="a", leased=1)
    for tenant_id in ("a", "a", "b", "b", "b"):
        await create(store, tenant_id=tenant_id)
    (held,) = (await store.leases.LeaseTasks(claim(limit=1))).tasks
    assert held.lease.tenant_id == "a"
    assert [await taken(store) for _ in range(2)] == [["b"], ["b"]]
    await store.leases.CompleteTask(complete(held.lease))
    assert [await taken(store) for _ in range(3)] == [["a"], ["b"], []]


async def test_a_policy_opens_and_closes_a_tenant_at_once(store: Stubs) -> None:
    await set_policy(store, leased=2)
    for _ in range(5):
        await create(store)
    assert len(await taken(store, limit=5)) == 2
    await set_policy(store, leased=1)
    assert await taken(store, limit=5) == []
    await set_policy(store, leased=4)
    assert len(await taken(store, limit=5)) == 2


async def test_a_tighter_policy_ends_nothing_that_runs(store: Stubs) -> None:
    for _ in range(4):
        await create(store)
    held = [task.lease for task in (await store.leases.LeaseTasks(claim())).tasks]
    await create(store)
    await set_policy(store, outstanding=2, leased=1)
    for one in held[:3]:
        await store.leases.CompleteTask(complete(one))
        assert await taken(store) == []
    await store.leases.CompleteTask(complete(held[3]))
    assert await taken(store) == [TENANT]


@pytest.mark.parametrize("limit", [1, 4])
async def test_concurrent_claimers_never_pass_the_lease_limit(
    store: Stubs, second_store: Stubs, dsn: str, database: asyncpg.Connection, limit: int
) -> None:
    await set_policy(store, leased=limit)
    for _ in range(10):
        await create(store)
    async with holding(dsn, LOCK_TENANT, TENANT):  # so that all have looked before the first takes something
        calls = [
            asyncio.ensure_future(each.leases.LeaseTasks(claim(worker_id=f"w{number}", limit=3)))
            for number in range(5)
            for each in (store, second_store)
        ]
        await blocked(database, count=4)
    answers = await asyncio.gather(*calls)
    assert sum(len(answer.tasks) for answer in answers) == limit


async def test_concurrent_claimers_share_everything_and_nothing_twice(store: Stubs, second_store: Stubs) -> None:
    for number in range(60):
        await create(store, tenant_id=f"t{number % 7}")

    async def work(each: Stubs, worker_id: str) -> list[tuple[str, int]]:
        got: list[tuple[str, int]] = []
        while tasks := (await each.leases.LeaseTasks(claim(worker_id=worker_id, limit=2))).tasks:
            got += [(task.lease.task_id, task.lease.token) for task in tasks]
        return got

    workers = [work(each, f"w{number}-{each.address[-5:]}") for number in range(5) for each in (store, second_store)]
    got = [one for some in await asyncio.gather(*workers) for one in some]
    assert len(got) == len(set(got)) == 60


async def test_a_claim_passes_over_a_tenant_that_another_holds(store: Stubs, dsn: str) -> None:
    for tenant_id in ("a", "a", "b", "c"):
        await create(store, tenant_id=tenant_id)
    async with holding(dsn, LOCK_TENANT, "a"):
        assert [await taken(store), await taken(store)] == [["b"], ["c"]]
    assert await taken(store, limit=5) == ["a", "a"]


async def test_a_claim_looks_past_any_number_of_tenants_that_others_hold(store: Stubs, dsn: str) -> None:
    for number in range(120):
        await create(store, tenant_id=f"t{number:03}")  # never served: all have the same turn
    async with holding(dsn, "SELECT FROM tenure.tenant WHERE tenant_id < 't110' FOR UPDATE"):
        assert await taken(store) == ["t110"]
        assert await taken(store, limit=100) == [f"t{number}" for number in range(111, 120)]


async def test_a_claim_looks_past_a_tenant_whose_tasks_others_hold(store: Stubs, dsn: str) -> None:
    first = await create(store, tenant_id="a")
    for tenant_id in ("b", "c"):
        await create(store, tenant_id=tenant_id)
    async with holding(dsn, LOCK_TASK, first.task_id):
        assert [await taken(store), await taken(store)] == [["b"], ["c"]]
    assert await taken(store) == ["a"]


async def test_a_claim_that_waited_for_a_tenant_in_vain_takes_from_another(
    store: Stubs, dsn: str, database: asyncpg.Connection
) -> None:
    for tenant_id in ("a", "b"):
        await create(store, tenant_id=tenant_id)
    async with holding(dsn, LOCK_TENANT, "a") as a, holding(dsn, LOCK_TENANT, "b"):
        waiting = asyncio.ensure_future(taken(store))
        await blocked(database)
        await a.execute("UPDATE tenure.lane SET ready = 0, open = false WHERE tenant_id = 'a'")
        await a.execute("UPDATE tenure.task_state SET ready = false, check_at = ready_at WHERE tenant_id = 'a'")
    assert await waiting == ["b"]
    await bring_along(store, database)
    assert await taken(store) == ["a"]


async def test_what_a_dead_worker_held_is_taken_again_without_any_chore(store: Stubs, clock: Clock) -> None:
    for _ in range(200):
        await create(store)
    await set_policy(store, leased=200)
    first = [task.lease for task in (await store.leases.LeaseTasks(claim(limit=200))).tasks]
    assert not (await store.leases.LeaseTasks(claim(worker_id="w2", limit=200))).tasks
    await clock.advance(seconds=31)
    again: list[types_pb2.Lease] = []
    while found := (await store.leases.LeaseTasks(claim(worker_id="w2", limit=200, wait_ms=1_000))).tasks:
        again += [task.lease for task in found]
    assert {(one.task_id, one.token + 1) for one in first} == {(one.task_id, one.token) for one in again}
    assert await history(store, first[0].task_id) == ["CREATED", "LEASED", "LEASE_EXPIRED", "LEASED"]


async def test_a_release_gives_back_at_once_or_after_its_delay(
    store: Stubs, clock: Clock, database: asyncpg.Connection
) -> None:
    held = (await create_and_lease(store)).lease
    await store.leases.ReleaseTask(release(held))
    held = (await lease(store)).lease
    await store.leases.ReleaseTask(release(held, delay_ms=60_000))
    await clock.advance(seconds=50)
    await bring_along(store, database)
    assert await taken(store) == []
    await clock.advance(seconds=11)
    again = await lease(store)
    assert (again.attempts, again.crashes, again.retries) == (3, 0, 0)


async def test_a_failure_rests_for_a_random_time_below_a_bound_that_doubles(store: Stubs, clock: Clock) -> None:
    policy = retry_policy(max_attempts=7, initial_ms=1_000, most_ms=10_000)
    tenants = [f"t{number}" for number in range(8)]
    for tenant_id in tenants:
        await create(store, tenant_id=tenant_id)
    all_parts = []
    for bound_ms in (1_000, 2_000, 4_000, 8_000, 10_000, 10_000):
        found = (await store.leases.LeaseTasks(claim(limit=100))).tasks
        assert len(found) == len(tenants)
        for task in found:
            answer = await store.leases.FailTask(fail(task.lease, retry=policy))
            read = await get(store, task.lease.task_id, tenant_id=task.lease.tenant_id)
            rest = answer.retry_at.ToDatetime() - read.changed_at.ToDatetime()
            assert timedelta(0) <= rest <= timedelta(milliseconds=bound_ms)
            assert read.state == types_pb2.TASK_STATE_QUEUED
            all_parts.append(rest / timedelta(milliseconds=bound_ms))
        await clock.advance(seconds=bound_ms / 1000)
    assert len(set(all_parts)) > 40
    assert 0.3 < sum(all_parts) / len(all_parts) < 0.7  # 48 of them: six standard deviations
    for task in (await store.leases.LeaseTasks(claim(limit=100))).tasks:
        answer = await store.leases.FailTask(fail(task.lease, retry=policy))
        assert not answer.HasField("retry_at")
        read = await get(store, task.lease.task_id, tenant_id=task.lease.tenant_id)
        assert (read.state, read.retries, read.crashes) == (types_pb2.TASK_STATE_FAILED, 6, 0)
        assert read.error.reason == types_pb2.FAILURE_REASON_WORKER


async def test_work_goes_on_through_every_kind_of_lock_order(store: Stubs, second_store: Stubs) -> None:
    tenants = [f"t{number}" for number in range(4)]
    for number in range(80):
        await create(store, tenant_id=tenants[number % 4])

    async def worker(each: Stubs, name: str) -> None:
        while tasks := (await each.leases.LeaseTasks(claim(worker_id=name, limit=7, wait_ms=50))).tasks:
            beats = [leases_pb2.HeartbeatTaskRequest(lease=task.lease, lease_ms=30_000) for task in tasks[::-1]]
            await each.leases.HeartbeatTasks(leases_pb2.HeartbeatTasksRequest(items=beats))
            done = [complete(task.lease) for task in tasks[1::2]]
            if done:
                await each.leases.CompleteTasks(leases_pb2.CompleteTasksRequest(items=done))
            await asyncio.gather(*(each.leases.ReleaseTask(release(task.lease)) for task in tasks[::2] if task.attempts < 3))
            await asyncio.gather(*(each.leases.FailTask(fail(task.lease)) for task in tasks[::2] if task.attempts >= 3))

    try:
        await asyncio.gather(*(worker(each, f"{each.address[-5:]}-{n}") for n in range(3) for each in (store, second_store)))
    except grpc.aio.AioRpcError as error:
        raise AssertionError(error.details()) from error


async def test_a_lease_that_ran_out_does_not_count_against_the_limit(store: Stubs, clock: Clock) -> None:
    await set_policy(store, leased=1)
    await create(store)
    await lease(store)
    urgent = await create(store, priority=5)
    assert not (await store.leases.LeaseTasks(claim(worker_id="w2"))).tasks
    await clock.advance(seconds=31)
    assert (await lease(store, worker_id="w2")).lease.task_id == urgent.task_id
