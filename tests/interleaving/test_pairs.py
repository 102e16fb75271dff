"""Whatever two operations do at once, it is as if one had come after the other.

By default: the fourteen operations of the contract, over one task at the barriers `commit` and `tenant`, and a quarter of all
else, always the same quarter. With INTERLEAVING=all (`make interleaving`): all schedules of the fourteen, and that choice of
those of every other operation the store has.
"""

import os
import zlib
from typing import Final

import pytest

from tests.interleaving.operations import MORE, OPERATIONS
from tests.interleaving.schedules import Runner, Schedule, schedules_of

ALL: Final = os.environ.get("INTERLEAVING") == "all"
RACED: Final = {**OPERATIONS, **MORE} if ALL else OPERATIONS


def is_chosen(schedule: Schedule) -> bool:
    always = schedule.scope == "task" and schedule.barrier in ("commit", "tenant")
    every = ALL and {schedule.a.name, schedule.b.name} <= OPERATIONS.keys()
    return every or always or zlib.crc32(str(schedule).encode()) % 4 == 0


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("second", RACED)
@pytest.mark.parametrize("first", RACED)
async def test_two_operations_at_once_are_one_after_the_other(runner: Runner, first: str, second: str) -> None:
    for schedule in filter(is_chosen, schedules_of(RACED[first], RACED[second])):
        await runner.check(schedule)
    runner.forget()
