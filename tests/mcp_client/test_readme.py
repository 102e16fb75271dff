"""What the client's README says is what happens."""

import asyncio
import re
import shlex
import textwrap
from pathlib import Path

import pytest

import mcp_bridge.client
from mcp_bridge.client.command import EXIT_CODES, INTERRUPTED, OUTPUT_CLOSED, USAGE
from tests.mcp_client.test_command import tenure
from tests.pair import Pair

README = (Path(mcp_bridge.client.__file__).parent / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
async def test_every_snippet_runs(pair: Pair, snippet: str) -> None:
    names: dict[str, object] = {}
    body = textwrap.indent(snippet, "    ")
    exec(f"async def snippet(url):\n{body}\n    return locals()", names)
    left = await names["snippet"](pair.url)  # type: ignore[operator]
    assert "result" not in left or not left["result"].is_error


async def test_every_command_runs(pair: Pair) -> None:
    task_id = ""
    for line in COMMANDS:
        program, *words = shlex.split(line)
        assert program == "tenure"
        if words[:2] == ["task", "watch"]:
            continue  # it runs as long as the task; its own test watches one that ends
        words = [{"ID": task_id}.get(word, word) for word in words]
        code, printed, said = await asyncio.to_thread(tenure, pair.url, *words)
        assert code == 0, (line, said)
        if "--task" in words:
            task_id = printed["task_id"]
    assert task_id


def test_every_exit_code_and_every_error_is_told() -> None:
    told = {int(code) for code in re.findall(r"^\| (\d+) \|", README, re.MULTILINE)}
    assert told == {0, USAGE, INTERRUPTED, OUTPUT_CLOSED, *EXIT_CODES.values()}
    errors = {kind.__name__ for kind in mcp_bridge.client.ClientError.__subclasses__()}
    assert {name for name in errors if f"`{name}`" not in README} == set()


def test_every_file_is_in_the_house() -> None:
    folder = Path(mcp_bridge.client.__file__).parent
    assert {file.name for file in folder.glob("*.py") if file.name not in README} == {"__init__.py"}
