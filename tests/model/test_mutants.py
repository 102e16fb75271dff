"""The machine is good enough to see known defects; these are those it sees fast, `python -m tests.model.mutants` tries all."""

from typing import Final

import pytest

from tests.model.mutants import MUTANTS, find
from tests.model.real import Real

FAST: Final = (
    "a finish after the lease's end",
    "any finish again is the same",
    "a heartbeat that shortens",
    "a signal consumed and nobody woken",
    "a tenant that is always first",
    "a cancel of what is complete",
    "a checkpoint over another",
)


@pytest.mark.parametrize("name", FAST)
def test_the_machine_finds_a_defect(real: Real, name: str) -> None:
    assert find(real, MUTANTS[name]) is not None


@pytest.mark.parametrize("name", MUTANTS)
def test_a_defect_still_fits_the_text_it_is_put_into(real: Real, name: str) -> None:
    assert MUTANTS[name].was in real.function(MUTANTS[name].function)
