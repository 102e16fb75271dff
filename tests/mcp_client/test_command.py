"""`tenure`, as a script uses it: JSON on standard output, an exit code that tells how it went."""

import asyncio
import fcntl
import io
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mcp_bridge.client import InputRequest, Progress
from mcp_bridge.client.command import EXIT_CODES, main
from mcp_bridge.client.display import Display, read_value
from mcp_bridge.client.errors import ClientError
from tests.mcp_client.fake_server import TASK_ID, FakeServer, asks, error, task, text, tools
from tests.pair import ROOT, Pair

PATIENCE_SECONDS = 60
INTERRUPT = "\x03"


def tenure(url: str, *arguments: str, **variables: str) -> tuple[int, Any, str]:
    """The exit code, what was printed as JSON, and what was said beside it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TENURE_URL": url, **variables}
    command = [sys.executable, "-m", "mcp_bridge.client.command", *arguments]
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, lines[0] if len(lines) == 1 else lines, done.stderr


async def on(fake: FakeServer, *arguments: str, **variables: str) -> tuple[int, Any, str]:
    return await asyncio.to_thread(tenure, fake.url, *arguments, **variables)


def test_the_way_from_a_tool_to_its_result(pair: Pair) -> None:
    code, listed, _ = tenure(pair.url, "tools")
    assert code == 0
    assert "greet" in {tool["name"] for tool in listed}
    assert tenure(pair.url, "call", "greet", "--arg", "name=7")[1]["content"][0]["text"] == "Hello, 7!"
    code, result, said = tenure(pair.url, "call", "slow_compute", "--json-args", '{"label": "x"}', "--arg", "seconds=0.2")
    assert (code, result["content"][0]["text"], said) == (0, "x took 0.2 s", "")
    assert tenure(pair.url, "call", "failing_job")[0] == 1
    assert tenure(pair.url, "call", "protocol_error_job")[0] == 1


def test_a_task_is_left_looked_at_watched_and_cancelled(pair: Pair) -> None:
    code, handle, _ = tenure(pair.url, "call", "slow_compute", "--arg", "seconds=60", "--task")
    assert code == 0
    task_id = handle["task_id"]
    assert tenure(pair.url, "task", "get", task_id)[1]["status"] == "working"
    code, told, _ = tenure(pair.url, "task", "why", task_id)
    assert (code, told.keys()) == (0, {"why"})
    assert told["why"].startswith(("A worker is at it since ", "It waits for its turn; "))
    code, _, said = tenure(pair.url, "call", "slow_compute", "--arg", "seconds=60", "--deadline", "2")
    assert code == 6
    left = said.split("tenure task watch ")[1].strip("`\n")
    for each in (task_id, left):
        assert tenure(pair.url, "task", "cancel", each)[0] == 0
    code, changes, _ = tenure(pair.url, "task", "watch", task_id)
    assert code == 1
    assert (changes[-1] if isinstance(changes, list) else changes)["status"] == "cancelled"


def test_a_question_of_a_real_task_is_answered_later(pair: Pair) -> None:
    code, _, said = tenure(pair.url, "call", "confirm_delete", "--arg", "filename=a")
    assert code == 3
    task_id = said.split("task ")[1].split(" ")[0]
    assert list(tenure(pair.url, "task", "get", task_id)[1]["inputRequests"]) == ["confirm"]
    assert tenure(pair.url, "task", "answer", task_id, "confirm", "--content", '{"confirm": true}')[0] == 0
    code, changes, _ = tenure(pair.url, "task", "watch", task_id)
    ended = changes[-1] if isinstance(changes, list) else changes
    assert (code, ended["result"]["content"][0]["text"]) == (0, "Deleted a")


async def test_a_question_is_told_and_answered(fake: FakeServer) -> None:
    fake.answers["tools/call"] = [task("working", resultType="task")]
    fake.answers["tasks/get"] = [task("input_required", **asks("name"))]
    fake.answers["tasks/update"] = [{"resultType": "complete"}]
    code, _, said = await on(fake, "call", "work")
    assert code == 3
    assert f"task {TASK_ID} asks" in said
    assert (await on(fake, "task", "answer", TASK_ID, "name", "--content", '{"name": "Ann"}'))[0] == 0
    assert (await on(fake, "task", "answer", TASK_ID, "name", "--decline"))[0] == 0
    sent = [asked.params["inputResponses"]["name"] for asked in fake.of("tasks/update")]
    assert sent == [{"action": "accept", "content": {"name": "Ann"}}, {"action": "decline"}]


@pytest.mark.must("CE-04")
async def test_of_a_page_to_open_all_of_the_url_is_shown_and_consent_has_no_content(
    fake: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    page = {"mode": "url", "message": "Pay", "url": "https://example.com/pay?for=order-17"}
    fake.answers["tasks/get"] = [
        task("input_required", inputRequests={"pay": {"method": "elicitation/create", "params": page}})
    ]
    fake.answers["tasks/update"] = [{"resultType": "complete"}]
    assert await asyncio.to_thread(main, ["task", "get", TASK_ID, "--url", fake.url, "--output", "text"]) == 0
    shown = capsys.readouterr().out
    assert f"if you trust it: {page['url']}\n" in shown
    assert f"tenure task answer {TASK_ID} pay\n" in shown
    assert (await on(fake, "task", "answer", TASK_ID, "pay"))[0] == 0
    assert fake.of("tasks/update")[0].params["inputResponses"] == {"pay": {"action": "accept"}}


async def test_each_way_to_end_has_its_code(fake: FakeServer) -> None:
    fake.answers["tasks/get"] = [error(-32602, "Task not found", status=400)]
    fake.answers["tools/call"] = [error(-32602, "unknown tool", status=400)]
    assert (await on(fake, "task", "get", TASK_ID))[0] == 5
    assert (await on(fake, "call", "nothing"))[0] == 4
    assert (await on(fake, "call", "work", "--json-args", "[]"))[0] == 2
    assert (await on(fake, "call", "work", "--arg", "novalue"))[0] == 2
    assert (await on(fake, "call", "work", "--task", "--wait"))[0] == 2


async def test_a_bearer_token_comes_from_the_environment_or_a_file_and_never_from_the_command_line(
    fake: FakeServer, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("of-the-file\n")
    fake.answers["tasks/get"] = [task("working")]
    assert (await on(fake, "task", "get", TASK_ID, TENURE_TOKEN="of-the-environment"))[0] == 0
    assert (await on(fake, "task", "get", TASK_ID, "--token-file", str(file), TENURE_TOKEN="other"))[0] == 0
    sent = [asked.headers["Authorization"] for asked in fake.asked]
    assert sent == ["Bearer of-the-environment", "Bearer of-the-file"]
    for words in (["--token", "secret"], ["--token-file", str(tmp_path / "none")]):
        assert (await on(fake, "task", "get", TASK_ID, *words))[0] == 2
    file.write_text("secret\nsecret")
    code, _, said = await on(fake, "task", "get", TASK_ID, "--token-file", str(file))
    assert (code, "secret" in said) == (2, False)
    assert len(fake.asked) == 2


async def test_who_is_not_known_is_told_how_to_name_a_token(fake: FakeServer) -> None:
    fake.answers["tasks/get"] = [error(-32600, "Unauthorized", status=401)]
    code, _, said = await on(fake, "task", "get", TASK_ID)
    assert code == 4
    assert "TENURE_TOKEN or --token-file" in said


def test_every_error_of_the_client_that_a_command_can_meet_has_a_code() -> None:
    kinds = set(ClientError.__subclasses__())
    assert {kind.__name__ for kind in kinds - set(EXIT_CODES)} == {"ToolError"}, "a tool error is shown as the result it is"


async def test_on_a_terminal_it_is_text_without_what_steers_it(fake: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    fake.answers["tools/list"] = [tools({"name": "work", "description": "Works."})]
    fake.answers["tools/call"] = [text("done")]
    assert await asyncio.to_thread(main, ["tools", "--url", fake.url, "--output", "text"]) == 0
    assert await asyncio.to_thread(main, ["call", "work", "--url", fake.url, "--output", "text"]) == 0
    assert capsys.readouterr().out == "work  Works.\ndone\n"

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    err = Terminal()
    Display(as_json=False, err=err).progress(Progress(1, 2, "evil \x1b[2J"))
    assert err.getvalue() == "\r\033[K0 s  1/2 evil \N{REPLACEMENT CHARACTER}[2J"


def on_a_terminal(url: str, *arguments: str, keys: Mapping[str, str], columns: int = 80) -> tuple[int, str]:
    """Runs `tenure` on a terminal, types `keys` each when its text is there; the exit code, and all that was shown."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [sys.executable, "-m", "mcp_bridge.client.command", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TENURE_URL": url}
    process = subprocess.Popen(command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    shown, waiting, until = "", dict(keys), time.monotonic() + PATIENCE_SECONDS
    try:
        while time.monotonic() < until and select.select([ours], [], [], until - time.monotonic())[0]:
            try:
                shown += os.read(ours, 4096).decode()
            except OSError:  # the other end is closed
                break
            for text in [text for text in waiting if text in shown]:
                typed = waiting.pop(text)
                process.send_signal(signal.SIGINT) if typed == INTERRUPT else os.write(ours, typed.encode())
        return process.wait(PATIENCE_SECONDS), shown
    finally:
        process.kill()
        os.close(ours)


def test_a_terminal_is_asked_and_shown_how_long_it_takes(pair: Pair) -> None:
    code, shown = on_a_terminal(
        pair.url, "call", "confirm_delete", "--arg", "filename=a", keys={"confirm (boolean): ": "true\n", "send it? ": "yes\n"}
    )
    assert code == 0
    assert shown.endswith("Deleted a\r\n")
    code, shown = on_a_terminal(pair.url, "call", "slow_compute", "--arg", "seconds=1.5", keys={}, columns=12)
    assert code == 0
    assert "\r\033[K1 s  workin\r\033[K" in shown
    assert all(len(line) < 12 for line in shown.split("\r\033[K")[1:-1])


def test_whoever_leaves_a_terminal_is_told_how_to_come_back(pair: Pair) -> None:
    code, shown = on_a_terminal(pair.url, "call", "slow_compute", "--arg", "seconds=60", keys={"working": INTERRUPT})
    assert code == 130
    task_id = shown.split("tenure task watch ")[1].split("`")[0]
    code, shown = on_a_terminal(pair.url, "task", "watch", task_id, keys={" s  working": INTERRUPT})
    assert code == 130
    assert f"\r\033[Ktenure: interrupted; task {task_id} goes on" in shown
    assert tenure(pair.url, "task", "cancel", task_id)[0] == 0


async def test_whoever_reads_the_output_may_leave(fake: FakeServer) -> None:
    fake.answers["tools/list"] = [tools(*({"name": f"work{n}", "description": "x" * 20_000} for n in range(100)))]
    command = [sys.executable, "-m", "mcp_bridge.client.command", "tools", "--url", fake.url, "--output", "text"]
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    await process.stdout.readline()
    process.stdout._transport.close()  # type: ignore[attr-defined]  # there is no other way to close it
    assert (await process.stderr.read(), await process.wait()) == (b"", 141)


async def answered(monkeypatch: pytest.MonkeyPatch, typed: str, **params: Any) -> tuple[Mapping[str, Any], str]:
    """What comes of a question when this is typed, and what was shown."""
    err = io.StringIO()
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    request = InputRequest("elicitation/create", {"message": "Who?", **params})
    return await Display(as_json=False, server="https://example.com/mcp", err=err).ask("k", request), err.getvalue()


@pytest.mark.must("CE-01", "CE-06")
async def test_a_person_is_told_who_asks_and_asked_property_by_property(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "default": 7},
            "size": {"type": "string", "oneOf": [{"const": "S", "title": "small"}, {"const": "L", "title": "large"}]},
            "nick": {"type": "string"},
        }
    }
    answer, shown = await answered(monkeypatch, "12\n\nL\n\nyes\n", requestedSchema=schema)
    assert answer == {"action": "accept", "content": {"name": "12", "age": 7, "size": "L"}}
    assert shown == (
        "https://example.com/mcp asks: Who?\n  name (string):   age (integer) [7]:   size (S/L):   nick (string): "
        "  send it? (yes/change/decline/cancel): "
    )


@pytest.mark.must("CE-02", "CE-03", "CE-04")
async def test_a_person_may_change_decline_and_cancel_and_nothing_is_sent_unless_it_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schema = {"properties": {"name": {"type": "string"}}}
    changed, _ = await answered(monkeypatch, "Ann\nchange\nBea\n\nCid\ny\n", requestedSchema=schema)
    assert changed == {"action": "accept", "content": {"name": "Cid"}}
    for typed, action in (("Ann\ndecline\n", "decline"), ("Ann\ncancel\n", "cancel"), ("Ann\n", "decline"), ("", "decline")):
        assert (await answered(monkeypatch, typed, requestedSchema=schema))[0] == {"action": action}
    empty: list[dict[str, Any]] = [{"requestedSchema": {"properties": {}}}, {"mode": "url", "url": "https://example.com/pay"}]
    for params in empty:
        assert (await answered(monkeypatch, "", **params))[0] == {"action": "decline"}
    page, shown = await answered(monkeypatch, "yes\n", mode="url", url="https://example.com/\x1b[2Jpay")
    assert page == {"action": "accept"}
    assert "if you trust it: https://example.com/\N{REPLACEMENT CHARACTER}[2Jpay\n" in shown


@pytest.mark.parametrize(
    "schema", [None, 1, {"properties": [1]}, {"properties": {"a": None}}, {"properties": {"a": {"enum": {}}}}]
)
async def test_a_form_that_is_none_asks_what_it_can(monkeypatch: pytest.MonkeyPatch, schema: Any) -> None:
    assert (await answered(monkeypatch, "\nyes\nyes\n", requestedSchema=schema))[0]["action"] == "accept"


@pytest.mark.parametrize(
    ("word", "schema", "value"),
    [("7", {"type": "string"}, "7"), ("7", {"type": "integer"}, 7), ("yes", None, "yes"), ("[1]", None, [1])],
)
def test_words_of_the_command_line_are_read_by_what_the_tool_takes(word: str, schema: Any, value: Any) -> None:
    assert read_value(word, schema) == value
