"""Public bug reports about races, as trials: the numbers are those of the list of cases."""

from datetime import timedelta

import asyncpg
import pytest

from store_service.model.leases import Disposition, Finish
from tests.interleaving import defects
from tests.interleaving.operations import Target, claim, complete, promote
from tests.interleaving.raced import OPERATIONS
from tests.interleaving.scenes import Slot, set_scene
from tests.interleaving.schedules import ACME_1, BRAVO_1, NEW_A, Runner, Schedule
from tests.interleaving.stage import START, Session, Stage, start

_LEASED: tuple[Slot, ...] = (("acme", ACME_1, "leased"),)
_PATIENT = defects.Defect(
    "none: batches of several tenants wait for as long as a schedule takes", "allow_each", {"'100ms'": "'20s'"}
)
_CROSSED: tuple[Slot, ...] = (("acme", ACME_1, "leased"), ("bravo", BRAVO_1, "leased"))


def target(tenant: str = "acme", task: object = ACME_1, side: str = "a") -> Target:
    assert task in (ACME_1, BRAVO_1)
    return Target(side=side, tenant=tenant, task=ACME_1 if task == ACME_1 else BRAVO_1, new_task=NEW_A, tenants=(tenant,))


async def reclaim_while(stage: Stage, between: str) -> tuple[str, int]:
    """Lets a reclaim of a dead lease meet what a session has done and not committed; returns the state and token after it."""
    await set_scene(stage, "leased", _LEASED, outstanding=5, leased=5)
    async with stage.a.connection.transaction():
        if between == "the task was finished":
            await complete(stage.a, target())
            await stage.set_clock(START + timedelta(seconds=60))
        else:
            await stage.set_clock(START + timedelta(seconds=60))
            assert await promote(stage.a, target())
            assert await claim(stage.a, target())
        reclaiming = start(promote(stage.b, target()))
        await stage.settled(reclaiming, stage.b)
    await reclaiming
    await promote(stage.b, target())
    (task,) = (await stage.state())["task_state"]
    return task["state"], task["token"]


@pytest.mark.parametrize(
    ("between", "right"), [("the task was finished", ("COMPLETED", 1)), ("another worker took it", ("LEASED", 2))]
)
async def test_30_a_reclaim_never_overwrites_what_happened_since_it_looked(
    stage: Stage, between: str, right: tuple[str, int]
) -> None:
    assert await reclaim_while(stage, between) == right
    assert (await stage.state())["audit"] == []
    await defects.RECLAIMED_FROM_A_SNAPSHOT.put_into(stage)
    if between == "the task was finished":
        with pytest.raises(asyncpg.RaiseError, match="never changed"):  # a trigger is the second line
            await reclaim_while(stage, between)
    else:
        assert await reclaim_while(stage, between) == ("QUEUED", 2)


@pytest.mark.parametrize("barrier", ["commit", "tenant"])
async def test_38_who_loses_the_claim_is_given_nothing_to_run(stage: Stage, barrier: str) -> None:
    schedule = Schedule(OPERATIONS["claim"], OPERATIONS["claim"], "task", "queued", barrier)
    (answers, state), _ = await Runner(stage).race(schedule)
    assert sorted(map(len, answers.values())) == [0, 1]
    (task,), (winner,) = state["task_state"], [one for found in answers.values() for one in found]
    assert (task["worker_id"], task["token"], task["attempts"]) == (winner.lease.worker_id, winner.lease.token, 2)
    assert [row["worker_id"] for row in state["worker_claim"]] == ["w1", winner.lease.worker_id]


async def finish_crossed(stage: Stage) -> None:
    """Two batches that end one lease in each of two tenants, in opposite orders, while a third session holds the first."""
    await set_scene(stage, "crossed", _CROSSED, outstanding=5, leased=5)
    targets = [target(), target("bravo", BRAVO_1)]

    async def finish(session: Session, order: list[Target]) -> list[asyncpg.Record]:
        items = [(Finish(lease=one.lease, disposition=Disposition.RELEASED), one.digest) for one in order]
        return await session.leases.finish_tasks(items)

    async with stage.other.connection.transaction():
        await stage.other.read("SELECT FROM tenure.tenant WHERE tenant_id = 'acme' FOR UPDATE")
        forward = start(finish(stage.a, targets))
        assert await stage.settled(forward, stage.a)
        backward = start(finish(stage.b, targets[::-1]))
        assert await stage.settled(backward, stage.b)
    rows = [await forward, await backward]
    assert [row["outcome"] for some in rows for row in some] == ["OK"] * 4, "the same end by the same lease is answered again"


async def test_53_crossed_batches_wait_for_each_other_in_one_order(stage: Stage) -> None:
    await _PATIENT.put_into(stage)
    await finish_crossed(stage)
    assert (await stage.state())["audit"] == []
    await defects.LOCKED_AS_THEY_COME.put_into(stage)
    with pytest.raises(asyncpg.DeadlockDetectedError):
        await finish_crossed(stage)
