"""A new claim does not look where nothing was left a moment ago, and loses nothing by it."""

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable
from typing import Any

import asyncpg
import pytest
from taskstore.v1 import leases_pb2

from store_service.db import empty_lanes
from store_service.db.empty_lanes import EmptyLanes
from tests.conftest import Clock, Stubs
from tests.statements import count_statements
from tests.store.builders import LOCK_TASK, claim, complete, create, holding, release
from tests.store.hints import create_unheard, in_time


@pytest.fixture(autouse=True)
def rare_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """No claim that waits looks by itself before its end."""
    monkeypatch.setattr("store_service.operations.leases.CLAIM_POLL_SECONDS", 600.0)


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    return count_statements(monkeypatch)


def new_claim(**fields: Any) -> leases_pb2.LeaseTasksRequest:
    """A claim whose worker says that it is no repetition."""
    request = claim(**fields)
    request.is_new = True
    return request


async def take_all(store: Stubs, **fields: Any) -> leases_pb2.LeasedTask:
    """Creates one task and takes it: nothing is left."""
    await create(store)
    (task,) = (await store.leases.LeaseTasks(new_claim(**fields))).tasks
    return task


async def waits(store: Stubs, statements: Counter[str], **fields: Any) -> "asyncio.Task[leases_pb2.LeaseTasksResponse]":
    """A claim that waits, and has not looked."""
    before = statements["claim_tasks"]
    call = asyncio.ensure_future(store.leases.LeaseTasks(new_claim(wait_ms=20_000, **fields)))
    await store.leases.LeaseTasks(new_claim(wait_ms=1, **fields))  # it is behind the other
    assert (statements["claim_tasks"], call.done()) == (before, False)
    return call


async def looks(statements: Counter[str], call: Awaitable[Any]) -> int:
    """How often it looked."""
    before = statements["claim_tasks"]
    await call
    return statements["claim_tasks"] - before


async def test_a_new_claim_does_not_look_where_nothing_was_left_and_hears_of_what_comes(
    store: Stubs, statements: Counter[str]
) -> None:
    held = (await take_all(store)).lease
    call = await waits(store, statements)
    await create(store)
    assert len((await in_time(call)).tasks) == 1
    call = await waits(store, statements)
    await store.leases.ReleaseTask(release(held))
    assert [task.lease.task_id for task in (await in_time(call)).tasks] == [held.task_id]


async def test_a_worker_that_completes_is_answered_without_a_look(store: Stubs, statements: Counter[str]) -> None:
    held = (await take_all(store)).lease
    both = leases_pb2.CompleteAndLeaseTasksRequest(items=[complete(held)], lease=new_claim())
    assert await looks(statements, store.leases.CompleteAndLeaseTasks(both)) == 0
    await create(store)
    assert await looks(statements, store.leases.LeaseTasks(new_claim())) == 1


async def test_what_came_since_is_found_at_once(store: Stubs) -> None:
    await take_all(store)
    await create(store)
    assert len((await in_time(store.leases.LeaseTasks(new_claim(wait_ms=20_000)))).tasks) == 1


async def test_a_claim_that_is_repeated_is_answered_with_what_it_took(store: Stubs) -> None:
    taken = await take_all(store, request_id="r")
    again = await in_time(store.leases.LeaseTasks(claim(request_id="r", wait_ms=20_000)))
    assert [task.lease for task in again.tasks] == [taken.lease]


async def test_what_others_hold_for_a_moment_is_looked_for_again(store: Stubs, dsn: str, statements: Counter[str]) -> None:
    other = await create(store, priority=-1)
    async with holding(dsn, LOCK_TASK, other.task_id):
        await take_all(store)
    assert await looks(statements, store.leases.LeaseTasks(new_claim())) == 1


async def test_what_is_left_over_is_looked_for_again(store: Stubs, statements: Counter[str]) -> None:
    await create(store)
    await create(store)
    for looked in (1, 1, 0):
        assert await looks(statements, store.leases.LeaseTasks(new_claim(limit=1))) == looked


async def test_where_there_is_nothing_one_look_is_enough(store: Stubs, statements: Counter[str]) -> None:
    for looked in (1, 0):
        assert await looks(statements, store.leases.LeaseTasks(new_claim())) == looked
    assert await looks(statements, store.leases.LeaseTasks(claim())) == 1
    await take_all(store)


async def test_what_falls_due_is_found_by_a_claim_and_by_one_that_waits(
    store: Stubs, clock: Clock, statements: Counter[str]
) -> None:
    held = (await take_all(store)).lease
    call = await waits(store, statements, worker_id="w2")
    await clock.advance(seconds=31)
    assert [task.lease.task_id for task in (await in_time(call)).tasks] == [held.task_id]
    await clock.advance(seconds=31)
    assert [task.lease.task_id for task in (await store.leases.LeaseTasks(claim())).tasks] == [held.task_id]


async def test_nothing_for_some_tenants_is_not_nothing_for_others(store: Stubs, statements: Counter[str]) -> None:
    await create(store, tenant_id="a")
    await create(store, tenant_id="b")
    for tenants, looked in ((["a"], 1), (["a"], 0), (["b"], 1), (["a"], 0), (["b"], 0)):
        assert await looks(statements, store.leases.LeaseTasks(new_claim(tenant_ids=tenants))) == looked
    assert await looks(statements, store.leases.LeaseTasks(new_claim())) > 0


async def test_work_that_another_store_was_told_of_ends_the_wait(
    store: Stubs, second_store: Stubs, listening: None, statements: Counter[str]
) -> None:
    await take_all(second_store)
    call = await waits(second_store, statements)
    await create(store)
    assert len((await in_time(call)).tasks) == 1


async def test_a_lost_hint_costs_no_more_than_it_costs_a_claim_that_looked(
    store: Stubs, database: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await take_all(store)
    await create_unheard(database)
    assert not (await store.leases.LeaseTasks(new_claim())).tasks
    monkeypatch.setattr("store_service.operations.leases.CLAIM_POLL_SECONDS", 0.2)
    assert len((await in_time(store.leases.LeaseTasks(new_claim(wait_ms=20_000)))).tasks) == 1


async def test_who_leaves_nothing_wakes_nobody(store: Stubs, statements: Counter[str]) -> None:
    await take_all(store)
    calls = [await waits(store, statements, worker_id=f"w{number}") for number in (2, 3)]
    before = statements["claim_tasks"]
    await create(store)
    done, (left,) = await asyncio.wait(calls, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    assert [len(call.result().tasks) for call in done] == [1]
    await store.leases.LeaseTasks(new_claim(wait_ms=1))
    assert statements["claim_tasks"] == before + 1
    await create(store)
    assert len((await in_time(left)).tasks) == 1


def test_a_hint_counts_also_while_somebody_looks() -> None:
    now = 0.0
    lanes = EmptyLanes(lambda: now)
    first, second = lanes.look(["a", "b"], ()), lanes.look(["b"], ())
    first.leaves_nothing()
    second.leaves_nothing()
    now = 3.0
    assert [lanes.seconds_since(topics, ()) for topics in (["a", "b"], ["b"], ["a"])] == [3, 3, math.inf]
    again = lanes.look(["a", "b"], ())
    assert lanes.seconds_since(["a", "b"], ()) == 3
    lanes.forget("b")
    again.leaves_nothing()  # which may have looked before
    assert [lanes.seconds_since(topics, ()) for topics in (["a", "b"], ["b"])] == [math.inf, math.inf]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(empty_lanes, "_MOST_TOPICS", 3)
    monkeypatch.setattr(empty_lanes, "_MOST_LOOKS", 3)
    lanes = EmptyLanes(lambda: 0.0)
    for number in range(20):
        lanes.look(["a"], (str(number),)).leaves_nothing()
        lanes.look([str(number)], ()).leaves_nothing()
        assert len(lanes._looks) <= 5
        assert max(map(len, lanes._looks.values())) <= 4
        assert lanes.seconds_since([str(number)], ()) == 0
