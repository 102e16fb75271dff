"""The store does what the model of its contract does, whatever it is told. Source: contract, sections 1 to 12."""

import inspect
import os
import random
from collections import Counter
from functools import partial
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, reproduce_failure, seed, settings
from hypothesis.errors import FlakyStrategyDefinition
from hypothesis.stateful import run_state_machine_as_test

from tests.descriptors import methods
from tests.model.arguments import INVALID
from tests.model.contract.model import Model
from tests.model.coverage import UNREACHED, Seen, missing, table
from tests.model.machine import StoreMachine
from tests.model.operations import BATCHES, LEFT_OUT, in_python
from tests.model.real import Real
from tests.store.refusals.promised import pairs

EXAMPLES: Final = int(os.environ.get("MODEL_EXAMPLES", "100"))
STEPS: Final = int(os.environ.get("MODEL_STEPS", "60"))
SEED: Final = int(os.environ.get("MODEL_SEED") or random.randrange(10**6))
PARTS: Final = int(os.environ.get("MODEL_PARTS", "1"))
"""In so many parts the examples are told, each with a seed of its own, so that processes can share them."""
BLOB: Final = os.environ.get("MODEL_BLOB", "")
SHRINK: Final = os.environ.get("MODEL_SHRINK") == "1"
FULL: Final = 2_000 * 60
"""With so many steps every outcome of every operation shall be met."""


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("part", range(PARTS))
def test_the_store_does_what_the_model_does(real: Real, capsys: pytest.CaptureFixture[str], part: int) -> None:
    seen: Seen = Counter()
    examples, its_seed = EXAMPLES // PARTS, SEED + part
    with capsys.disabled():
        print(f"\n{examples} examples of {STEPS} steps, MODEL_SEED={its_seed}", flush=True)
    told: list[StoreMachine] = []
    while len(told) < examples:
        try:
            tell(real, seen, told, its_seed + 1_000 * len(told), examples - len(told))
        except FlakyStrategyDefinition:  # the store draws lots: what was made up alike went on otherwise, and starts afresh
            assert [one.fault for one in told if one.fault] == []
    with capsys.disabled():
        print(table(seen))
    assert examples * STEPS < FULL or not missing(seen), f"never seen: {missing(seen)}"


def tell(real: Real, seen: Seen, told: list[StoreMachine], its_seed: int, examples: int) -> None:
    """Tells so many examples, all made up from one seed."""
    profile = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        phases=[Phase.generate, Phase.shrink] if SHRINK else [Phase.generate],
        database=None,
        print_blob=True,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    machine: Any = seed(its_seed)(partial(StoreMachine, real, seen, told))
    if BLOB:
        version, _, blob = BLOB.partition(":")
        machine = reproduce_failure(version, blob.encode())(machine)
    run_state_machine_as_test(machine, settings=profile)


def test_every_operation_is_said_or_has_a_reason_not_to_be() -> None:
    """A full run shows more: that each is answered and refused in every way that is promised."""
    rules = "".join(inspect.getsource(base) for base in StoreMachine.__mro__ if base.__module__.startswith("tests.model"))
    said = {in_python(name) for name in methods()} - BATCHES.keys() - LEFT_OUT.keys()
    assert {name for name in said if f'"{name}"' not in rules} == set(), "no rule says it"
    assert {name for name in said if not hasattr(Model, name)} == set(), "the model does not know it"
    assert said == INVALID.keys(), "there is no argument that it must refuse"


def test_what_is_not_reached_is_promised() -> None:
    assert UNREACHED.keys() <= pairs()
