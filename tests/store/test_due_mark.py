"""Looks for what fell due that begin where the last one ended: what they leave, and when all is looked at again."""

from datetime import UTC, datetime, timedelta

import asyncpg

from store_service.operations.due_mark import AGAIN, DueMark
from tests.conftest import Clock, Stubs
from tests.store.builders import create_and_lease

THEN = datetime(2026, 1, 1, tzinfo=UTC)
LOOK = "SELECT event FROM tenure.promote_due(500, 30000, 20, tenure.task_now() + $1::interval)"


def test_looks_at_all_take_a_twentieth_of_the_time() -> None:
    mark = DueMark()
    assert mark.since(100.0) is None
    mark.looked(None, THEN, began=100.0, ended=101.0)
    assert mark.since(119.9) == THEN - AGAIN
    assert mark.since(120.0) is None


def test_a_look_begins_where_the_last_one_came_to_its_end() -> None:
    mark = DueMark()
    mark.looked(None, None, began=0.0, ended=10.0)
    assert mark.since(10.0) is None, "none has come to an end"
    mark.looked(None, THEN, began=10.0, ended=20.0)
    later = THEN + timedelta(seconds=9)
    mark.looked(mark.since(20.0), later, began=20.0, ended=21.0)
    assert mark.since(21.0) == later - AGAIN
    mark.looked(mark.since(21.0), None, began=21.0, ended=22.0)
    assert mark.since(22.0) == later - AGAIN, "something was left"


async def test_what_was_due_before_is_left_and_all_is_looked_at_where_the_clock_went_back(
    store: Stubs, database: asyncpg.Connection, clock: Clock
) -> None:
    await create_and_lease(store)
    await clock.advance(seconds=60)
    assert await database.fetch(LOOK, timedelta(seconds=-10)) == []
    assert await database.fetchval(LOOK, timedelta(seconds=10)) == "LEASE_EXPIRED"


async def test_a_look_says_that_there_is_more(store: Stubs, database: asyncpg.Connection, clock: Clock) -> None:
    for _ in range(3):
        await create_and_lease(store)
    await clock.advance(seconds=60)
    for found, more in ((2, True), (1, False)):
        rows = await database.fetch("SELECT event, more FROM tenure.promote_due(2, 30000, 20)")
        assert [(row["event"], row["more"]) for row in rows] == [("LEASE_EXPIRED", more)] * found
