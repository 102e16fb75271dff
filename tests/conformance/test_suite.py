"""The runner of the official suite is red whenever the suite did not show what was asked."""

import asyncio
from pathlib import Path

import pytest
import yaml

from tests.conformance import client_suite
from tests.conformance.suite import (
    EXPECTED_GREEN,
    LEFT_OUT,
    MODERN,
    Check,
    Scenario,
    judge,
    report,
    run_scenario,
    scenario_named,
)
from tests.node_tools.installation import InstallationError, default_folder, install

PASSED = Check(id="a", status="SUCCESS")
NOWHERE = "http://127.0.0.1:9/mcp"


@pytest.mark.parametrize("status", ["FAILURE", "WARNING", "INFO", "SKIPPED", "SOMETHING_NEW"])
def test_a_check_that_did_not_pass_makes_its_scenario_red(status: str) -> None:
    outcome = judge(Scenario(name="any"), [PASSED, Check(id="b", status=status)])
    assert not outcome.green
    assert [check.id for check in outcome.failed] == ["b"]


@pytest.mark.parametrize("status", ["SKIPPED", "INFO"])
def test_only_a_named_check_may_be_skipped(status: str) -> None:
    scenario = Scenario(name="any", not_applicable=frozenset({"b"}))
    skipped = Check(id="b", status=status)
    assert judge(scenario, [PASSED, skipped]).green
    assert not judge(scenario, [PASSED, Check(id="c", status=status)]).green
    assert not judge(scenario, [PASSED, Check(id="b", status="WARNING")]).green
    assert not judge(scenario, [skipped]).green


def test_a_check_of_what_is_not_served_may_fail_by_method_not_found_alone() -> None:
    scenario = Scenario(name="any", not_served=frozenset({"b"}))
    unknown = Check(id="b", status="FAILURE", error_message="prompts/list returned JSON-RPC error -32601: Method not found")
    assert judge(scenario, [PASSED, unknown]).green
    assert not judge(Scenario(name="any"), [PASSED, unknown]).green
    assert not judge(scenario, [PASSED, Check(id="b", status="FAILURE", error_message="timed out")]).green
    assert not judge(scenario, [unknown]).green


async def test_every_scenario_of_the_revision_is_run_or_left_out_for_a_reason() -> None:
    """But for those of the client that are about authorization servers, which it knows nothing of."""
    suite = (await install(default_folder())).suite.parents[1]
    required = yaml.safe_load((suite / "requirements" / f"{MODERN}.yaml").read_text())

    def named(leg: str) -> set[str]:
        beside = (entry["scenario"] for entry in required["not_scored"] if entry["leg"] == leg)
        return {name for name in (*required[leg], *beside) if not name.startswith("auth/")}

    run = {scenario.name for scenario in EXPECTED_GREEN if scenario.revision in (None, MODERN)}
    assert named("server") == run | set(LEFT_OUT)
    assert not run & set(LEFT_OUT)
    assert named("client") == {scenario.name for scenario in client_suite.EXPECTED_GREEN}


def test_a_scenario_without_checks_is_red() -> None:
    outcome = judge(Scenario(name="any"), [])
    assert not outcome.green
    assert "no check was made" in report(outcome)


def test_a_failed_check_is_shown_with_its_id_and_its_message() -> None:
    failed = Check(id="b", status="FAILURE", error_message="expected 400, got 200")
    shown = report(judge(Scenario(name="any"), [PASSED, failed]))
    assert shown.splitlines()[0] == "FAIL any: 1 passed, 1 failed"
    assert "FAILURE b: expected 400, got 200" in shown


def test_a_skip_that_no_longer_happens_is_pointed_out() -> None:
    scenario = Scenario(name="any", not_applicable=frozenset({"a"}))
    assert "take out of the table: ['a']" in report(judge(scenario, [PASSED]))


def test_a_revision_can_be_named_and_extension_scenarios_get_none() -> None:
    assert scenario_named("tools-list").revision == MODERN
    assert scenario_named("tools-list@2025-11-25").revision == "2025-11-25"
    assert scenario_named("tools-list@2025-11-25").label == "tools-list@2025-11-25"
    assert scenario_named("tasks-mrtr-input").revision is None
    assert scenario_named("caching").revision == MODERN


def test_no_scenario_of_the_table_stands_there_twice() -> None:
    labels = [scenario.label for scenario in EXPECTED_GREEN]
    assert len(labels) == len(set(labels))


def test_the_suite_itself_is_red_when_it_skips_and_when_nobody_answers() -> None:
    async def run_both() -> tuple[str, str]:
        installation = await install(default_folder())
        skipped = Scenario(name="tasks-lifecycle", revision=MODERN)  # the trap: exit status 0
        refused = Scenario(name="tools-list", revision=MODERN)
        outcomes = [await run_scenario(installation, NOWHERE, each) for each in (skipped, refused)]
        assert not any(outcome.green for outcome in outcomes)
        return outcomes[0].problem, report(outcomes[1])

    problem, refusal = asyncio.run(run_both())
    assert "SKIPPED" in problem
    assert "tools-list: Failed: fetch failed" in refusal


async def test_tools_that_cannot_be_installed_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "cache"))
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    with pytest.raises(InstallationError, match=r"could not install the tools .* check that the npm registry is reached"):
        await install(tmp_path / "tools")


def test_the_lock_names_no_registry() -> None:
    lock = (Path(__file__).parents[1] / "node_tools" / "package-lock.json").read_text()
    assert '"integrity": "sha512-' in lock
    assert "resolved" not in lock
