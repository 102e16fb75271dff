"""The machine is good enough to see known defects; these are those it sees in seconds, `make model-mutants` tries all."""

from typing import Final

import pytest

from tests.model.mutants import MUTANTS, find
from tests.model.real import Real

FAST: Final = (
    "a finish that checks no token",
    "a heartbeat that shortens",
    "a checkpoint that is answered and not kept",
    "a signal consumed and nobody woken",
    "a cancel of what is complete",
    "a lost reservation that costs nothing",
)


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", FAST)
def test_the_machine_finds_a_defect(real: Real, name: str) -> None:
    assert find(real, MUTANTS[name]) is not None


@pytest.mark.parametrize("name", MUTANTS)
def test_a_defect_still_fits_the_text_it_is_put_into(real: Real, name: str) -> None:
    mutant = MUTANTS[name]
    assert mutant.of(real.function(mutant.where))
