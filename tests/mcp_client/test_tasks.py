"""A task is waited for until it ends or the deadline comes, whatever is in between."""

import asyncio
import gc
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web

from mcp_bridge.client import (
    DeadlineExceeded,
    HandleExpired,
    Handlers,
    InputNeeded,
    InputRequest,
    ProtocolFailure,
    TaskCancelled,
    TaskClient,
    TaskFailed,
    TaskHandle,
    TaskSnapshot,
    TransportError,
)
from tests.mcp_client.conftest import QUICK
from tests.mcp_client.fake_server import TASK_ID, Answer, Asked, FakeServer, asks, cut, error, gateway, stream, task, text

NOT_FOUND = error(-32602, "Task not found", status=400)
DONE = task("completed", at=9, result=text("done"))
ACKNOWLEDGED = {"method": "notifications/subscriptions/acknowledged", "params": {"notifications": {"taskIds": [TASK_ID]}}}


def told(snapshot: dict[str, Any]) -> dict[str, Any]:
    return {"method": "notifications/tasks", "params": snapshot}


def handle_of(fake: FakeServer) -> TaskHandle:
    return TaskHandle(TASK_ID, fake.url, "work")


@pytest.mark.must("CT-04", "CT-09")
async def test_the_wait_outlives_whatever_lies_between(fake: FakeServer) -> None:
    fake.answers["tasks/get"] = [
        task("working"), cut, gateway(503, Retry_After="0"), error(42900, "slower", status=429, Retry_After="0"),
        error(50300, "away", status=503), gateway(504), stream(), task("working", statusMessage="half"), DONE,
    ]  # fmt: skip
    seen: list[str | None] = []
    async with TaskClient(fake.url, policy=QUICK) as client:
        result = await client.wait_task(handle_of(fake), on_change=lambda snapshot: seen.append(snapshot.status_message))
    assert result.text == "done"
    assert seen == [None, "half", None]
    assert {asked.headers["Mcp-Name"] for asked in fake.of("tasks/get")} == {TASK_ID}


@pytest.mark.parametrize("between", [task("working"), gateway(503), gateway(429, Retry_After="60")])
async def test_the_deadline_ends_the_wait_and_not_the_task(fake: FakeServer, between: Answer) -> None:
    fake.answers["tasks/get"] = [between]
    async with TaskClient(fake.url, policy=QUICK) as client:
        with pytest.raises(DeadlineExceeded) as raised:
            await client.wait_task(handle_of(fake), deadline=timedelta(seconds=0.1))
    assert raised.value.handle == handle_of(fake)
    assert not fake.of("tasks/cancel")


@pytest.mark.must("CC-01")
async def test_a_server_that_says_nothing_does_not_outlast_the_deadline(fake: FakeServer) -> None:
    released = asyncio.Event()

    async def silent(_request: web.Request, _asked: Asked) -> web.StreamResponse:
        await released.wait()
        return web.Response()

    fake.answers["tasks/get"] = [silent]
    async with TaskClient(fake.url, policy=QUICK) as client:
        with pytest.raises(DeadlineExceeded):
            await client.wait_task(handle_of(fake), deadline=timedelta(seconds=0.1))
        released.set()


@pytest.mark.must("CC-02")
async def test_whoever_gives_up_waiting_closes_the_connection() -> None:
    closed = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        closed.set()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        async with TaskClient(url, policy=QUICK) as client:
            with pytest.raises(DeadlineExceeded):
                await client.wait_task(TaskHandle(TASK_ID, url), deadline=timedelta(seconds=0.1))
            async with asyncio.timeout(60):
                await closed.wait()


def accepting(calls: list[str]) -> Handlers:
    """Accepts everything, and notes what it was asked."""

    async def accept(key: str, _request: InputRequest) -> Mapping[str, Any]:
        calls.append(key)
        return {"action": "accept", "content": {}}

    return {"elicitation/create": accept}


@pytest.mark.must("CT-06", "CT-08")
async def test_each_key_is_answered_once(fake: FakeServer) -> None:
    calls: list[str] = []
    fake.answers["tasks/get"] = [
        task("input_required", **asks("a")), task("input_required", at=1, **asks("a")),
        task("input_required", at=2, **asks("a", "b")), task("working", at=3), DONE,
    ]  # fmt: skip
    fake.answers["tasks/update"] = [gateway(503), {"resultType": "complete"}]
    async with TaskClient(fake.url, handlers=accepting(calls), policy=QUICK) as client:
        assert (await client.wait_task(handle_of(fake))).text == "done"
    assert calls == ["a", "b"]
    sent = [list(asked.params["inputResponses"]) for asked in fake.of("tasks/update")]
    assert sent == [["a"], ["a"], ["b"]], "the first was lost on its way and sent again as it was"


@pytest.mark.parametrize(("most", "asked"), [(2, 2), (1, 3)])
async def test_of_the_last_tasks_it_is_known_what_was_answered(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch, most: int, asked: int
) -> None:
    monkeypatch.setattr("mcp_bridge.client.client._MOST_REMEMBERED", most)
    calls: list[str] = []
    fake.answers["tasks/update"] = [{"resultType": "complete"}]
    async with TaskClient(fake.url, handlers=accepting(calls), policy=QUICK) as client:
        for task_id in (TASK_ID, "other", TASK_ID):
            fake.answers["tasks/get"] = [
                task("input_required", **asks("a")) | {"taskId": task_id}, error(-32603, "out of order"),
            ]  # fmt: skip
            with pytest.raises(ProtocolFailure, match="out of order"):
                await client.wait_task(TaskHandle(task_id, fake.url))
    assert len(calls) == asked


async def test_of_a_task_that_expired_nothing_is_kept(fake: FakeServer) -> None:
    fake.answers["tasks/get"] = [task("input_required", **asks("a")), NOT_FOUND]
    fake.answers["tasks/update"] = [{"resultType": "complete"}]
    async with TaskClient(fake.url, handlers=accepting([]), policy=QUICK) as client:
        with pytest.raises(HandleExpired):
            await client.wait_task(handle_of(fake))
        assert client._answered == {}


async def test_a_question_without_a_handler_ends_the_wait_with_the_handle(fake: FakeServer) -> None:
    fake.answers["tasks/get"] = [task("input_required", **asks("a")), task("working", at=1), DONE]
    fake.answers["tasks/update"] = [{"resultType": "complete"}]
    async with TaskClient(fake.url, policy=QUICK) as client:
        with pytest.raises(InputNeeded) as raised:
            await client.wait_task(handle_of(fake))
        assert raised.value.handle is not None
        await client.update_task(raised.value.handle, {"a": {"action": "decline"}})
        assert (await client.wait_task(raised.value.handle)).text == "done"


async def test_an_answer_that_is_refused_is_not_taken_for_an_expired_handle(fake: FakeServer) -> None:
    fake.answers["tasks/update"] = [error(-32602, "Invalid params: a", status=400)]
    fake.answers["tasks/get"] = [task("input_required", **asks("a")), NOT_FOUND]
    async with TaskClient(fake.url, policy=QUICK) as client:
        with pytest.raises(ProtocolFailure, match="Invalid params: a"):
            await client.update_task(handle_of(fake), {"a": {}})
        with pytest.raises(HandleExpired):
            await client.update_task(handle_of(fake), {"a": {}})


async def test_every_way_to_look_at_an_expired_handle_says_so(fake: FakeServer) -> None:
    fake.answers |= {"tasks/get": [NOT_FOUND], "tasks/cancel": [NOT_FOUND]}
    handle = handle_of(fake)
    async with TaskClient(fake.url, policy=QUICK) as client:
        for looking in (client.get_task(handle), client.cancel_task(handle), client.wait_task(handle), first(client, handle)):
            with pytest.raises(HandleExpired) as raised:
                await looking
            assert raised.value.task_id == TASK_ID


async def first(client: TaskClient, handle: TaskHandle) -> TaskSnapshot:
    return await anext(client.listen_tasks([handle]))


async def test_the_ends_of_a_task_are_told_apart(fake: FakeServer) -> None:
    fake.answers["tasks/get"] = [task("failed", error={"code": -32603, "message": "broken", "data": [1]}), task("cancelled")]
    async with TaskClient(fake.url, policy=QUICK) as client:
        with pytest.raises(TaskFailed, match="broken") as failed:
            await client.wait_task(handle_of(fake))
        with pytest.raises(TaskCancelled):
            await client.wait_task(handle_of(fake))
    assert (failed.value.code, failed.value.data) == (-32603, [1])


async def listened(client: TaskClient, handle: TaskHandle) -> list[tuple[str, str | None]]:
    return [(snapshot.status, snapshot.status_message) async for snapshot in client.listen_tasks([handle])]


async def test_listening_polls_where_the_server_does_not_tell(fake: FakeServer) -> None:
    fake.answers["tasks/get"] = [task("working"), task("working"), task("working", at=1, statusMessage="half"), DONE]
    async with TaskClient(fake.url, policy=QUICK) as client:
        assert await listened(client, handle_of(fake)) == [("working", None), ("working", "half"), ("completed", None)]
    assert len(fake.of("subscriptions/listen")) == 1


@pytest.mark.must("CS-01")
async def test_listening_polls_where_the_server_tells_only_of_other_things(fake: FakeServer) -> None:
    fake.answers["subscriptions/listen"] = [
        stream({"method": "notifications/subscriptions/acknowledged", "params": {"notifications": {}}}, result={})
    ]
    fake.answers["tasks/get"] = [DONE]
    async with TaskClient(fake.url, policy=QUICK) as client:
        assert await listened(client, handle_of(fake)) == [("completed", None)]


async def test_listening_goes_on_over_streams_that_end_and_says_nothing_twice(fake: FakeServer) -> None:
    half = task("working", at=2, statusMessage="half")
    fake.answers["subscriptions/listen"] = [
        stream(ACKNOWLEDGED, told(task("working"))),
        stream(ACKNOWLEDGED, told(task("working")), told(half), result={"resultType": "complete"}),
        gateway(502),
        stream(ACKNOWLEDGED, told(task("working")), told(DONE), result={"resultType": "complete"}),
    ]
    fake.answers["tasks/get"] = [task("working"), half]
    async with TaskClient(fake.url, policy=QUICK) as client:
        assert await listened(client, handle_of(fake)) == [("working", None), ("working", "half"), ("completed", None)]
    assert fake.of("subscriptions/listen")[0].params["notifications"] == {"taskIds": [TASK_ID]}


async def test_listening_outlives_a_server_that_has_no_room_stops_or_is_away_for_long(fake: FakeServer) -> None:
    fake.answers["subscriptions/listen"] = [
        error(42900, "Too many", status=429), error(50300, "stopping", status=503), stream(ACKNOWLEDGED, told(task("working"))),
        gateway(502), stream(ACKNOWLEDGED, told(DONE), result={"resultType": "complete"}),
    ]  # fmt: skip
    away = error(50300, "away", status=503, Retry_After="60")
    fake.answers["tasks/get"] = [task("working"), away, away, gateway(502, Retry_After="60")]
    async with TaskClient(fake.url, policy=QUICK) as client:
        assert await listened(client, handle_of(fake)) == [("working", None), ("completed", None)]


async def test_listening_to_a_server_that_is_not_there_ends(fake: FakeServer) -> None:
    fake.answers["subscriptions/listen"] = [gateway(502)]
    fake.answers["tasks/get"] = [gateway(502, Retry_After="60")]
    async with TaskClient(fake.url, policy=QUICK) as client:
        with pytest.raises(TransportError):
            await listened(client, handle_of(fake))


async def test_a_task_that_a_stream_does_not_tell_of_is_found_to_be_expired(fake: FakeServer) -> None:
    fake.answers["subscriptions/listen"] = [stream(ACKNOWLEDGED, result={"resultType": "complete"})]
    fake.answers["tasks/get"] = [NOT_FOUND]
    async with TaskClient(fake.url, policy=QUICK) as client:
        with pytest.raises(HandleExpired):
            await listened(client, handle_of(fake))


@pytest.mark.must("CT-03")
async def test_listening_asks_again_when_the_server_said_and_looks_as_often_as_it_asks_meanwhile(fake: FakeServer) -> None:
    fake.answers["subscriptions/listen"] = [error(42900, "Too many", status=429, Retry_After="60")]
    fake.answers["tasks/get"] = [task("working"), task("working", at=1, statusMessage="half"), task("working", at=1), DONE]
    async with TaskClient(fake.url, policy=QUICK) as client:
        assert [status for status, _ in await listened(client, handle_of(fake))] == [
            "working",
            "working",
            "working",
            "completed",
        ]
    assert len(fake.of("subscriptions/listen")) == 1


@pytest.mark.must("CT-03")
async def test_a_stream_that_does_not_open_is_no_reason_to_look_more_often(fake: FakeServer) -> None:
    fake.answers["subscriptions/listen"] = [gateway(502)] * 9 + [stream(ACKNOWLEDGED, told(DONE), result={})]
    fake.answers["tasks/get"] = [task("working", pollIntervalMs=60_000)]
    async with TaskClient(fake.url, policy=QUICK) as client:
        assert await listened(client, handle_of(fake)) == [("working", None), ("completed", None)]
    assert len(fake.of("tasks/get")) == 2, "once at first, and once when the stream was there, for what came in between"


async def test_what_came_before_a_stream_opened_is_seen(fake: FakeServer) -> None:
    released = asyncio.Event()
    fake.answers["subscriptions/listen"] = [gateway(502), lasting(ACKNOWLEDGED, released)]
    fake.answers["tasks/get"] = [task("working", pollIntervalMs=60_000), DONE]
    async with asyncio.timeout(60), TaskClient(fake.url, policy=QUICK) as client:
        assert await listened(client, handle_of(fake)) == [("working", None), ("completed", None)]
        released.set()


@pytest.mark.must("CS-01")
async def test_listening_polls_where_the_server_tells_of_some_of_the_tasks_only(fake: FakeServer) -> None:
    released = asyncio.Event()
    fake.answers["subscriptions/listen"] = [lasting(ACKNOWLEDGED, released)]
    fake.answers["tasks/get"] = [DONE | {"taskId": "other"}, DONE]
    handles = [TaskHandle("other", fake.url), handle_of(fake)]
    async with asyncio.timeout(60), TaskClient(fake.url, policy=QUICK) as client:
        assert {seen.task_id async for seen in client.listen_tasks(handles)} == {"other", TASK_ID}
        released.set()


async def test_results_that_were_told_are_not_kept(fake: FakeServer) -> None:
    ids = ["first", "second", "third"]
    acknowledged = {"method": ACKNOWLEDGED["method"], "params": {"notifications": {"taskIds": ids}}}
    fake.answers["subscriptions/listen"] = [stream(acknowledged, *(told(DONE | {"taskId": one}) for one in ids), result={})]
    count = 0
    async with TaskClient(fake.url, policy=QUICK) as client:
        async for seen in client.listen_tasks([TaskHandle(one, fake.url) for one in ids]):
            count += 1
            snapshots = (one for one in gc.get_objects() if isinstance(one, TaskSnapshot))
            assert [one for one in snapshots if one.task_id in ids] == [seen]  # and no other test's
    assert count == len(ids)


def lasting(message: dict[str, Any], released: asyncio.Event) -> Answer:
    """A stream that says one thing and lasts."""

    async def answer(request: web.Request, _asked: Asked) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: " + json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n\n")
        await released.wait()
        return response

    return answer
