"""Clients that nobody here wrote call, poll, answer, cancel and listen: PyPI `mcp` and `fastmcp`."""

import asyncio
from importlib.metadata import version
from typing import Any, ClassVar, Literal

import fastmcp_tasks
import mcp_types
import pytest
from fastmcp import Client as FastClient
from fastmcp.exceptions import ToolError
from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.session import ClientRequestContext
from mcp.shared.subscriptions import ToolsListChanged
from pydantic import ConfigDict, Field

from tests.pair import Pair

TERMINAL = ("completed", "failed", "cancelled")
PATIENCE_SECONDS = 60
MODERN = "2026-07-28"
MISSING_NAMES = "tenure_bridge_missing_mcp_name_total"


class Task(mcp_types.Result):
    """A task, as the official client's extension mechanism reads it."""

    model_config = ConfigDict(populate_by_name=True)
    task_id: str = Field(alias="taskId")
    status: str
    poll_interval_ms: int | None = Field(default=None, alias="pollIntervalMs")


class Detailed(Task):
    """The answer to `tasks/get`."""

    input_requests: dict[str, Any] = Field(default={}, validation_alias="inputRequests")
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


class UpdateParams(TaskParams):
    """What `tasks/update` is given."""

    input_responses: dict[str, Any] = Field(serialization_alias="inputResponses")


class UpdateTask(mcp_types.Request[UpdateParams, Literal["tasks/update"]]):
    """`tasks/update`."""

    name_param: ClassVar[str | None] = "taskId"
    method: Literal["tasks/update"] = "tasks/update"
    params: UpdateParams


async def never(created: Created, context: ClaimContext) -> mcp_types.CallToolResult:
    raise AssertionError("the test drives the task itself")


class Tasks(ClientExtension):
    """Declares the Tasks extension to the official client."""

    identifier = "io.modelcontextprotocol/tasks"

    def claims(self) -> tuple[ResultClaim[Any], ...]:
        return (ResultClaim(result_type="task", model=Created, resolve=never),)


async def settled(client: Client, task_id: str, *statuses: str) -> Detailed:
    """Polls as told until the task has ended, or has one of `statuses`."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            task = await client.session.send_request(GetTask(params=TaskParams(task_id=task_id)), Detailed)
            if task.status in (*TERMINAL, *statuses):
                return task
            await asyncio.sleep((task.poll_interval_ms or 1000) / 1000)  # the interval that the server asked for


async def test_the_official_client_calls_a_tool_as_a_task_and_polls_it(fixture_pair: Pair) -> None:
    async with Client(fixture_pair.url, extensions=[Tasks()]) as client:
        arguments = {"seconds": 1, "label": "one"}
        created = await client.session.call_tool("slow_compute", arguments, allow_claimed=True)
        assert client.session.protocol_version == MODERN
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


async def asked(context: ClientRequestContext, params: mcp_types.ElicitRequestParams) -> mcp_types.ElicitResult:
    assert isinstance(params, mcp_types.ElicitRequestFormParams)
    return mcp_types.ElicitResult(action="accept", content={"name": "Ann", "confirm": True})


async def test_the_official_client_answers_the_questions_of_a_task_one_by_one(fixture_pair: Pair) -> None:
    async with Client(fixture_pair.url, extensions=[Tasks()], elicitation_callback=asked) as client:
        created = await client.session.call_tool("multi_input", {}, allow_claimed=True)
        assert isinstance(created, Created)
        answer = {"action": "accept", "content": {"name": "Ann", "confirm": True}}
        seen = []
        while (task := await settled(client, created.task_id, "input_required")).status == "input_required":
            seen.append(list(task.input_requests))
            params = UpdateParams(task_id=created.task_id, input_responses={seen[-1][0]: answer})
            await client.session.send_request(UpdateTask(params=params), mcp_types.Result)
    assert seen == [["name", "confirm"], ["confirm"]]
    assert task.status == "completed"


async def test_the_official_client_answers_what_a_held_call_asks(fixture_pair: Pair) -> None:
    async with Client(fixture_pair.url, elicitation_callback=asked) as client:
        result = await client.call_tool("test_input_required_result_elicitation", {})
    assert isinstance(result.content[0], mcp_types.TextContent)
    assert result.content[0].text == "Hello, Ann!"


async def test_the_official_client_without_tasks_gets_the_plain_result_of_a_held_call(fixture_pair: Pair) -> None:
    async with Client(fixture_pair.url) as client:
        tools = await client.list_tools()
        assert "greet" in [tool.name for tool in tools.tools]
        result = await client.call_tool("greet", {"name": "Ann"})
    assert isinstance(result.content[0], mcp_types.TextContent)
    assert result.content[0].text == "Hello, Ann!"


async def test_the_official_client_is_told_when_the_tools_change(fixture_pair: Pair) -> None:
    routes = fixture_pair.routes.read_text()
    async with Client(fixture_pair.url) as client, client.listen(tools_list_changed=True) as changes:
        assert changes.honored.tools_list_changed
        assert await greeting(client) == "Greets a person by name."
        try:
            for told in ("Greets anybody.", "Greets a person by name."):
                fixture_pair.routes.write_text(routes.replace("Greets a person by name.", told))
                async with asyncio.timeout(PATIENCE_SECONDS):
                    assert isinstance(await anext(changes), ToolsListChanged)
                assert await greeting(client) == told
        finally:
            fixture_pair.routes.write_text(routes)


async def greeting(client: Client) -> str | None:
    """What the tool `greet` is said to do."""
    return next(tool.description for tool in (await client.list_tools()).tools if tool.name == "greet")


async def confirmed(message: str, *others: object) -> dict[str, Any]:
    assert message
    return {"name": "Ann", "confirm": True}


async def test_fastmcp_calls_and_polls(fixture_pair: Pair) -> None:
    async with FastClient(fixture_pair.url) as client:
        result = await client.call_tool("slow_compute", {"seconds": 1, "label": "fast"})
        assert result.content[0].text == "fast took 1 s"
        with pytest.raises(ToolError, match="protocol error"):
            await client.call_tool("protocol_error_job", {})


@pytest.mark.parametrize("tool", ["confirm_delete", "multi_input", "test_tool_with_task"])
async def test_fastmcp_answers_the_questions_of_a_task_and_those_before_one(fixture_pair: Pair, tool: str) -> None:
    async with FastClient(fixture_pair.url, elicitation_handler=confirmed) as client:
        arguments = {"filename": "a"} if tool == "confirm_delete" else {}
        result = await client.call_tool(tool, arguments, timeout=PATIENCE_SECONDS)
    assert not result.is_error
    assert result.content[0].text in ("Deleted a", "Both were answered", "Hello, Ann!")


async def test_fastmcp_cancels_a_task(fixture_pair: Pair) -> None:
    async with FastClient(fixture_pair.url) as client:
        task = await fastmcp_tasks.call_tool_task(client, "slow_compute", {"seconds": 60, "label": "long"})
        assert (await task.status()).status == "working"
        await task.cancel()
        assert (await task.wait(timeout=PATIENCE_SECONDS)).status == "cancelled"


async def test_what_fastmcp_leaves_out_is_tolerated_and_counted(fixture_pair: Pair) -> None:
    """It sends no `Mcp-Name` with `tasks/*`, though the extension asks for it; the official client does."""
    before = fixture_pair.figure(MISSING_NAMES)
    async with Client(fixture_pair.url, extensions=[Tasks()]) as official:
        created = await official.session.call_tool("slow_compute", {"seconds": 0.1}, allow_claimed=True)
        assert isinstance(created, Created)
        await settled(official, created.task_id)
    assert fixture_pair.figure(MISSING_NAMES) == before
    async with FastClient(fixture_pair.url) as fast:
        await fast.call_tool("slow_compute", {"seconds": 0.1})
    assert version("fastmcp") == "4.1.4"
    assert fixture_pair.figure(MISSING_NAMES) > before, "it sends it now: TENURE_BRIDGE_STRICT_HEADERS may become the default"
