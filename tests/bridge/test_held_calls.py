"""Calls of tools that are held, and how their holding ends. Contract, sections 10.2 to 10.4, 10.11."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from taskstore.v1 import types_pb2

from mcp_bridge.app import Bridge
from store_service.client import StoreError
from tests.bridge.client import Client, client_of
from tests.bridge.fake_store import FakeTaskStore
from tests.bridge.holding import DONE, hold
from tests.conftest import bridge_on, started


async def test_a_held_call_that_fails_is_answered_with_its_error(client: Client, fake: FakeTaskStore) -> None:
    calling, task_id = await hold(client, fake, "held", request_id=0)
    await fake.fail(task_id, -32603, "out of paper", b'{"tray":2}')
    answer = await calling
    assert answer.status == 200
    assert answer.json == {"jsonrpc": "2.0", "id": 0, "error": {"code": -32603, "message": "out of paper", "data": {"tray": 2}}}


async def test_a_held_call_that_was_cancelled_says_so(client: Client, fake: FakeTaskStore) -> None:
    calling, task_id = await hold(client, fake, "held")
    await fake._end(fake.tasks[task_id], types_pb2.TASK_STATE_CANCELLED)
    assert (await calling).result["content"] == [{"type": "text", "text": "cancelled"}]


@pytest.mark.must("C-05")
async def test_a_call_that_takes_too_long_ends_with_its_work(client: Client, fake: FakeTaskStore) -> None:
    result = (await client.call("hasty")).result
    assert result["isError"] is True
    assert result["content"][0]["text"] == "timed out after 0.01 s"
    assert fake.cancelled == list(fake.tasks)


async def test_a_call_that_takes_too_long_leaves_work_that_may_go_on(client: Client, fake: FakeTaskStore) -> None:
    assert (await client.call("loose")).result["isError"] is True
    assert not fake.cancelled
    assert fake.created[0].abandon_after_ms == 0


@pytest.mark.must("C-06")
async def test_work_that_ended_as_its_call_ran_out_is_answered_with(
    client: Client, fake: FakeTaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel = fake.cancel_task

    async def late(request: Any, **others: Any) -> Any:
        await fake.complete(request.task_id, DONE)
        return await cancel(request, **others)

    monkeypatch.setattr(fake, "cancel_task", late)
    assert (await client.call("hasty")).result["content"][0]["text"] == "done"


@pytest.mark.row("H16")
@pytest.mark.must("C-03")
@pytest.mark.parametrize("answer_was_lost", [False, True])
async def test_a_client_that_leaves_starts_the_grace_and_cancels_nothing(
    client: Client, fake: FakeTaskStore, monkeypatch: pytest.MonkeyPatch, answer_was_lost: bool
) -> None:
    if answer_was_lost:  # the store's client then repeats the creation, and finds it done
        create = fake.create_task

        async def twice(request: Any, **others: Any) -> Any:
            await create(request, **others)
            return await create(request, **others)

        monkeypatch.setattr(fake, "create_task", twice)
    calling, task_id = await hold(client, fake, "held")
    assert fake.created[0].abandon_after_ms == 30_000
    calling.cancel()
    async with asyncio.timeout(60):
        await fake.heard.wait()
    assert fake.attached == [(task_id, 10_000)]
    assert not fake.cancelled


async def test_a_call_that_is_held_long_tells_the_store_so(
    routes: Path, fake: FakeTaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_bridge.methods.held.HeldCalls.__init__.__kwdefaults__", {"renew_seconds": 0.001})
    async with started(bridge_on(routes, fake=fake)) as running, client_of(running) as client:
        calling, task_id = await hold(client, fake, "held")
        async with asyncio.timeout(60):
            await fake.heard.wait()
        await fake.complete(task_id, DONE)
        assert (await calling).status == 200
        assert fake.attached[0] == (task_id, 10_002)


async def test_a_bridge_that_stops_answers_held_calls_and_leaves_their_work(
    bridge: Bridge, client: Client, fake: FakeTaskStore
) -> None:
    calling, _ = await hold(client, fake, "once")
    stopping = asyncio.create_task(bridge.stop())
    answer = await calling
    assert (answer.status, answer.code, answer.headers["Connection"]) == (503, 50300, "close")
    await stopping
    assert not fake.cancelled
    with pytest.raises(aiohttp.ClientConnectorError):
        await client.ask("server/discover")


async def test_work_that_ends_within_the_inline_wait_is_answered_with(client: Client, fake: FakeTaskStore) -> None:
    calling, task_id = await hold(client, fake, "soon", tasks=True)
    await fake.complete(task_id, DONE)
    assert (await calling).result["content"][0]["text"] == "done"
    fake.watching.clear()
    calling, task_id = await hold(client, fake, "soon", tasks=True)
    await fake.fail(task_id, -32603, "no")
    assert (await calling).code == -32603
    fake.watching.clear()
    calling, task_id = await hold(client, fake, "soon", tasks=True)
    await fake._end(fake.tasks[task_id], types_pb2.TASK_STATE_CANCELLED)
    assert (await calling).result["status"] == "cancelled"


async def test_work_that_does_not_is_given_out_and_then_never_abandoned(client: Client, fake: FakeTaskStore) -> None:
    result = (await client.call("at_once", tasks=True)).result
    assert result["resultType"] == "task"
    assert fake.created[0].abandon_after_ms > 0
    assert fake.attached == [(result["taskId"], 0)]


async def test_no_handle_is_given_out_that_the_store_might_abandon(
    client: Client, fake: FakeTaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise StoreError("away")

    monkeypatch.setattr(fake, "attach_task", refuse)
    assert (await client.call("at_once", tasks=True)).code == 50300
