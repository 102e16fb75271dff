"""The official suite's client scenarios are green, each, and a client that does nothing is red."""

from pathlib import Path

import pytest

from tests.conformance import client_suite
from tests.conformance.client_driver import SCENARIOS
from tests.conformance.client_suite import EXPECTED_GREEN, run_client_scenario
from tests.conformance.suite import Scenario, report
from tests.node_tools.installation import default_folder, install


@pytest.mark.parametrize("scenario", EXPECTED_GREEN, ids=lambda scenario: scenario.name)
async def test_the_client_passes(scenario: Scenario) -> None:
    outcome = await run_client_scenario(await install(default_folder()), scenario)
    assert outcome.green, report(outcome)


async def test_a_client_that_does_nothing_is_red(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    idle = tmp_path / "idle.py"
    idle.write_text("")
    monkeypatch.setattr(client_suite, "DRIVER", idle)
    assert not (await run_client_scenario(await install(default_folder()), EXPECTED_GREEN[0])).green


def test_each_scenario_of_the_driver_is_in_the_table() -> None:
    assert {scenario.name for scenario in EXPECTED_GREEN} == set(SCENARIOS)
