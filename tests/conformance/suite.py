"""The official MCP conformance suite against a running bridge: `make conformance`.

    python -m tests.conformance.suite [--url http://127.0.0.1:8080/mcp] [scenario ...]

Without a URL it starts a pair of its own, with the fixture worker.

Prints one line for each scenario and ends with status 1 unless all are green. The suite's
own exit status is not enough for that: it is 0 for a scenario that was skipped because of a
wrong flag, and for warnings. So its machine-readable checks are judged here, and a scenario
is green only if it ran, at least one check passed, and every other one passed too or is
named in the table below as not applicable.
"""

import argparse
import asyncio
import dataclasses
import shutil
import sys
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tests.node_tools.installation import (
    Installation,
    InstallationError,
    default_folder,
    install,
    run,
)
from tests.pair import Pair, PairError

MODERN = "2026-07-28"
FIXTURES = Path(__file__).parent / "fixtures"
METHOD_NOT_FOUND = "JSON-RPC error -32601"
NOT_MADE = frozenset({"SKIPPED", "INFO"})  # the suite looked at nothing, or judged nothing
SCENARIO_TIMEOUT_SECONDS = 60
SIDE_BY_SIDE = 3  # most of them wait most of their time
GRACE_SECONDS = 15  # for Node to start and to report a scenario that took all of its time


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One scenario of the suite and how it must be asked for.

    `revision` is sent as `--spec-version`. Without it the suite runs older scenarios over
    the wire of 2025-11-25. The scenarios of an extension are on no revision's timeline:
    asked for with one, they are skipped.
    """

    name: str
    revision: str | None = None
    not_applicable: frozenset[str] = frozenset()
    """Ids of checks that may be SKIPPED or INFO, each because of something we do not serve."""
    not_served: frozenset[str] = frozenset()
    """Ids of checks that may fail, but by "method not found" alone."""
    is_alone: bool = False
    """Whether it is run with no other beside it, as it gives answers little time."""

    @property
    def label(self) -> str:
        """The name, with the revision where it is not the newest: `tools-list@2025-11-25`."""
        older = self.revision is not None and self.revision != MODERN
        return f"{self.name}@{self.revision}" if older else self.name


PROMPTS_NOT_SERVED = frozenset({"sep-2575-server-sends-prompts-list-changed-on-subscription"})

STREAMS_ARE_OPTIONAL = frozenset({"server-sse-streams-functional"})  # tools/list is answered as JSON
NO_DELETE = frozenset({"server-session-delete-accepted", "server-session-terminated-returns-404"})  # a session is not ended

LEGACY = ("2025-11-25", "2025-06-18")
IN_EVERY_LEGACY_REVISION = (
    "server-initialize",
    "ping",
    "tools-list",
    "tools-call-simple-text",
    "tools-call-error",
    "tools-call-image",
    "tools-call-audio",
    "tools-call-embedded-resource",
    "tools-call-mixed-content",
    "tools-call-with-progress",
)

LISTS_NOT_SERVED = frozenset(
    {
        "sep-2549-prompts-list-caching-hints",
        "sep-2549-resources-list-caching-hints",
        "sep-2549-resources-templates-list-caching-hints",
    }
)

LEFT_OUT = {
    "completion-complete": "no completion",
    "resources-list": "no resources",
    "resources-read-text": "no resources",
    "resources-read-binary": "no resources",
    "resources-templates-read": "no resources",
    "sep-2164-resource-not-found": "no resources",
    "prompts-list": "no prompts",
    "prompts-get-simple": "no prompts",
    "prompts-get-with-args": "no prompts",
    "prompts-get-embedded-resource": "no prompts",
    "prompts-get-with-image": "no prompts",
    "input-required-result-non-tool-request": "no prompts",
    "tasks-status-notifications": "the suite itself skips it; our tests of subscriptions/listen are stricter",
}
"""Server scenarios of the revision that are not run, each with the reason."""

EXPECTED_GREEN = (
    Scenario(name="tasks-lifecycle"),
    Scenario(name="tasks-capability-negotiation"),
    Scenario(name="tasks-wire-fields"),
    Scenario(name="tasks-request-state-removal"),
    Scenario(name="tasks-request-headers"),
    Scenario(name="tasks-required-task-error"),
    Scenario(name="tasks-mrtr-input"),
    Scenario(name="tasks-dispatch-and-envelope"),
    Scenario(name="tasks-mrtr-composition"),
    Scenario(name="server-stateless", revision=MODERN, not_applicable=PROMPTS_NOT_SERVED, is_alone=True),
    Scenario(name="tools-list", revision=MODERN),
    Scenario(name="tools-call-simple-text", revision=MODERN),
    Scenario(name="tools-call-error", revision=MODERN),
    Scenario(name="tools-call-image", revision=MODERN),
    Scenario(name="tools-call-audio", revision=MODERN),
    Scenario(name="tools-call-embedded-resource", revision=MODERN),
    Scenario(name="tools-call-mixed-content", revision=MODERN),
    Scenario(name="tools-call-with-progress", revision=MODERN),
    Scenario(name="server-sse-multiple-streams", revision=MODERN, not_applicable=STREAMS_ARE_OPTIONAL),
    Scenario(name="json-schema-2020-12", revision=MODERN),
    Scenario(name="http-custom-header-server-validation", revision=MODERN),
    Scenario(name="input-required-result-basic-elicitation", revision=MODERN),
    Scenario(name="input-required-result-basic-sampling", revision=MODERN),
    Scenario(name="input-required-result-basic-list-roots", revision=MODERN),
    Scenario(name="input-required-result-request-state", revision=MODERN),
    Scenario(name="input-required-result-multiple-input-requests", revision=MODERN),
    Scenario(name="input-required-result-multi-round", revision=MODERN),
    Scenario(name="input-required-result-missing-input-response", revision=MODERN),
    Scenario(name="input-required-result-result-type", revision=MODERN),
    Scenario(name="input-required-result-unsupported-methods", revision=MODERN),
    Scenario(name="input-required-result-tampered-state", revision=MODERN),
    Scenario(name="input-required-result-capability-check", revision=MODERN),
    Scenario(name="input-required-result-ignore-extra-params", revision=MODERN),
    Scenario(name="input-required-result-validate-input", revision=MODERN),
    Scenario(name="dns-rebinding-protection", revision=MODERN),
    Scenario(name="http-header-validation", revision=MODERN),
    Scenario(
        name="caching",
        revision=MODERN,
        not_applicable=frozenset({"sep-2549-resources-read-caching-hints"}),
        not_served=LISTS_NOT_SERVED,
    ),
    *(Scenario(name=name, revision=revision) for revision in LEGACY for name in IN_EVERY_LEGACY_REVISION),
    *(Scenario(name="server-session-lifecycle", revision=revision, not_applicable=NO_DELETE) for revision in LEGACY),
    Scenario(name="json-schema-2020-12", revision=LEGACY[0]),
    Scenario(name="server-sse-multiple-streams", revision=LEGACY[0], not_applicable=STREAMS_ARE_OPTIONAL),
    Scenario(name="dns-rebinding-protection", revision=LEGACY[0]),
)


class Check(msgspec.Struct, frozen=True, rename="camel"):
    """One entry of the suite's `checks.json`; the keys we do not read are left out."""

    id: str
    status: str
    description: str = ""
    error_message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one scenario showed; `problem` says why it could not be judged, if so."""

    scenario: Scenario
    passed: tuple[Check, ...] = ()
    failed: tuple[Check, ...] = ()
    skipped: tuple[Check, ...] = ()
    problem: str = ""

    @property
    def green(self) -> bool:
        """Whether it ran, something passed, and nothing failed."""
        return bool(self.passed) and not self.failed and not self.problem


def judge(scenario: Scenario, checks: Sequence[Check], *, problem: str = "") -> Outcome:
    """Sorts `checks`: whatever neither passed nor is not applicable has failed.

    That counts as failures: warnings, and each skip and each informational check ("nothing
    to validate") that the scenario does not name, and a failure of one that is not served
    if it is any other than "method not found".
    """
    passed, failed, skipped = [], [], []
    for check in checks:
        if check.status == "SUCCESS":
            passed.append(check)
        elif _is_excused(scenario, check):
            skipped.append(check)
        else:
            failed.append(check)
    if not passed and not failed and not problem:
        problem = "no check was made"
    return Outcome(
        scenario=scenario,
        passed=tuple(passed),
        failed=tuple(failed),
        skipped=tuple(skipped),
        problem=problem,
    )


def _is_excused(scenario: Scenario, check: Check) -> bool:
    if check.id in scenario.not_served:
        return check.status == "FAILURE" and METHOD_NOT_FOUND in check.error_message
    return check.status in NOT_MADE and check.id in scenario.not_applicable


async def run_scenario(installation: Installation, url: str, scenario: Scenario) -> Outcome:
    """Runs one scenario against the server at `url` and judges what it reported."""
    with tempfile.TemporaryDirectory(prefix="conformance-") as results:
        arguments = ["server", "--url", url, "--scenario", scenario.name]
        arguments += ["--timeout", str(SCENARIO_TIMEOUT_SECONDS * 1000)]
        arguments += ["--output-dir", results]
        if scenario.revision is not None:
            arguments += ["--spec-version", scenario.revision]
        status, output = await run(
            installation.command(installation.suite, *arguments),
            environment=installation.environment(),
            timeout_seconds=SCENARIO_TIMEOUT_SECONDS + GRACE_SECONDS,
            folder=Path(results),
        )
        reports = _reports(results)
    if len(reports) != 1:
        return judge(scenario, (), problem=f"no report (exit {status}): {output}")
    try:
        checks = msgspec.json.decode(reports[0], type=list[Check])
    except msgspec.DecodeError as error:
        return judge(scenario, (), problem=f"unreadable report: {error}")
    failures = any(check.status == "FAILURE" for check in checks)
    if status != int(failures):
        return judge(scenario, checks, problem=f"the suite ended with {status}: {output}")
    return judge(scenario, checks)


async def run_suite(url: str, scenarios: Sequence[Scenario], *, folder: Path) -> bool:
    """Installs the suite in `folder` if need be, runs `scenarios` a few at a time, prints each.

    Returns whether all were green. Raises `InstallationError`.
    """
    installation = await install(folder)

    def run_one(scenario: Scenario) -> Coroutine[object, object, Outcome]:
        return run_scenario(installation, url, scenario)

    return await run_side_by_side(scenarios, run_one, noun="scenarios")


async def run_side_by_side(
    scenarios: Sequence[Scenario], run_one: Callable[[Scenario], Coroutine[object, object, Outcome]], *, noun: str
) -> bool:
    """Runs `scenarios`, those that want to be alone first, prints each in its order. Returns whether all were green."""
    places = asyncio.Semaphore(SIDE_BY_SIDE)
    alone = {scenario.label: await run_one(scenario) for scenario in scenarios if scenario.is_alone}

    async def placed(scenario: Scenario) -> Outcome:
        if scenario.label in alone:
            return alone[scenario.label]
        async with places:
            return await run_one(scenario)

    outcomes = []
    async with asyncio.TaskGroup() as group:
        for running in [group.create_task(placed(scenario)) for scenario in scenarios]:
            outcomes.append(await running)
            say(report(outcomes[-1]))
    say(summary(outcomes, noun))
    return bool(outcomes) and all(outcome.green for outcome in outcomes)


def summary(outcomes: Sequence[Outcome], noun: str) -> str:
    """Returns how many scenarios were green, and how many checks passed."""
    green = sum(outcome.green for outcome in outcomes)
    passed = sum(len(outcome.passed) for outcome in outcomes)
    failed = sum(len(outcome.failed) + bool(outcome.problem) for outcome in outcomes)
    return f"{len(outcomes)} {noun}, {green} green, {len(outcomes) - green} red\nchecks: {passed} passed, {failed} failed"


def report(outcome: Outcome) -> str:
    """Returns the scenario's line, and below it one for each failed check."""
    counts = f"{len(outcome.passed)} passed, {len(outcome.failed)} failed"
    if outcome.skipped:
        counts += f", {len(outcome.skipped)} not applicable"
    lines = [f"{'ok  ' if outcome.green else 'FAIL'} {outcome.scenario.label}: {counts}"]
    if outcome.problem:
        lines.append(_indented(outcome.problem))
    lines += [_indented(f"{check.status} {check.id}: {check.error_message or check.description}") for check in outcome.failed]
    skipped = {check.id for check in outcome.skipped}
    excused = outcome.scenario.not_applicable | outcome.scenario.not_served
    if outcome.passed and (stale := excused - skipped):
        lines.append(_indented(f"note: applicable now, take out of the table: {sorted(stale)}"))
    return "\n".join(lines)


def scenario_named(text: str) -> Scenario:
    """Returns the scenario that `name` or `name@revision` means, from the table if it is there."""
    name, _, revision = text.partition("@")
    for known in EXPECTED_GREEN:
        if known.label == text:
            return known
    for known in EXPECTED_GREEN:
        if known.name == name:
            return dataclasses.replace(known, revision=revision or known.revision)
    extension = name.startswith("tasks-")
    return Scenario(name=name, revision=revision or (None if extension else MODERN))


def _reports(results: str) -> list[bytes]:
    """Returns what the suite wrote below `results`: one report, none if it skipped or broke."""
    return [file.read_bytes() for file in sorted(Path(results).glob("*/checks.json"))]


def _indented(text: str) -> str:
    return "\n".join(f"       {line}" for line in text.splitlines())


def say(text: str) -> None:
    """Prints a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance.suite",
        description="Runs the official MCP conformance suite against a running bridge.",
    )
    parser.add_argument("--url", help="the MCP endpoint, on loopback; default: a pair of its own")
    parser.add_argument("--folder", type=Path, default=default_folder(), help="where the suite is installed")
    parser.add_argument(
        "scenarios",
        nargs="*",
        metavar="scenario",
        help="name or name@revision; default: all of the table",
    )
    return parser.parse_args()


def main() -> int:
    """Runs what the command line asks for: 0 if all was green, 1 if not, 2 if it cannot run."""
    arguments = _arguments()
    scenarios = [scenario_named(text) for text in arguments.scenarios] or list(EXPECTED_GREEN)
    try:
        if arguments.url:
            green = asyncio.run(run_suite(arguments.url, scenarios, folder=arguments.folder))
        else:
            with tempfile.TemporaryDirectory() as folder:
                routes = Path(shutil.copy(FIXTURES / "routes.yaml", folder))  # which one of the fixtures changes
                with Pair(Path(folder), routes=routes) as pair:
                    pair.start_worker("worker", "tests.conformance.fixtures.worker", str(routes))
                    green = asyncio.run(run_suite(pair.url, scenarios, folder=arguments.folder))
    except (InstallationError, PairError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0 if green else 1


if __name__ == "__main__":
    sys.exit(main())
