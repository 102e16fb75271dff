"""The races that other systems lose. Each is run as the store is, and holds; then with the defect put back, and is lost."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import pytest

from tests.interleaving import defects
from tests.interleaving.defects import Defect
from tests.interleaving.operations import LEASE_MS
from tests.interleaving.raced import OPERATIONS
from tests.interleaving.schedules import Outcome, Runner, Schedule
from tests.interleaving.stage import START, Stage


def leases_stay_within_the_limit(outcome: Outcome) -> bool:
    _, state = outcome
    limits = {row["tenant_id"]: row["max_leased"] for row in state["tenant"]}
    held = [row["tenant_id"] for row in state["task_state"] if row["state"] == "LEASED"]
    return all(held.count(tenant) <= limit for tenant, limit in limits.items())


def both_found_work(outcome: Outcome) -> bool:
    answers, _ = outcome
    return bool(answers["a"] and answers["b"])


def a_consumed_signal_woke_its_task(outcome: Outcome) -> bool:
    _, state = outcome
    (signal,), (task,) = state["signal"], state["task_state"]
    return (signal["state"], task["state"], task["ready"]) == ("CONSUMED", "QUEUED", True)


def the_stale_worker_changed_nothing(outcome: Outcome) -> bool:
    answers, state = outcome
    return (answers["b"][0]["outcome"], state["signal"][0]["state"]) == ("LEASE_LOST", "PENDING")


def a_removed_task_left_nothing(outcome: Outcome) -> bool:
    _, state = outcome
    gone = {row["task_id"] for row in state["tombstone"]}
    return bool(gone) and not [
        row for table, rows in state.items() if table != "tombstone" for row in rows if row.get("task_id") in gone
    ]


def reservations_stay_within_the_budget(outcome: Outcome) -> bool:
    _, state = outcome
    return all(row["reserved"][0] + row["committed"][0] <= row["limits"][0] for row in state["budget"])


def the_dead_lease_stayed_dead(outcome: Outcome) -> bool:
    answers, _ = outcome
    return [answers[side][0]["outcome"] for side in "ab"] == ["LEASE_LOST", "LEASE_LOST"]


def the_new_lease_lasts_in_full(outcome: Outcome) -> bool:
    answers, _ = outcome
    (leased,) = answers["a"]
    return bool(leased.expires_at == START + timedelta(seconds=90) + timedelta(milliseconds=LEASE_MS))


@dataclass(frozen=True)
class Race:
    """A schedule, what must hold after it, and the defect with which it does not."""

    schedule: str
    holds: Callable[[Outcome], bool]
    defect: Defect
    seconds: int | None = None


RACES: Final = {
    "1 lease limit": Race("claim-claim-tenant-queued-tenant", leases_stay_within_the_limit, defects.COUNTED_BEFORE_THE_LOCK),
    "2 told that there is nothing": Race(
        "first_pass-first_pass-other-queued-commit", both_found_work, defects.TRIED_IN_THE_FILTER
    ),
    "3 signal lost": Race(
        "suspend_signal-publish-task-leased-commit", a_consumed_signal_woke_its_task, defects.WOKEN_FROM_A_SNAPSHOT
    ),
    "3b signal eaten by a stale worker": Race(
        "claim-suspend_signal-task-handed_on-commit",
        the_stale_worker_changed_nothing,
        defects.CONSUMED_WITHOUT_THE_FENCE,
    ),
    "4 added to what is being removed": Race(
        "remove-publish-task-ended-commit", a_removed_task_left_nothing, defects.ADDED_WITHOUT_A_LOCK
    ),
    "a budget is overdrawn": Race(
        "reserve-reserve-tenant-budgeted-commit", reservations_stay_within_the_budget, defects.ROOM_WITHOUT_A_LOCK
    ),
    "43 heartbeat after three leases": Race(
        "heartbeat-checkpoint-task-leased-row", the_dead_lease_stayed_dead, defects.HEARTBEAT_BY_AN_EARLY_CLOCK, seconds=90
    ),
    "43 claim after three leases": Race(
        "claim-cancel-tenant-queued-tenant", the_new_lease_lasts_in_full, defects.CLAIM_BY_AN_EARLY_CLOCK, seconds=90
    ),
}


def _schedule(race: Race) -> Schedule:
    first, second, *rest = race.schedule.split("-")
    return Schedule(OPERATIONS[first], OPERATIONS[second], *rest)


@pytest.mark.parametrize("name", RACES)
async def test_the_store_wins_the_race_and_its_defect_would_lose_it(stage: Stage, name: str) -> None:
    race = RACES[name]
    schedule, runner = _schedule(race), Runner(stage)
    outcome, _ = await runner.race(schedule, seconds=race.seconds)
    assert race.holds(outcome), outcome
    await race.defect.put_into(stage)
    outcome, _ = await runner.race(schedule, seconds=race.seconds)
    assert not race.holds(outcome), f"{race.defect.what}: this test cannot fail"


@pytest.mark.parametrize("name", RACES)
async def test_the_comparison_with_serial_orders_finds_the_defect_by_itself(stage: Stage, name: str) -> None:
    race = RACES[name]
    schedule, runner = _schedule(race), Runner(stage)
    await runner.check(schedule)  # and so knows what the serial orders do, without the defect
    await race.defect.put_into(stage)
    with pytest.raises(AssertionError, match="no serial order does this"):
        await runner.check(schedule)
