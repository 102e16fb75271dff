"""Long polls and the hints that end them early: a lost hint costs time and nothing else."""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import asyncpg
import pytest
from taskstore.v1 import leases_pb2, tasks_pb2, tenants_pb2, types_pb2

from tests.conftest import Stubs
from tests.store.builders import (
    LISTENERS,
    LOCK_TENANT,
    TENANT,
    WHO_LISTEN,
    blocked,
    claim,
    complete,
    create,
    create_and_lease,
    fail,
    get,
    holding,
    new_task,
    question,
    refusal_of,
    release,
    retry_policy,
    set_policy,
    until,
)
from tests.store.hints import WELL_BEFORE_ITS_END_SECONDS, create_unheard, in_time, waiting_claim

Begin = Callable[[], Any]
"""Makes one call of the API, which may be cancelled."""


@pytest.fixture(autouse=True)
def rare_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """No claim that waits looks by itself before its end."""
    monkeypatch.setattr("store_service.operations.leases.CLAIM_POLL_SECONDS", 600.0)


async def test_a_claim_that_waits_for_nothing_is_answered_at_its_end(store: Stubs) -> None:
    started = time.monotonic()
    assert not (await store.leases.LeaseTasks(claim(wait_ms=300))).tasks
    assert 0.3 <= time.monotonic() - started < WELL_BEFORE_ITS_END_SECONDS


async def test_a_waiting_claim_is_woken_by_a_creation(store: Stubs) -> None:
    call = await waiting_claim(store)
    await create(store)
    assert len((await in_time(call)).tasks) == 1


async def test_a_waiting_claim_is_woken_by_whatever_makes_work_ready(store: Stubs) -> None:
    await set_policy(store, leased=1)
    held = (await create_and_lease(store)).lease
    call = await waiting_claim(store)
    await store.leases.ReleaseTask(release(held))
    held = (await in_time(call)).tasks[0].lease
    await create(store)
    call = await waiting_claim(store)  # there is work, and no room
    await store.leases.CompleteTask(complete(held))
    held = (await in_time(call)).tasks[0].lease
    await create(store)
    call = await waiting_claim(store)
    await set_policy(store, leased=2)
    assert len((await in_time(call)).tasks) == 1
    call = await waiting_claim(store)
    await store.leases.FailTask(fail(held, retry=retry_policy(initial_ms=1)))
    assert len((await in_time(call)).tasks) == 1


async def test_a_waiting_claim_is_woken_by_another_store(store: Stubs, second_store: Stubs, listening: None) -> None:
    call = await waiting_claim(second_store)
    await create(store)
    assert len((await in_time(call)).tasks) == 1


async def test_two_waiting_claims_and_two_creations_meet(store: Stubs, second_store: Stubs, listening: None) -> None:
    calls = [await waiting_claim(each, worker_id=f"w{n}", limit=1) for n, each in enumerate((store, second_store, store))]
    for _ in calls:
        await create(store)
    for call in calls:
        assert len((await in_time(call)).tasks) == 1


async def test_a_claim_that_finds_more_than_it_takes_wakes_the_next(store: Stubs) -> None:
    calls = [await waiting_claim(store, worker_id=f"w{number}", limit=1) for number in range(4)]
    await set_policy(store, leased=1)
    for _ in range(4):
        await create(store)
    done, waiting = await asyncio.wait(calls, timeout=WELL_BEFORE_ITS_END_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    assert (len(done), len(waiting)) == (1, 3)
    await set_policy(store, leased=4)
    for call in waiting:
        assert len((await in_time(call)).tasks) == 1


async def test_a_hint_for_a_tenant_that_one_waiter_has_no_use_for_reaches_another(store: Stubs) -> None:
    choosy = await waiting_claim(store, worker_id="w1", tenant_ids=["b"])
    other = await waiting_claim(store, worker_id="w2")
    await create(store, tenant_id="a")
    assert len((await in_time(other)).tasks) == 1
    await create(store, tenant_id="b")
    assert len((await in_time(choosy)).tasks) == 1


async def test_a_lost_hint_costs_a_poll_and_nothing_else(
    store: Stubs, database: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store_service.operations.leases.CLAIM_POLL_SECONDS", 0.2)
    call = await waiting_claim(store)
    await create_unheard(database)
    assert len((await in_time(call)).tasks) == 1


async def test_a_store_that_lost_its_listener_listens_again(
    store: Stubs, second_store: Stubs, database: asyncpg.Connection, listening: None
) -> None:
    call = await waiting_claim(second_store)
    before: set[int] = {row["pid"] for row in await database.fetch(f"SELECT pid {LISTENERS}")}
    await database.execute(f"SELECT pg_terminate_backend(pid) {LISTENERS}")

    async def again() -> bool:
        rows = await database.fetch(f"SELECT pid {WHO_LISTEN}")
        return len({row["pid"] for row in rows} - before) == 2

    await until(again, "both stores listen again")
    await create(store)
    assert len((await in_time(call)).tasks) == 1


async def test_a_store_that_speaks_while_its_listener_dies_listens_again(
    store: Stubs, second_store: Stubs, database: asyncpg.Connection, listening: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the server's last word and the end of the connection, asyncpg refuses with an error of its own kind."""
    fetchval = asyncpg.Connection.fetchval

    async def too_late(connection: asyncpg.Connection, query: str, *arguments: Any) -> Any:
        if "pg_notify" not in query:
            return await fetchval(connection, query, *arguments)
        monkeypatch.undo()
        raise asyncpg.InternalClientError("cannot switch to state 11; another operation (2) is in progress")

    call = await waiting_claim(second_store)
    before: set[int] = {row["pid"] for row in await database.fetch(f"SELECT pid {LISTENERS}")}
    monkeypatch.setattr(asyncpg.Connection, "fetchval", too_late)
    await create(store, workflow="nobody's")

    async def again() -> bool:
        now: set[int] = {row["pid"] for row in await database.fetch(f"SELECT pid {WHO_LISTEN}")}
        return len(now) == 2 and now != before

    await until(again, "both stores listen again")
    await create(store)
    assert len((await in_time(call)).tasks) == 1


async def test_what_became_ready_while_nobody_listened_is_found_when_one_listens_again(
    store: Stubs, database: asyncpg.Connection
) -> None:
    call = await waiting_claim(store)
    await create_unheard(database)
    await database.execute(f"SELECT pg_terminate_backend(pid) {LISTENERS}")
    assert len((await in_time(call)).tasks) == 1


async def test_a_burst_of_hints_reaches_every_waiter(store: Stubs, second_store: Stubs, listening: None) -> None:
    calls = [await waiting_claim(second_store, workflow=f"f{number}", worker_id=f"w{number}") for number in range(40)]
    await asyncio.gather(*(create(store, workflow=f"f{number}") for number in range(40)))
    answers = await asyncio.wait_for(asyncio.gather(*calls), timeout=WELL_BEFORE_ITS_END_SECONDS)
    assert [len(answer.tasks) for answer in answers] == [1] * 40


async def test_a_worker_that_completes_waits_for_the_next_in_the_same_call(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    both = leases_pb2.CompleteAndLeaseTasksRequest(items=[complete(held)], lease=claim(wait_ms=20_000))
    call = asyncio.ensure_future(store.leases.CompleteAndLeaseTasks(both))

    async def is_completed() -> bool:
        return (await get(store, held.task_id)).state == types_pb2.TASK_STATE_COMPLETED

    await until(is_completed, "the completion is committed")
    await create(store)
    answer = await in_time(call)
    assert answer.items[0].HasField("completed")
    assert len(answer.tasks) == 1


async def test_the_end_of_a_pause_wakes_a_claim(store: Stubs) -> None:
    task = await create(store)
    await store.tenants.PauseWork(tenants_pb2.PauseWorkRequest(tenant_id=TENANT, actor="ann"))
    call = await waiting_claim(store)
    await store.tenants.ResumeWork(tenants_pb2.ResumeWorkRequest(tenant_id=TENANT))
    assert [one.lease.task_id for one in (await in_time(call)).tasks] == [task.task_id]


async def test_a_redrive_wakes_a_claim(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    await store.leases.FailTask(fail(held))
    call = await waiting_claim(store)
    await store.tenants.RedriveTasks(tenants_pb2.RedriveTasksRequest(tenant_id=TENANT, request_id="r", actor="ann"))
    assert [one.lease.task_id for one in (await in_time(call)).tasks] == [held.task_id]


async def _answer(store: Stubs) -> Begin:
    held = (await create_and_lease(store)).lease
    asked = leases_pb2.NewInputWait(requests=[question("a")])
    await store.leases.SuspendTask(leases_pb2.SuspendTaskRequest(lease=held, step="s", input=asked))
    answers = [types_pb2.InputAnswer(key="a", response=types_pb2.Payload(data=b"1"))]
    request = tasks_pb2.AnswerInputsRequest(tenant_id=TENANT, task_id=held.task_id, answers=answers)
    return partial(store.tasks.AnswerInputs, request)


async def _publish(store: Stubs) -> Begin:
    held = (await create_and_lease(store)).lease
    await store.leases.SuspendTask(
        leases_pb2.SuspendTaskRequest(lease=held, step="s", signal=leases_pb2.NewSignalWait(name="go"))
    )
    request = tasks_pb2.PublishSignalRequest(
        tenant_id=TENANT, task_id=held.task_id, signal_id="1", name="go", payload=types_pb2.Payload(data=b"1")
    )
    return partial(store.tasks.PublishSignal, request)


async def _fork(store: Stubs) -> Begin:
    source = (await create_and_lease(store)).lease.task_id
    return partial(store.tasks.ForkTask, tasks_pb2.ForkTaskRequest(tenant_id=TENANT, request_id="f", source_task_id=source))


async def _widen(store: Stubs) -> Begin:
    await set_policy(store, leased=1)
    await create_and_lease(store)
    await create(store)
    policy = tenants_pb2.TenantPolicy(max_outstanding=10, max_leased=2, retention_ms=86_400_000)
    return partial(store.tenants.SetTenantPolicy, tenants_pb2.SetTenantPolicyRequest(tenant_id=TENANT, policy=policy))


async def _resume(store: Stubs) -> Begin:
    await create(store)
    await store.tenants.PauseWork(tenants_pb2.PauseWorkRequest(tenant_id=TENANT, actor="ann"))
    return partial(store.tenants.ResumeWork, tenants_pb2.ResumeWorkRequest(tenant_id=TENANT))


async def _redrive(store: Stubs) -> Begin:
    await store.leases.FailTask(fail((await create_and_lease(store)).lease))
    return partial(store.tenants.RedriveTasks, tenants_pb2.RedriveTasksRequest(tenant_id=TENANT, request_id="r", actor="ann"))


async def _create_several(store: Stubs) -> Begin:
    await set_policy(store)
    return partial(store.tasks.CreateTasks, tasks_pb2.CreateTasksRequest(items=[new_task()]))


async def _complete_several(store: Stubs) -> Begin:
    await set_policy(store, leased=1)
    held = (await create_and_lease(store)).lease
    await create(store)
    return partial(store.leases.CompleteTasks, leases_pb2.CompleteTasksRequest(items=[complete(held)]))


@pytest.mark.parametrize("prepare", [_answer, _publish, _fork, _widen, _resume, _redrive, _create_several, _complete_several])
async def test_who_asked_may_leave_and_those_who_wait_are_woken_all_the_same(
    store: Stubs, database: asyncpg.Connection, dsn: str, prepare: Callable[[Stubs], Awaitable[Begin]]
) -> None:
    begin = await prepare(store)
    call = await waiting_claim(store, worker_id="w2")
    async with holding(dsn, LOCK_TENANT, TENANT):
        asked = begin()
        await blocked(database)
        asked.cancel()
        for _ in range(3):  # the store has heard of it when what was said later is answered
            await store.leases.LeaseTasks(claim(workflow="nobody's"))
    assert len((await in_time(call)).tasks) == 1


async def test_a_refusal_that_nobody_is_left_to_hear_is_no_error_of_the_store(
    store: Stubs, database: asyncpg.Connection, dsn: str
) -> None:
    errors: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["message"]))
    await create(store)
    await store.tenants.RedriveTasks(tenants_pb2.RedriveTasksRequest(tenant_id=TENANT, request_id="r", actor="ann"))
    other = tenants_pb2.RedriveTasksRequest(tenant_id=TENANT, request_id="r", actor="bob")
    async with holding(dsn, LOCK_TENANT, TENANT):
        asked = store.tenants.RedriveTasks(other)
        await blocked(database)
        asked.cancel()
        for _ in range(3):  # the store has heard of it when what was said later is answered
            await store.leases.LeaseTasks(claim(workflow="nobody's"))
    assert (await refusal_of(store.tenants.RedriveTasks(other))).reason == "REQUEST_ID_CONFLICT"
    gc.collect()
    assert errors == []
