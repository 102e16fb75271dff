"""Looks for what fell due that begin where the last one saw the first: what they leave, and when all is looked at again."""

from datetime import UTC, datetime, timedelta

import asyncpg

from store_service.operations.due_mark import AGAIN, DueMark
from tests.conftest import Clock, Stubs
from tests.store.builders import LOCK_TASK, LOCK_TENANT, create_and_lease, holding

THEN = datetime(2026, 1, 1, tzinfo=UTC)
LOOK = "SELECT event, due_from < tenure.task_now() - interval '10 s' AS is_left FROM tenure.promote_due($1, 30000, 20, $2)"


def test_looks_at_all_take_a_twentieth_of_the_time_and_come_each_minute() -> None:
    mark = DueMark()
    assert mark.since(100.0) is None
    mark.looked(None, THEN, began=100.0, ended=101.0)
    assert mark.since(119.9) == THEN - AGAIN
    assert mark.since(120.0) is None
    mark.looked(None, THEN, began=120.0, ended=130.0)
    assert mark.since(189.9) == THEN - AGAIN
    assert mark.since(190.0) is None


def test_a_look_begins_where_the_last_one_saw_the_first_that_was_due_and_at_all_where_none_came_to_its_end() -> None:
    mark, later = DueMark(), THEN + timedelta(seconds=9)
    mark.looked(None, None, began=0.0, ended=10.0)
    assert mark.since(10.0) is None
    mark.looked(None, THEN, began=10.0, ended=20.0)
    mark.looked(mark.since(20.0), later, began=20.0, ended=21.0)
    assert mark.since(21.0) == later - AGAIN
    mark.looked(mark.since(21.0), None, began=21.0, ended=22.0)
    assert mark.since(22.0) == later - AGAIN
    mark.looked(None, None, began=80.0, ended=90.0)
    assert mark.since(90.0) == later - AGAIN, "a look at all that failed is not tried again at once"


async def test_what_was_due_before_is_left_and_all_is_looked_at_where_the_clock_went_back(
    store: Stubs, database: asyncpg.Connection, clock: Clock
) -> None:
    await create_and_lease(store)
    await clock.advance(seconds=60)
    now = await database.fetchval("SELECT tenure.task_now()")
    assert await look(database, since=now - timedelta(seconds=10)) == [(None, False)]
    assert await look(database, since=now + timedelta(seconds=10)) == [("LEASE_EXPIRED", True)]
    assert await look(database) == [(None, False)]


async def test_the_next_look_begins_before_what_was_due_and_is_left(
    store: Stubs, database: asyncpg.Connection, clock: Clock, dsn: str
) -> None:
    held = [await create_and_lease(store, tenant_id=name) for name in ("a", "b", "b")]
    await clock.advance(seconds=60)
    async with holding(dsn, LOCK_TENANT, "b"):
        assert await look(database) == [("LEASE_EXPIRED", True)]
        assert await look(database) == [(None, True)], "of the tenant that is held"
    async with holding(dsn, LOCK_TASK, held[1].lease.task_id):
        assert await look(database) == [("LEASE_EXPIRED", True)]
        assert await look(database) == [(None, True)], "the task that is held"
    assert await look(database) == [("LEASE_EXPIRED", True)]
    assert await look(database) == [(None, False)]


async def test_one_look_brings_along_so_many_and_the_next_one_the_rest(
    store: Stubs, database: asyncpg.Connection, clock: Clock
) -> None:
    for _ in range(3):
        await create_and_lease(store)
    await clock.advance(seconds=60)
    for found in (2, 1):
        assert await look(database, limit=2) == [("LEASE_EXPIRED", True)] * found


async def look(
    database: asyncpg.Connection, *, since: datetime | None = None, limit: int = 500
) -> list[tuple[str | None, bool]]:
    """What a look found, and whether the next one begins before that."""
    return [(row["event"], row["is_left"]) for row in await database.fetch(LOOK, limit, since)]
