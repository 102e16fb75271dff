"""Whoever runs the cells sees each tenant that is between two of them, and whether anybody is at its move."""

import re
from collections.abc import Sequence

import pytest

from store_service.config import Config
from store_service.db.moves import open_move
from store_service.doctor import examine
from store_service.operations import chores
from store_service.telemetry.findings import Finding, Verdict
from tests.conftest import Stubs, serving
from tests.pair import metrics_at
from tests.store.builders import TENANT, claim, create, until
from tests.store.moving import STEPS, BrokenOff, Cell, move, stay
from tests.store.test_explanations import why

SEEN = {
    "awaits it": ([], ["ARRIVING"]),
    "nothing new": (["DRAINING"], ["ARRIVING"]),
    "frozen": (["FROZEN"], ["ARRIVING"]),
    "copied": (["FROZEN"], ["ARRIVING"]),
    "has left": (["LEFT"], ["ARRIVING"]),
    "lives in the second": (["LEFT"], []),
    "nothing of it is left": ([], []),
}
"""What stands in the two cells after each step."""


async def found(dsn: str) -> list[Finding]:
    """What the doctor says of moves."""
    findings = [one async for one in examine(Config(dsn=dsn, allow_test_clock=True))]
    return [one for one in findings if one.subject in ("moves", f"tenant {TENANT}")]


def states(findings: Sequence[Finding]) -> list[str]:
    """The states that are named, or those that are meant."""
    texts = [one.text.replace("its move is done but for the end", "LEFT") for one in findings if one.subject != "moves"]
    return re.findall("DRAINING|FROZEN|ARRIVING|LEFT", " ".join(texts))


def test_every_step_of_a_move_is_looked_at() -> None:
    assert tuple(SEEN) == STEPS


@pytest.mark.parametrize("step", STEPS)
async def test_a_move_that_broke_off_is_told_by_the_doctor_of_either_cell_with_what_to_do(
    dsn: str, store: Stubs, there: Cell, step: str
) -> None:
    await create(store)
    with pytest.raises(BrokenOff):
        await move(dsn, there.dsn, until=step)
    for where, expected in zip((dsn, there.dsn), SEEN[step], strict=True):
        findings = await found(where)
        assert states(findings) == expected
        if expected in ([], ["LEFT"]):
            assert [one.verdict for one in findings] == [Verdict.DOUBTFUL if expected else Verdict.WELL]
        else:
            ((verdict, text, cure),) = [(one.verdict, one.text, one.cure) for one in findings]
            assert verdict is Verdict.WRONG
            assert "its move broke off" in text
            assert f"tenure-store tenant move {TENANT}" in cure
    await move(dsn, there.dsn)
    assert [one.verdict for where in (dsn, there.dsn) for one in await found(where)] == [Verdict.WELL] * 2


async def test_a_move_that_somebody_is_at_is_not_taken_for_one_that_broke_off(dsn: str, store: Stubs, there: Cell) -> None:
    await create(store)
    with pytest.raises(BrokenOff):
        await move(dsn, there.dsn, until="frozen")
    async with open_move(dsn, there.dsn, TENANT):
        for where in (dsn, there.dsn):
            (finding,) = await found(where)
            assert (finding.verdict, "a mover is at it" in finding.text) == (Verdict.DOUBTFUL, True)
    await stay(dsn, there.dsn)


async def test_a_tenant_that_is_frozen_is_counted_by_its_stores(
    dsn: str, store: Stubs, there: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chores, "LOOK_SECONDS", 0.05)

    async def counts(stubs: Stubs, moves: dict[str, int], *, broken_off: int) -> None:
        async def are_told() -> bool:
            told = dict(re.findall(r"^tenure_store_(\S+) (\S+)$", metrics_at(stubs.admin_port), re.MULTILINE))
            seen = {
                state: float(told.get(f'moves{{state="{state}"}}', -1)) for state in ("draining", "frozen", "arriving", "left")
            }
            is_frozen = float(told.get("frozen_seconds", -1)) > 0
            return (
                seen == {state: moves.get(state, 0) for state in seen}
                and float(told["moves_broken_off"]) == broken_off
                and is_frozen == ("frozen" in moves)
            )

        await until(are_told, f"its stores tell {moves}")

    await create(store)
    async with serving(dsn) as here, serving(there.dsn) as beyond:
        await counts(here, {}, broken_off=0)
        with pytest.raises(BrokenOff):
            await move(dsn, there.dsn, until="frozen")
        await counts(here, {"frozen": 1}, broken_off=1)
        await counts(beyond, {"arriving": 1}, broken_off=1)
        async with open_move(dsn, there.dsn, TENANT):
            await counts(here, {"frozen": 1}, broken_off=0)
            await counts(beyond, {"arriving": 1}, broken_off=0)
        await move(dsn, there.dsn)
        await counts(here, {}, broken_off=0)
        await counts(beyond, {}, broken_off=0)


async def test_a_task_whose_tenant_is_about_to_move_says_so(dsn: str, store: Stubs, there: Cell) -> None:
    task = await create(store)
    await store.leases.LeaseTasks(claim(version=2))
    with pytest.raises(BrokenOff):
        await move(dsn, there.dsn, until="nothing new")
    told = await why(store, task.task_id)
    assert told.text.startswith("Its tenant moves to another cell since ")
    assert told.HasField("since")
    await stay(dsn, there.dsn)
    assert "moves" not in (await why(store, task.task_id)).text
