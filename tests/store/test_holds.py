"""What must be kept: holds of tasks and of their tombstones. Source: contract, section 14; decisions, 16."""

import asyncio

import asyncpg
import grpc
import pytest
from taskstore.v1 import retention_pb2

from tests.conftest import Clock, Stubs
from tests.store.builders import LOCK_TENANT, TENANT, blocked, create, holding, refusal_of
from tests.store.retention import DAY, OPERATOR, REVIEWER, ended, hold, place_hold, release_hold, remove


async def holds(store: Stubs, **fields: object) -> list[retention_pb2.Hold]:
    request = retention_pb2.ListHoldsRequest(tenant_id=TENANT, **fields)  # type: ignore[arg-type]
    return list((await store.governance.ListHolds(request)).holds)


async def test_a_hold_is_placed_once_at_a_time_whoever_places_it(store: Stubs) -> None:
    task_id = (await create(store)).task_id
    first = await store.governance.PlaceHold(place_hold(task_id))
    assert not first.replayed
    assert (first.hold.number, first.hold.generation, first.hold.placed_by) == (1, 1, OPERATOR)
    again = await store.governance.PlaceHold(place_hold(task_id, reason="else", principal=REVIEWER))
    assert again.replayed
    assert again.hold == first.hold


async def test_a_hold_ends_once_and_another_follows_it(store: Stubs) -> None:
    task_id = (await create(store)).task_id
    first = await hold(store, task_id)
    ended_hold = (await store.governance.ReleaseHold(release_hold(first.number, principal=REVIEWER))).hold
    assert ended_hold.released_by == REVIEWER
    again = (await store.governance.ReleaseHold(release_hold(first.number, principal=REVIEWER))).hold
    assert again == ended_hold
    second = await hold(store, task_id)
    assert (second.number, second.generation) == (2, 2)
    refused = await refusal_of(store.governance.ReleaseHold(release_hold(first.number)))
    assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "HOLD_RELEASED")
    assert await holds(store) == [ended_hold, second]
    assert await holds(store, active=True) == [second]


async def test_holds_are_listed_by_pages_of_all_tasks_or_of_one(store: Stubs) -> None:
    tasks = [(await create(store)).task_id for _ in range(3)]
    placed = [await hold(store, task_id) for task_id in tasks]
    assert await holds(store, page_size=2) == placed[:2]
    assert await holds(store, page_size=2, after_number=2) == placed[2:]
    assert await holds(store, task_id=tasks[1]) == [placed[1]]
    assert await holds(store, task_id=tasks[1], after_number=2) == []


async def test_a_tombstone_is_held_and_a_task_of_another_tenant_is_not(store: Stubs, clock: Clock) -> None:
    task_id = await ended(store)
    foreign = (await create(store, tenant_id="b")).task_id
    await clock.advance(seconds=3 * DAY)
    assert len(await remove(store)) == 1
    assert (await hold(store, task_id)).generation == 1
    assert (await refusal_of(store.governance.PlaceHold(place_hold(foreign)))).reason == "TASK_NOT_FOUND"


async def test_two_who_hold_at_once_hold_once(
    store: Stubs, second_store: Stubs, dsn: str, database: asyncpg.Connection
) -> None:
    task_id = (await create(store)).task_id
    async with holding(dsn, LOCK_TENANT, TENANT):
        both = [
            asyncio.ensure_future(each.governance.PlaceHold(place_hold(task_id, principal=name)))
            for each, name in ((store, OPERATOR), (second_store, REVIEWER))
        ]
        await blocked(database, count=2)
    answers = await asyncio.gather(*both)
    assert sorted(answer.replayed for answer in answers) == [False, True]
    assert answers[0].hold == answers[1].hold


async def test_what_a_hold_says_never_changes(store: Stubs, database: asyncpg.Connection) -> None:
    placed = await hold(store, (await create(store)).task_id)
    for change in ("reason = 'else'", "placed_by = 'eve'", "generation = 2", "placed_at = placed_at + interval '1 s'"):
        with pytest.raises(asyncpg.RaiseError, match="never changed"):
            await database.execute(f"UPDATE tenure.hold SET {change}")
    await store.governance.ReleaseHold(release_hold(placed.number))
    with pytest.raises(asyncpg.RaiseError, match="never changed"):
        await database.execute("UPDATE tenure.hold SET released_by = NULL, released_at = NULL")
