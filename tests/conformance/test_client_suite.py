"""The runner of the suite's client scenarios cannot be green by mistake. `make conformance` runs the scenarios."""

from pathlib import Path

import pytest

from tests.conformance import client_suite
from tests.conformance.client_driver import SCENARIOS
from tests.conformance.client_suite import EXPECTED_GREEN, run_client_scenario
from tests.node_tools.installation import default_folder, install


async def test_a_client_that_does_nothing_is_red(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    idle = tmp_path / "idle.py"
    idle.write_text("")
    monkeypatch.setattr(client_suite, "DRIVER", idle)
    assert not (await run_client_scenario(await install(default_folder()), EXPECTED_GREEN[0])).green


def test_each_scenario_of_the_driver_is_in_the_table() -> None:
    assert {scenario.name for scenario in EXPECTED_GREEN} == set(SCENARIOS)
