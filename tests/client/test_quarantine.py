"""Tasks that lost their workers again and again begin one at a time: one that ends its process takes no other with it."""

import asyncio
from typing import Any

from store_service.client import Context
from store_service.client.quarantine import SUSPECT_CRASHES, WATCHED_SECONDS, Quarantine
from tests.client.fake_store import FakeStore, new_worker, outcomes


async def test_one_begins_at_a_time_and_the_others_are_given_back_until_it_has_ended(fake: FakeStore) -> None:
    running: set[str] = set()
    together: list[int] = []
    go = asyncio.Event()

    async def report(ctx: Context, args: dict[str, Any]) -> str:
        running.add(ctx.task_id)
        together.append(len(running & suspects))
        await go.wait()
        running.discard(ctx.task_id)
        return "done"

    worker = new_worker(fake, lease_seconds=5)
    worker.workflow("report")(report)
    first, *rest = [fake.add(crashes=SUSPECT_CRASHES) for _ in range(4)]
    suspects = {task.task_id for task in (first, *rest)}
    others = [fake.add(crashes=SUSPECT_CRASHES - 1) for _ in range(4)]
    async with worker:
        await fake.until(lambda: {task.task_id for task in others} < running and len(fake.of("ReleaseTask")) >= len(rest))
        assert first.state == "LEASED"
        assert all(task.crashes == SUSPECT_CRASHES for task in rest)
        go.set()
        await fake.ended(first, *rest, *others)
    assert max(together) == 1
    assert outcomes(worker) == {"completed": 8}


async def test_who_has_run_for_long_is_not_in_the_way() -> None:
    now = 0.0
    quarantine = Quarantine(seconds_now=lambda: now)
    held: list[Any] = [object() for _ in range(3)]
    one, other, third = held
    assert quarantine.admits(one, crashes=SUSPECT_CRASHES)
    assert not quarantine.admits(other, crashes=SUSPECT_CRASHES)
    assert quarantine.admits(third, crashes=SUSPECT_CRASHES - 1)
    now = WATCHED_SECONDS
    assert quarantine.admits(other, crashes=SUSPECT_CRASHES)
    quarantine.ended(one)
    assert not quarantine.admits(one, crashes=SUSPECT_CRASHES), "the other is watched now"
    quarantine.ended(other)
    assert quarantine.admits(one, crashes=SUSPECT_CRASHES)
