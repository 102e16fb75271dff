"""Whatever two operations do at once, it is as if one had come after the other.

With INTERLEAVING=all (`make interleaving`): every schedule of every pair. By default: the seventeen operations of the contract
over one task at the barriers `commit` and `tenant`, and a part of all else, always the same part.
"""

import os
import zlib
from typing import Final

import pytest

from tests.descriptors import READS, methods
from tests.interleaving.raced import ALWAYS, OPERATIONS, TIME, WRITES
from tests.interleaving.schedules import Runner, Schedule, schedules_of

ALL: Final = os.environ.get("INTERLEAVING") == "all"
NOTHING_TO_DO: Final = {"claim_again": {"leased"}, "compact": {"woken"}}
"""Scenes in which an operation changes nothing unless another comes between: it answers again; it keeps a wake's signal."""


def is_chosen(schedule: Schedule) -> bool:
    if ALL:
        return True
    chance = zlib.crc32(str(schedule).encode())
    if {schedule.a.name, schedule.b.name} <= ALWAYS:
        return (schedule.scope == "task" and schedule.barrier in ("commit", "tenant")) or chance % 16 == 0
    return chance % 32 == 0


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("second", OPERATIONS)
@pytest.mark.parametrize("first", OPERATIONS)
async def test_two_operations_at_once_are_one_after_the_other(runner: Runner, first: str, second: str) -> None:
    for schedule in filter(is_chosen, schedules_of(OPERATIONS[first], OPERATIONS[second])):
        await runner.check(schedule)
    runner.forget()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", OPERATIONS)
async def test_an_operation_alone_changes_something_in_each_of_its_scenes(runner: Runner, name: str) -> None:
    operation = OPERATIONS[name]
    for scene in set(operation.scenes) - NOTHING_TO_DO.get(name, set()):
        schedule = Schedule(operation, operation, "task", scene, "commit")
        await runner.prepare(schedule)
        before = await runner.stage.state()
        await operation.run(runner.stage.look, schedule.targets[0])
        assert await runner.stage.state() != before, scene


def test_every_method_of_the_api_is_raced_or_writes_nothing() -> None:
    assert not WRITES.keys() & READS
    assert methods().keys() == WRITES.keys() | READS, "say in raced.py what the method runs, or that it writes nothing"
    assert {operation for run in WRITES.values() for operation in run} | TIME == OPERATIONS.keys()
