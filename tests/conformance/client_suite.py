"""The official MCP conformance suite against `mcp_bridge.client`: `python -m tests.conformance.client_suite [scenario ...]`.

The suite plays the server; `client_driver.py` is what it starts as the client. Each scenario is judged as those of the
server are: green only if it ran, at least one check passed, and every other one passed too or is named as not applicable.
"""

import asyncio
import sys
import tempfile
from collections.abc import Coroutine, Sequence
from pathlib import Path

import msgspec

from tests.conformance.suite import GRACE_SECONDS, MODERN, Check, Outcome, Scenario, judge, run_side_by_side
from tests.node_tools.installation import Installation, InstallationError, default_folder, install, run
from tests.pair import ROOT

DRIVER = Path(__file__).with_name("client_driver.py")
CLIENT_TIMEOUT_SECONDS = 30

EXPECTED_GREEN = (
    Scenario(name="tools_call", revision=MODERN),
    Scenario(name="request-metadata", revision=MODERN),
    # Skipped are methods that a client of tools does not use: resources, prompts, and initialize.
    Scenario(
        name="http-standard-headers",
        revision=MODERN,
        not_applicable=frozenset({"sep-2243-client-includes-standard-headers"}),
    ),
    Scenario(name="http-custom-headers", revision=MODERN),
    Scenario(name="http-invalid-tool-headers", revision=MODERN),
    Scenario(name="json-schema-ref-no-deref", revision=MODERN),
    Scenario(name="json-schema-2020-12-preservation", revision=MODERN),
    Scenario(name="sep-2322-client-request-state", revision=MODERN),
)


async def run_client_scenario(installation: Installation, scenario: Scenario) -> Outcome:
    """Runs one scenario against the driver and judges what the suite reported."""
    with tempfile.TemporaryDirectory(prefix="conformance-") as results:
        arguments = ["client", "--command", f"{sys.executable} {DRIVER}", "--scenario", scenario.name]
        arguments += ["--spec-version", scenario.revision or MODERN, "--output-dir", results]
        arguments += ["--timeout", str(CLIENT_TIMEOUT_SECONDS * 1000)]
        status, output = await run(
            installation.command(installation.suite, *arguments),
            environment={**installation.environment(), "PYTHONPATH": str(ROOT)},
            timeout_seconds=CLIENT_TIMEOUT_SECONDS + GRACE_SECONDS,
            folder=Path(results),
        )
        reports = [file.read_bytes() for file in sorted(Path(results).glob("*/checks.json"))]
    if len(reports) != 1:
        return judge(scenario, (), problem=f"no report (exit {status}): {output}")
    checks = msgspec.json.decode(reports[0], type=list[Check])
    return judge(scenario, checks, problem="" if status == 0 else f"the suite ended with {status}: {output}")


async def run_client_suite(scenarios: Sequence[Scenario], *, folder: Path) -> bool:
    """Runs `scenarios` a few at a time and prints each. Returns whether all were green. Raises InstallationError."""
    installation = await install(folder)

    def run_one(scenario: Scenario) -> Coroutine[object, object, Outcome]:
        return run_client_scenario(installation, scenario)

    return await run_side_by_side(scenarios, run_one, noun="client scenarios")


def main() -> int:
    """Runs the scenarios that are named, or the table: 0 if all was green, 1 if not, 2 if it cannot run."""
    table = {scenario.name: scenario for scenario in EXPECTED_GREEN}
    names = sys.argv[1:] or list(table)
    try:
        scenarios = [table.get(name) or Scenario(name=name, revision=MODERN) for name in names]
        return 0 if asyncio.run(run_client_suite(scenarios, folder=default_folder())) else 1
    except InstallationError as error:
        sys.stderr.write(f"{error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
