"""Progress of held calls, and answers that are late. Contract, sections 4, 10.3, 10.8 and 10.10; security checklist H18."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from mcp_bridge.app import Bridge
from tests.bridge.client import Client, headers_for, meta
from tests.bridge.fake_store import FakeTaskStore

DONE = b'{"content":[]}'
TOKEN = {"progressToken": "t-1"}


@pytest.fixture
async def session(bridge: Bridge) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


class Held:
    """A call of which the answer is read as it comes."""

    def __init__(self, session: aiohttp.ClientSession, port: int, fake: FakeTaskStore) -> None:
        self._session, self._url, self._fake = session, f"http://127.0.0.1:{port}/mcp", fake

    async def call(self, tool: str = "held", accept: str = "application/json, text/event-stream", **members: Any) -> str:
        """Calls, and returns the task's id once the bridge waits for it."""
        body = {
            "jsonrpc": "2.0",
            "id": 7,
            "method": "tools/call",
            "params": {"name": tool, "arguments": {}, "_meta": meta(**members)},
        }
        headers = headers_for("tools/call", tool, Accept=accept)
        self.answering = asyncio.create_task(self._session.post(self._url, json=body, headers=headers))
        async with asyncio.timeout(60):
            await self._fake.watching.wait()
        return list(self._fake.tasks)[-1]

    async def answer(self) -> aiohttp.ClientResponse:
        """The answer, as soon as its header is there."""
        async with asyncio.timeout(60):
            return await self.answering

    async def event(self) -> dict[str, Any]:
        """The next event, comments left out."""
        response = await self.answer()
        async with asyncio.timeout(60):
            while not (line := (await response.content.readline()).rstrip(b"\n")).startswith(b"data: "):
                assert response.content.total_bytes, "the stream ended"
        value = json.loads(line.removeprefix(b"data: "))
        assert isinstance(value, dict)
        return value


@pytest.fixture
async def held(session: aiohttp.ClientSession, bridge: Bridge, fake: FakeTaskStore) -> AsyncIterator[Held]:
    calling = Held(session, bridge.port, fake)
    yield calling
    (await calling.answer()).close()


def at_once(monkeypatch: pytest.MonkeyPatch, *, comment_seconds: float = 15.0) -> None:
    """A held call is late from its beginning."""
    monkeypatch.setattr("mcp_bridge.methods.calls.LATE_SECONDS", 0)
    monkeypatch.setattr("mcp_bridge.stream.KEEP_ALIVE_SECONDS", comment_seconds)


@pytest.mark.must("B-12", "H-10", "H-12", "H-13", "P-04", "P-07", "X-02")
async def test_each_report_is_relayed_in_order_and_then_the_result(held: Held, fake: FakeTaskStore) -> None:
    task_id = await held.call(**TOKEN)
    await fake.report(task_id, 0, 100, "begun")
    response = await held.answer()
    assert response.status == 200
    assert response.headers["Content-Type"] == "text/event-stream"
    assert (response.headers["X-Accel-Buffering"], response.headers["Cache-Control"]) == ("no", "no-store")
    assert await held.event() == {
        "jsonrpc": "2.0",
        "method": "notifications/progress",
        "params": {"progressToken": "t-1", "progress": 0, "total": 100, "message": "begun"},
    }
    for value in (50, 99.5):
        await fake.report(task_id, value)
        assert (await held.event())["params"] == {"progressToken": "t-1", "progress": value}
    await fake.complete(task_id, DONE)
    answer = await held.event()
    assert (answer["id"], answer["result"]["resultType"], answer["result"]["content"]) == (7, "complete", [])
    assert await response.content.read() == b"\n"


@pytest.mark.must("P-02")
async def test_a_report_that_is_not_above_the_last_is_not_told(held: Held, fake: FakeTaskStore) -> None:
    task_id = await held.call(**TOKEN)
    await fake.report(task_id, 5)
    assert (await held.event())["params"]["progress"] == 5
    for value in (5, 3):
        fake.watching.clear()
        await fake.report(task_id, value)
        async with asyncio.timeout(60):
            await fake.watching.wait()
    await fake.report(task_id, 6)
    assert (await held.event())["params"]["progress"] == 6


@pytest.mark.must("H-09")
@pytest.mark.parametrize("tool", ["held", "once"])
async def test_an_outcome_before_the_first_report_is_json_with_its_status(held: Held, fake: FakeTaskStore, tool: str) -> None:
    task_id = await held.call(tool, **TOKEN)
    await fake.complete(task_id, DONE)
    assert (await held.answer()).headers["Content-Type"] == "application/json"


async def test_a_client_that_does_not_name_streams_gets_json_and_no_progress(held: Held, fake: FakeTaskStore) -> None:
    for accept in ("application/json", "*/*"):
        fake.watching.clear()
        task_id = await held.call(accept=accept, **TOKEN)
        await fake.report(task_id, 1)
        await fake.complete(task_id, DONE)
        response = await held.answer()
        assert response.headers["Content-Type"] == "application/json"
        assert (await response.json())["result"]["content"] == []


@pytest.mark.must("P-04", "P-05")
async def test_nobody_who_did_not_ask_is_told_of_progress(held: Held, fake: FakeTaskStore) -> None:
    task_id = await held.call()
    await fake.report(task_id, 1)
    await fake.complete(task_id, DONE)
    assert (await held.answer()).headers["Content-Type"] == "application/json"


async def test_a_call_that_is_answered_with_a_handle_has_no_progress(client: Client, fake: FakeTaskStore) -> None:
    calling = asyncio.create_task(client.call("soon", tasks=True, meta_members=TOKEN))
    async with asyncio.timeout(60):
        await fake.watching.wait()
    (task_id,) = fake.tasks
    await fake.report(task_id, 1)
    await fake.complete(task_id, DONE)
    assert (await calling).headers["Content-Type"] == "application/json"


@pytest.mark.must("H-09")
async def test_a_late_answer_is_a_stream_and_an_error_comes_inside(
    held: Held, fake: FakeTaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once(monkeypatch)
    task_id = await held.call()
    response = await held.answer()
    assert (response.status, response.headers["Content-Type"]) == (200, "text/event-stream")
    await fake.fail(task_id, -32021, "out of paper")
    assert (await held.event())["error"] == {"code": -32021, "message": "out of paper"}


@pytest.mark.row("H18")
@pytest.mark.must("H-14")
async def test_a_quiet_stream_is_kept_alive_by_comments(
    held: Held, fake: FakeTaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once(monkeypatch, comment_seconds=0.001)
    task_id = await held.call()
    response = await held.answer()
    async with asyncio.timeout(60):
        for _ in range(3):
            assert await response.content.readuntil(b"\n\n") == b": keep-alive\n\n"
    await fake.complete(task_id, DONE)
    assert (await held.event())["result"]["content"] == []


@pytest.mark.row("H16")
@pytest.mark.must("C-03", "H-15", "H-17")
async def test_a_client_that_leaves_its_stream_starts_the_grace(held: Held, fake: FakeTaskStore) -> None:
    task_id = await held.call(**TOKEN)
    await fake.report(task_id, 1)
    await held.event()
    (await held.answer()).close()
    async with asyncio.timeout(60):
        await fake.heard.wait()
    assert fake.attached == [(task_id, 10_000)]
    assert not fake.cancelled


@pytest.mark.must("H-11", "I-01", "R-01")
async def test_questions_come_at_the_end_of_a_stream_too(held: Held, fake: FakeTaskStore) -> None:
    members: dict[str, Any] = {**TOKEN, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
    task_id = await held.call(**members)
    await fake.report(task_id, 1)
    await held.event()
    await fake.ask(task_id, "k", b'{"message":"?"}')
    asks = await held.event()
    assert (asks["id"], "method" in asks) == (7, False), "a question is no request of the server"
    assert (asks["result"]["resultType"], list(asks["result"]["inputRequests"])) == ("input_required", ["k"])
    assert fake.attached == [(task_id, 3_600_000)]
