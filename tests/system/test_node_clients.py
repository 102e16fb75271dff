"""Clients from npm that nobody here wrote: `@modelcontextprotocol/client` with ext-tasks, and the Inspector's command line.

All calls are made once, side by side, before the first test; each test looks at what one of them saw.
"""

import asyncio
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.node_tools.installation import Installation, default_folder, install, run
from tests.pair import Pair

NODE_CLIENT = Path(__file__).with_name("node_client.mjs")
SECONDS = 120

INSPECTED: Mapping[str, tuple[str, ...]] = {
    "server": ("--method", "initialize"),
    "list": ("--method", "tools/list", "--strict", "--output", "tools.json"),
    "plain": ("--method", "tools/call", "--tool-name", "greet", "--tool-arg", "name=Ann"),
    "earlier": ("--protocol-era", "legacy", "--method", "tools/call", "--tool-name", "greet", "--tool-arg", "name=Ann"),
    "headers": ("--method", "tools/call", "--tool-name", "test_custom_headers", "--tool-args-json", '{"message": "Grüße"}'),
    "task": ("--method", "tools/call", "--tool-name", "slow_compute", "--tool-args-json", '{"seconds": 1, "label": "seen"}'),
    "tool error": ("--method", "tools/call", "--tool-name", "failing_job"),
    "failure": ("--method", "tools/call", "--tool-name", "protocol_error_job"),
    "question": ("--method", "tools/call", "--tool-name", "confirm_delete", "--tool-arg", "filename=a"),
}
"""What the Inspector is asked to do. It can neither cancel a task nor answer its questions."""


@pytest.fixture(scope="module")
def seen(fixture_pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """What each scenario of the Node client saw, and under `inspector` what each call of the Inspector did."""
    return asyncio.run(_drive(fixture_pair, tmp_path_factory.mktemp("node")))


async def _drive(pair: Pair, folder: Path) -> Mapping[str, Any]:
    installation, url = await install(default_folder()), pair.url
    node, *inspected = await asyncio.gather(
        _node_client(installation, url, pair.routes, folder),
        *(_inspect(installation, url, folder / name, arguments) for name, arguments in INSPECTED.items()),
    )
    return {**node, "inspector": dict(zip(INSPECTED, inspected, strict=True))}


async def _node_client(installation: Installation, url: str, routes: Path, folder: Path) -> Mapping[str, Any]:
    (folder / "node_modules").symlink_to(installation.packages)  # where Node looks for what the script imports
    script, file = folder / NODE_CLIENT.name, folder / "seen.json"
    shutil.copyfile(NODE_CLIENT, script)
    command = installation.command(script, url, str(routes), str(file))
    status, output = await run(command, environment=installation.environment(), timeout_seconds=SECONDS, folder=folder)
    assert status == 0, output
    told: Mapping[str, Any] = json.loads(file.read_text())
    return told


async def _inspect(installation: Installation, url: str, home: Path, arguments: tuple[str, ...]) -> tuple[int | None, Any]:
    """The exit status of one call, and what it printed, as JSON."""
    home.mkdir()
    where = ("--server-url", url, "--transport", "http")
    era = () if "--protocol-era" in arguments else ("--protocol-era", "modern")
    status, output = await run(
        installation.command(installation.inspector, "--cli", *where, *era, "--format", "json", "--quiet", *arguments),
        environment={**installation.environment(), "HOME": str(home)},
        timeout_seconds=SECONDS,
        folder=home,
    )
    return status, [json.loads(line) for line in output.splitlines()]


def text(told: Mapping[str, Any]) -> str:
    assert "error" not in told, told["error"]
    return str(told["text"])


def test_the_node_client_without_tasks_gets_the_plain_result_of_a_held_call(seen: Mapping[str, Any]) -> None:
    assert text(seen["plain"]) == "Hello, Ann!"
    assert seen["plain"]["era"] == "modern"
    assert "slow_compute" in seen["plain"]["tools"]


def test_the_node_client_of_an_earlier_revision_is_told_of_progress(seen: Mapping[str, Any]) -> None:
    assert text(seen["earlier"]) == "done"
    assert seen["earlier"]["era"] == "legacy"
    assert seen["earlier"]["told"] == [0, 50, 100]


def test_the_node_client_is_told_when_the_tools_change(seen: Mapping[str, Any]) -> None:
    assert "error" not in seen["changes"], seen["changes"]["error"]
    assert seen["changes"]["honored"] == {"toolsListChanged": True}
    assert seen["changes"]["told"] == ["Asks two questions at once.", "Asks twice.", "Asks two questions at once."]


def test_the_node_client_answers_what_a_held_call_asks(seen: Mapping[str, Any]) -> None:
    assert text(seen["rounds"]) == "Hello, Ann!"


def test_ext_tasks_creates_a_task_and_polls_it(seen: Mapping[str, Any]) -> None:
    assert text(seen["poll"]) == "node took 1 s"
    assert seen["poll"]["kind"] == "task"
    assert seen["poll"]["statuses"][0] == "working"
    assert seen["poll"]["statuses"][-1] == "completed"


def test_ext_tasks_answers_the_questions_of_a_task(seen: Mapping[str, Any]) -> None:
    assert text(seen["input"]) == "Both were answered"
    assert seen["input"]["asked"] == [["name", "task-update"], ["confirm", "task-update"]]


def test_ext_tasks_answers_what_is_asked_before_a_task(seen: Mapping[str, Any]) -> None:
    assert text(seen["before"]) == "Hello, Ann!"
    assert seen["before"]["kind"] == "task"
    assert [delivery for _, delivery in seen["before"]["asked"]] == ["request-retry"]


def test_ext_tasks_cancels_a_task(seen: Mapping[str, Any]) -> None:
    assert seen["cancel"] == {"era": "modern", "kind": "task", "status": "cancelled"}


def test_ext_tasks_comes_back_to_a_task_by_a_reference_that_was_kept(seen: Mapping[str, Any]) -> None:
    assert text(seen["resume"]) == "later took 1 s"


def test_ext_tasks_is_told_how_a_task_failed(seen: Mapping[str, Any]) -> None:
    assert seen["failure"] == {"era": "modern", "status": "failed", "code": -32603}


def test_the_inspector_meets_a_modern_server_with_sound_tools(seen: Mapping[str, Any]) -> None:
    status, (server,) = seen["inspector"]["server"]
    assert (status, server["result"]["protocolVersion"]) == (0, "2026-07-28")
    status, told = seen["inspector"]["list"]
    assert status == 0, told  # --strict ends with 6 for a schema that is not portable


def test_the_inspector_of_either_era_calls_a_tool_and_repeats_its_argument_in_a_header(seen: Mapping[str, Any]) -> None:
    status, (plain,) = seen["inspector"]["plain"]
    assert (status, plain["result"]["content"]) == (0, [{"type": "text", "text": "Hello, Ann!"}])
    status, (earlier,) = seen["inspector"]["earlier"]
    assert (status, earlier["result"]["content"]) == (0, plain["result"]["content"])
    status, (headers,) = seen["inspector"]["headers"]
    assert (status, headers["result"]["content"][0]["text"]) == (0, "The headers are right.")


def test_the_inspector_polls_a_task_to_its_end(seen: Mapping[str, Any]) -> None:
    status, (result,) = seen["inspector"]["task"]
    assert (status, result["result"]["content"][0]["text"]) == (0, "seen took 1 s")
    status, (result, fault) = seen["inspector"]["tool error"]  # a tool that must be a task
    assert (status, result["result"]["isError"], fault["error"]["code"]) == (5, True, "tool_is_error")
    status, (failure,) = seen["inspector"]["failure"]
    assert status != 0
    assert failure["error"]["message"] == "This job always ends in a protocol error"


def test_the_inspector_is_told_that_it_cannot_answer(seen: Mapping[str, Any]) -> None:
    """Its command line declares no elicitation (2.12.0), so a task that asks fails with -32021."""
    status, (failure,) = seen["inspector"]["question"]
    assert status != 0
    assert "elicitation.form" in failure["error"]["message"]
