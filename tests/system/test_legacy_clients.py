"""The official client as its earlier revisions spoke: `initialize`, a session, progress, a cancel."""

import asyncio
import json

import mcp_types
from mcp import Client
from taskstore.v1 import tasks_pb2, types_pb2

from store_service.client import TaskStore
from tests.pair import Pair


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
