"""The official client as its earlier revisions spoke: `initialize`, a session, progress, a cancel; and over standard input
and output, in both eras."""

import asyncio
import json
import sys
from typing import Literal

import mcp_types
import pytest
from mcp import Client, StdioServerParameters
from taskstore.v1 import tasks_pb2, types_pb2

from store_service.client import TaskStore
from tests.pair import ROOT, Pair
from tests.system.conftest import FIXTURE_ROUTES


async def state_of_the_last_task(store: TaskStore, workflow: str) -> types_pb2.TaskState.ValueType:
    listed = await store.list_tasks(tasks_pb2.ListTasksRequest(tenant_id="dev", workflow=workflow, page_size=1))
    return listed.tasks[0].state if listed.tasks else types_pb2.TASK_STATE_UNSPECIFIED


async def until_it_is(store: TaskStore, workflow: str, *states: types_pb2.TaskState.ValueType) -> None:
    async with asyncio.timeout(30):
        while await state_of_the_last_task(store, workflow) not in states:
            await asyncio.sleep(0.05)  # what a worker in another process does, no event tells here


async def test_the_official_client_in_its_legacy_mode_calls_a_tool_with_progress(fixture_pair: Pair) -> None:
    seen: list[float] = []

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    async with Client(fixture_pair.url, mode="legacy") as client:
        assert client.protocol_version == "2025-11-25"
        tools = [tool.name for tool in (await client.list_tools()).tools]
        assert "greet" in tools
        assert not {"required_task_tool", "confirm_delete"} & set(tools)
        result = await client.call_tool("test_tool_with_progress", progress_callback=progressed)
        assert not result.is_error
        greeting = await client.call_tool("greet", {"name": "Ann"})
    assert seen == sorted(seen)
    assert len(seen) == 3
    assert isinstance(greeting.content[0], mcp_types.TextContent)
    assert greeting.content[0].text == "Hello, Ann!"


async def test_the_official_client_in_its_legacy_mode_cancels_a_call(fixture_pair: Pair) -> None:
    async with TaskStore.connect(fixture_pair.store_address) as store, Client(fixture_pair.url, mode="legacy") as client:
        calling = asyncio.create_task(client.call_tool("slow_compute", {"seconds": 60, "label": "legacy"}))
        await until_it_is(store, "slow_compute", types_pb2.TASK_STATE_LEASED)
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        await until_it_is(store, "slow_compute", types_pb2.TASK_STATE_CANCELLED)
        listed = await store.list_tasks(tasks_pb2.ListTasksRequest(tenant_id="dev", workflow="slow_compute", page_size=1))
        history = await store.list_task_history(
            tasks_pb2.ListTaskHistoryRequest(tenant_id="dev", task_id=listed.tasks[0].task_id)
        )
    assert "HISTORY_EVENT_CANCEL_REQUESTED" in json.dumps([tasks_pb2.HistoryEvent.Name(line.event) for line in history.lines])


def stdio(pair: Pair) -> StdioServerParameters:
    """How a desktop host starts a bridge."""
    settings = {"TENURE_BRIDGE_ROUTES": str(FIXTURE_ROUTES), "TENURE_BRIDGE_STORE": pair.store_address}
    return StdioServerParameters(command=sys.executable, args=["-m", "mcp_bridge", "stdio"], env=settings, cwd=ROOT)


@pytest.mark.parametrize(("mode", "version"), [("auto", "2026-07-28"), ("legacy", "2025-11-25")])
async def test_the_official_client_calls_and_cancels_over_standard_input_and_output(
    fixture_pair: Pair, mode: Literal["auto", "legacy"], version: str
) -> None:
    seen: list[float] = []

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    async with (
        TaskStore.connect(fixture_pair.store_address) as store,
        Client(stdio(fixture_pair), mode=mode) as client,
    ):
        assert client.protocol_version == version
        result = await client.call_tool("test_tool_with_progress", progress_callback=progressed)
        assert not result.is_error
        assert len(seen) == 3
        calling = asyncio.create_task(client.call_tool("slow_compute", {"seconds": 60, "label": mode}))
        await until_it_is(store, "slow_compute", types_pb2.TASK_STATE_LEASED)
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        greeting = await client.call_tool("greet", {"name": "Ann"})
        assert isinstance(greeting.content[0], mcp_types.TextContent)
        assert greeting.content[0].text == "Hello, Ann!"
        await until_it_is(store, "slow_compute", types_pb2.TASK_STATE_CANCELLED)  # its grace of 10 s later
