"""Clients that nobody here wrote call, poll and cancel: PyPI `mcp` and `fastmcp`."""

import asyncio
from typing import Any, ClassVar, Literal

import fastmcp_tasks
import mcp_types
import pytest
from fastmcp import Client as FastClient
from fastmcp.exceptions import ToolError
from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from pydantic import ConfigDict, Field

from tests.pair import Pair

TERMINAL = ("completed", "failed", "cancelled")


class Task(mcp_types.Result):
    """A task, as the official client's extension mechanism reads it."""

    model_config = ConfigDict(populate_by_name=True)
    task_id: str = Field(alias="taskId")
    status: str
    poll_interval_ms: int | None = Field(default=None, alias="pollIntervalMs")
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class Created(Task):
    """The answer to a call that became a task."""

    result_type: Literal["task"] = Field(alias="resultType")


class TaskParams(mcp_types.RequestParams):
    """What `tasks/get` and `tasks/cancel` are given."""

    task_id: str = Field(serialization_alias="taskId")


class GetTask(mcp_types.Request[TaskParams, Literal["tasks/get"]]):
    """`tasks/get`."""

    name_param: ClassVar[str | None] = "taskId"
    method: Literal["tasks/get"] = "tasks/get"
    params: TaskParams


class CancelTask(mcp_types.Request[TaskParams, Literal["tasks/cancel"]]):
    """`tasks/cancel`."""

    name_param: ClassVar[str | None] = "taskId"
    method: Literal["tasks/cancel"] = "tasks/cancel"
    params: TaskParams


async def never(created: Created, context: ClaimContext) -> mcp_types.CallToolResult:
    raise AssertionError("the test drives the task itself")


class Tasks(ClientExtension):
    """Declares the Tasks extension to the official client."""

    identifier = "io.modelcontextprotocol/tasks"

    def claims(self) -> tuple[ResultClaim[Any], ...]:
        return (ResultClaim(result_type="task", model=Created, resolve=never),)


async def settled(client: Client, task_id: str) -> Task:
    """Polls as told until the task has ended."""
    async with asyncio.timeout(30):
        while True:
            task = await client.session.send_request(GetTask(params=TaskParams(task_id=task_id)), Task)
            if task.status in TERMINAL:
                return task
            await asyncio.sleep((task.poll_interval_ms or 1000) / 1000)  # the interval that the server asked for


async def test_the_official_client_calls_a_tool_as_a_task_and_polls_it(fixture_pair: Pair) -> None:
    async with Client(fixture_pair.url, extensions=[Tasks()]) as client:
        arguments = {"seconds": 1, "label": "one"}
        created = await client.session.call_tool("slow_compute", arguments, allow_claimed=True)
        assert isinstance(created, Created)
        assert created.status == "working"
        task = await settled(client, created.task_id)
    assert task.status == "completed"
    assert task.result is not None
    assert task.result["content"][0]["text"] == "one took 1 s"


async def test_the_official_client_cancels_a_task(fixture_pair: Pair) -> None:
    async with Client(fixture_pair.url, extensions=[Tasks()]) as client:
        created = await client.session.call_tool("slow_compute", {"seconds": 60, "label": "long"}, allow_claimed=True)
        assert isinstance(created, Created)
        await client.session.send_request(CancelTask(params=TaskParams(task_id=created.task_id)), mcp_types.Result)
        task = await settled(client, created.task_id)
    assert task.status == "cancelled"


async def test_the_official_client_without_tasks_gets_the_plain_result_of_a_held_call(fixture_pair: Pair) -> None:
    async with Client(fixture_pair.url) as client:
        tools = await client.list_tools()
        assert "greet" in [tool.name for tool in tools.tools]
        result = await client.call_tool("greet", {"name": "Ann"})
    assert isinstance(result.content[0], mcp_types.TextContent)
    assert result.content[0].text == "Hello, Ann!"


async def test_fastmcp_calls_polls_and_cancels(fixture_pair: Pair) -> None:
    async with FastClient(fixture_pair.url) as client:
        result = await client.call_tool("slow_compute", {"seconds": 1, "label": "fast"})
        assert result.content[0].text == "fast took 1 s"
        task = await fastmcp_tasks.call_tool_task(client, "slow_compute", {"seconds": 60, "label": "long"})
        assert (await task.status()).status == "working"
        await task.cancel()
        assert (await task.wait(timeout=15)).status == "cancelled"
        with pytest.raises(ToolError):
            await client.call_tool("protocol_error_job", {})
