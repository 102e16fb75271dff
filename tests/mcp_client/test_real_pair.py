"""Against a store, a bridge and a worker that really run, and are really killed."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any

import pytest

from mcp_bridge.client import (
    HandleExpired,
    InputNeeded,
    InputRequest,
    Progress,
    ProtocolFailure,
    TaskCancelled,
    TaskClient,
    TaskFailed,
    TaskHandle,
    TaskSnapshot,
    ToolError,
    ToolResult,
)
from tests.pair import ROOT, Pair

RESUME = """
import asyncio, sys
from mcp_bridge.client import TaskClient, TaskHandle

async def resume() -> None:
    handle = TaskHandle.from_json(sys.stdin.read())
    async with TaskClient(handle.url) as client:
        print((await client.wait_task(handle)).text)

asyncio.run(resume())
"""
PATIENCE = timedelta(seconds=60)
CALLS = "tenure_bridge_calls_total"


@pytest.fixture
async def client(pair: Pair) -> AsyncIterator[TaskClient]:
    async with TaskClient(pair.url) as running:
        yield running


async def start(client: TaskClient, seconds: float, label: str = "work") -> TaskHandle:
    outcome = await client.call_tool_outcome("slow_compute", {"seconds": seconds, "label": label})
    assert isinstance(outcome, TaskHandle)
    return outcome


async def test_it_learns_what_the_bridge_is_and_which_tools_it_has(client: TaskClient) -> None:
    discovery = await client.discover()
    assert discovery.supported_versions == ["2026-07-28"]
    assert "io.modelcontextprotocol/tasks" in discovery.capabilities["extensions"]
    assert {"greet", "slow_compute"} <= {tool.name for tool in await client.list_tools()}


async def test_a_call_is_held_or_becomes_a_task_and_the_caller_need_not_know(client: TaskClient) -> None:
    held = await client.call_tool_outcome("greet", {"name": "Ann"})
    assert isinstance(held, ToolResult)
    assert held.text == "Hello, Ann!"
    assert (await client.call_tool("slow_compute", {"seconds": 0.1, "label": "x"})).text == "x took 0.1 s"


async def test_a_client_that_does_not_declare_tasks_is_held(pair: Pair) -> None:
    async with TaskClient(pair.url, capabilities={}) as plain:
        assert isinstance(await plain.call_tool_outcome("slow_compute", {"seconds": 0}), ToolResult)
        with pytest.raises(ProtocolFailure) as raised:
            await plain.call_tool("failing_job")
    assert raised.value.code == -32021


async def test_the_wait_outlives_a_bridge_that_is_killed_and_started_again(pair: Pair, client: TaskClient) -> None:
    handle = await start(client, 3, "survivor")
    looked = asyncio.Event()
    waiting = asyncio.create_task(client.wait_task(handle, deadline=PATIENCE, on_change=lambda _: looked.set()))
    await looked.wait()
    pair.bridge.kill()
    with contextlib.suppress(TimeoutError):  # the bridge is away until the wait is still there a moment later
        await asyncio.wait_for(asyncio.shield(waiting), 0.5)
    assert not waiting.done()
    await asyncio.to_thread(pair.start_bridge)
    assert (await waiting).text == "survivor took 3 s"


@pytest.mark.must("CT-05")
async def test_a_handle_is_resumed_in_another_process(client: TaskClient) -> None:
    handle = await start(client, 1, "elsewhere")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", RESUME], input=handle.to_json(), env=environment, text=True, capture_output=True
    )
    assert done.stdout == "elsewhere took 1 s\n", done.stderr


async def test_the_same_call_under_the_same_key_is_one_task(client: TaskClient) -> None:
    arguments = {"seconds": 0.5, "label": "once"}
    first, second = [await client.call_tool_outcome("slow_compute", arguments, idempotency_key="once") for _ in range(2)]
    assert first == second
    with pytest.raises(ProtocolFailure) as raised:
        await client.call_tool_outcome("slow_compute", {"seconds": 0}, idempotency_key="once")
    assert raised.value.code == 40900


@pytest.mark.must("CT-07")
async def test_questions_are_answered_in_a_held_call_and_in_a_task_and_before_one(pair: Pair) -> None:
    asked: list[str] = []

    async def answer(key: str, request: InputRequest) -> Mapping[str, Any]:
        asked.append(key)
        properties = request.params["requestedSchema"]["properties"]
        values = {"boolean": True, "string": "Ann"}
        return {"action": "accept", "content": {name: values[kind["type"]] for name, kind in properties.items()}}

    handlers = {"elicitation/create": answer}
    async with TaskClient(pair.url, handlers=handlers, capabilities={"elicitation": {}}) as plain:
        assert (await plain.call_tool("test_input_required_result_multi_round")).text == "Both were answered"
    assert asked == ["step1", "step2"]
    async with TaskClient(pair.url, handlers=handlers) as client:
        assert (await client.call_tool("confirm_delete", {"filename": "a"})).text == "Deleted a"
        assert (await client.call_tool("multi_input")).text == "Both were answered"
        assert (await client.call_tool("test_tool_with_task")).text == "Hello, Ann!"
    assert sorted(asked[2:]) == ["confirm", "confirm", "name", "user_name"]


async def test_a_question_is_answered_by_whoever_holds_the_handle(pair: Pair) -> None:
    capabilities: dict[str, Any] = {"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
    async with TaskClient(pair.url, capabilities=capabilities) as client:
        with pytest.raises(InputNeeded) as raised:
            await client.call_tool("confirm_delete", {"filename": "a"})
        handle = raised.value.handle
        assert handle is not None
        await client.update_task(handle, {key: {"action": "decline"} for key in raised.value.requests})
        assert (await client.wait_task(handle, deadline=PATIENCE)).text == "Kept a"


async def test_progress_of_a_held_call_is_told(pair: Pair) -> None:
    seen: list[Progress] = []
    async with TaskClient(pair.url, capabilities={}) as plain:
        assert (await plain.call_tool("test_tool_with_progress", progress=seen.append)).text == "done"
    assert [(progress.progress, progress.total) for progress in seen] == [(0, 100), (50, 100), (100, 100)]


async def test_a_task_is_cancelled(client: TaskClient) -> None:
    handle = await start(client, 60)
    await client.cancel_task(handle)
    with pytest.raises(TaskCancelled):
        await client.wait_task(handle, deadline=PATIENCE)
    await client.cancel_task(handle)
    assert (await client.get_task(handle)).status == "cancelled"


async def test_a_tool_error_and_a_protocol_failure_are_told_apart(client: TaskClient) -> None:
    with pytest.raises(ToolError, match="This job always fails"):
        await client.call_tool("failing_job")
    with pytest.raises(TaskFailed, match="protocol error") as raised:
        await client.call_tool("protocol_error_job")
    assert raised.value.code == -32603
    with pytest.raises(ToolError, match="Invalid arguments"):
        await client.call_tool("greet", {})
    with pytest.raises(ProtocolFailure, match="unknown tool"):
        await client.call_tool("nothing_like_it")


async def test_a_handle_that_is_none_is_expired(pair: Pair, client: TaskClient) -> None:
    stranger = TaskHandle("00000000-0000-4000-8000-000000000000", pair.url)
    for looking in (client.get_task(stranger), client.wait_task(stranger), client.update_task(stranger, {})):
        with pytest.raises(HandleExpired):
            await looking


async def test_many_tasks_are_listened_to_until_all_have_ended_over_one_stream(pair: Pair, client: TaskClient) -> None:
    handles = [await start(client, seconds) for seconds in (0.2, 0.6)]
    before = {method: pair.figure(CALLS, method=method) for method in ("subscriptions/listen", "tasks/get")}
    last: dict[str, TaskSnapshot] = {}
    async for snapshot in client.listen_tasks(handles):
        last[snapshot.task_id] = snapshot
    assert {task_id: snapshot.status for task_id, snapshot in last.items()} == {
        handle.task_id: "completed" for handle in handles
    }
    result = last[handles[0].task_id].result
    assert result is not None
    assert result.text == "work took 0.2 s"
    async with asyncio.timeout(PATIENCE.total_seconds()):
        while (told := pair.figure(CALLS, method="subscriptions/listen")) == before["subscriptions/listen"]:
            await asyncio.sleep(0.01)  # it is counted once it has ended
    assert told == before["subscriptions/listen"] + 1
    assert pair.figure(CALLS, method="tasks/get") == before["tasks/get"], "nothing is looked for that is told"


async def test_listening_goes_on_when_the_bridge_is_killed_and_when_it_is_stopped(pair: Pair, client: TaskClient) -> None:
    handles = [await start(client, 60, f"job {number}") for number in range(3)]
    seen: asyncio.Queue[TaskSnapshot] = asyncio.Queue()

    async def listen() -> None:
        async for snapshot in client.listen_tasks(handles):
            seen.put_nowait(snapshot)

    async def cancelled(handle: TaskHandle) -> TaskSnapshot:
        """What is told until the task has ended."""
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while (snapshot := await seen.get()).task_id != handle.task_id or not snapshot.is_terminal:
                assert not snapshot.is_terminal
        return snapshot

    listening = asyncio.create_task(listen())
    for handle in handles:
        while (await asyncio.wait_for(seen.get(), PATIENCE.total_seconds())).task_id != handle.task_id:
            pass
    for handle, end in zip(handles, (pair.bridge.kill, pair.bridge.stop, None), strict=True):
        if end is not None:
            await asyncio.to_thread(end)
            await asyncio.to_thread(pair.start_bridge)
        async with TaskClient(pair.url) as other:
            await other.cancel_task(handle)
        assert (await cancelled(handle)).status == "cancelled"
    await asyncio.wait_for(listening, PATIENCE.total_seconds())
    assert seen.empty()


async def test_what_a_task_asks_is_told_and_its_answer_goes_on_in_the_same_stream(pair: Pair) -> None:
    capabilities: dict[str, Any] = {"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
    async with TaskClient(pair.url, capabilities=capabilities) as client, asyncio.timeout(PATIENCE.total_seconds()):
        handle = await client.call_tool_outcome("confirm_delete", {"filename": "a"})
        assert isinstance(handle, TaskHandle)
        states: list[str] = []
        async for snapshot in client.listen_tasks([handle]):
            states.append(snapshot.status)
            if snapshot.status == "input_required":
                answers = {key: {"action": "accept", "content": {"confirm": True}} for key in snapshot.input_requests}
                await client.update_task(handle, answers)
        assert snapshot.result is not None
        assert snapshot.result.text == "Deleted a"
    assert list(dict.fromkeys(state for state in states if state != "working")) == ["input_required", "completed"]


async def test_more_tasks_than_one_stream_may_have_are_listened_to(pair: Pair, client: TaskClient) -> None:
    handles = await asyncio.gather(*(start(client, 0) for _ in range(101)))
    async with asyncio.timeout(PATIENCE.total_seconds()):
        ended = {snapshot.task_id async for snapshot in client.listen_tasks(handles) if snapshot.is_terminal}
    assert ended == {handle.task_id for handle in handles}
