"""The store does what the model of its contract does, whatever it is told. Source: contract, sections 1 to 11."""

import os
from functools import partial
from typing import Final

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import StoreMachine
from tests.model.real import Real

EXAMPLES: Final = int(os.environ.get("MODEL_EXAMPLES", "60"))
STEPS: Final = int(os.environ.get("MODEL_STEPS", "40"))
SHRINK: Final = os.environ.get("MODEL_SHRINK") == "1"


def test_the_store_does_what_the_model_does(real: Real) -> None:
    profile = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        phases=[Phase.generate, Phase.shrink] if SHRINK else [Phase.generate],
        derandomize=True,
        database=None,
        print_blob=True,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(partial(StoreMachine, real), settings=profile)  # type: ignore[arg-type]  # any callable will do
