"""A lane knows before when nothing in it is ready: a claim that began later would never find what is."""

from datetime import UTC, datetime, timedelta
from typing import Final

import asyncpg
import pytest

THEN: Final = datetime(2026, 1, 1, tzinfo=UTC)
BEFORE: Final = THEN - timedelta(seconds=1)
AFTER: Final = THEN + timedelta(seconds=1)
FILL: Final = """
INSERT INTO tenure.tenant (tenant_id, outstanding) VALUES ('t', 2);
INSERT INTO tenure.lane (tenant_id, workflow, version, ready, ready_from, open)
VALUES ('t', 'w', 1, 2, '2026-01-01 00:00:00Z', true);
INSERT INTO tenure.task_state (tenant_id, task_id, workflow, version, priority, created_at, state, ready, ready_at, ttl_ms,
                               changed_at)
SELECT 't', gen_random_uuid(), 'w', 1, p, now(), 'QUEUED', true, '2026-01-01 00:00:00Z'::timestamptz + p * interval '1 s', 1,
       now()
FROM generate_series(1, 9) p
"""
"""Tasks of nine priorities, the higher ones ready later; the first one, too, a second after the moment that the lane tells."""
APPLY: Final = """
SELECT tenure.apply_deltas(ARRAY(
  SELECT ('t', 'w', 1, 0, 0, u.ready, u.ready_at)::tenure.delta FROM unnest($1::int[], $2::timestamptz[]) u(ready, ready_at)))
"""


@pytest.mark.parametrize(
    ("deltas", "ready_from"),
    [
        ([(1, BEFORE)], BEFORE),
        ([(1, AFTER)], THEN),
        ([(1, AFTER), (1, BEFORE)], BEFORE),
        ([(-1, None), (1, BEFORE)], BEFORE),
        ([(-1, None), (-1, None), (1, BEFORE)], BEFORE),
        ([(-1, None), (-1, None)], None),
        ([(-1, None), (-1, None), (0, BEFORE)], None),
    ],
)
async def test_a_lane_follows_what_becomes_ready_and_what_is_ready_no_more(
    database: asyncpg.Connection, deltas: list[tuple[int, datetime | None]], ready_from: datetime | None
) -> None:
    assert await applied(database, deltas) == ready_from


@pytest.mark.parametrize(("priorities", "ready_from"), [(7, THEN + timedelta(seconds=3)), (8, THEN)])
async def test_where_something_was_taken_it_looks_for_the_first_that_is_left_of_seven_priorities_at_most(
    database: asyncpg.Connection, priorities: int, ready_from: datetime
) -> None:
    assert await applied(database, [(-1, None)], priorities=priorities) == ready_from


async def applied(
    database: asyncpg.Connection, deltas: list[tuple[int, datetime | None]], *, priorities: int = 9
) -> datetime | None:
    """Since when the lane has something ready, or None, after these changes, where only its highest priorities are left."""
    transaction = database.transaction()
    await transaction.start()
    await database.execute(FILL)
    await database.execute("UPDATE tenure.task_state SET ready = priority > 9 - $1::int", priorities)
    await database.execute(APPLY, [ready for ready, _ in deltas], [ready_at for _, ready_at in deltas])
    ready_from: datetime | None = await database.fetchval("SELECT nullif(ready_from, 'infinity') FROM tenure.lane")
    await transaction.rollback()
    return ready_from
