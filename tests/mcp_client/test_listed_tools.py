"""The tools that a server lists: all of them, as they are today; what they may be called with, and what they may answer."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from mcp_bridge.client import InvalidResult, ProtocolFailure, TaskClient, TaskHandle, ToolError, ToolRefused
from tests.mcp_client.conftest import QUICK
from tests.mcp_client.fake_server import TASK_ID, FakeServer, error, task, text, tools


@pytest.mark.must("CL-01")
async def test_results_keep_to_the_output_schema(fake: FakeServer) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    fake.answers["tools/list"] = [tools({"name": "work", "outputSchema": schema})]
    fake.answers["tools/call"] = [
        text("", structuredContent={"n": 2**80}), text("", structuredContent={"n": "1"}), text(""), text("", isError=True),
    ]  # fmt: skip
    async with TaskClient(fake.url, policy=QUICK) as client:
        assert (await client.call_tool("work")).structured_content == {"n": 2**80}
        with pytest.raises(InvalidResult, match="at /n"):
            await client.call_tool("work")
        with pytest.raises(InvalidResult, match="no structuredContent"):
            await client.call_tool("work")
        with pytest.raises(ToolError):
            await client.call_tool("work")


@pytest.mark.must("CB-06")
async def test_nothing_that_a_schema_refers_to_is_fetched(fake: FakeServer) -> None:
    connections = []
    async with await asyncio.start_server(lambda *connection: connections.append(connection), "127.0.0.1", 0) as elsewhere:
        port = elsewhere.sockets[0].getsockname()[1]
        schema = {"$ref": f"http://127.0.0.1:{port}/schema.json"}
        fake.answers["tools/list"] = [tools({"name": "work", "outputSchema": schema})]
        fake.answers["tools/call"] = [text("done", structuredContent={})]
        async with TaskClient(fake.url, policy=QUICK) as client:
            assert (await client.call_tool("work")).text == "done"
    assert connections == []


@pytest.mark.must("CK-01")
async def test_a_result_is_checked_by_the_tools_of_today_and_by_those_of_before_where_they_cannot_be_read(
    fake: FakeServer,
) -> None:
    def listing(name: str) -> dict[str, Any]:
        return tools({"name": "work", "outputSchema": {"type": "object", "required": [name]}}, ttlMs=0)

    away = error(50300, "away", status=503, Retry_After="60")
    fake.answers["tools/list"] = [listing("a"), listing("b"), away]
    fake.answers["tasks/get"] = [
        task("completed", result=text("", structuredContent={name: 1}), resultType="complete") for name in ("a", "b", "b", "a")
    ]
    handle = TaskHandle(TASK_ID, fake.url, "work")
    async with TaskClient(fake.url, policy=replace(QUICK, tools_seconds=0, request_seconds=0.1)) as client:
        for name in ("a", "b", "b"):
            assert (await client.wait_task(handle)).structured_content == {name: 1}
        with pytest.raises(InvalidResult, match='"b" is a required'):
            await client.wait_task(handle)


@pytest.mark.must("CG-01", "CH-05")
async def test_all_pages_of_tools_are_read_and_a_bad_one_is_set_apart(fake: FakeServer) -> None:
    bad = {"type": "object", "properties": {"a": {"type": "object", "x-mcp-header": "A"}}}
    fake.answers["tools/list"] = [
        tools({"name": "a"}, {"name": "bad", "inputSchema": bad}, nextCursor="2"),
        tools({"name": "b"}),
    ]
    async with TaskClient(fake.url, policy=QUICK) as client:
        assert [tool.name for tool in await client.list_tools()] == ["a", "b"]
        with pytest.raises(ToolRefused, match="bad is not called"):
            await client.call_tool("bad")
    assert [asked.params.get("cursor") for asked in fake.of("tools/list")] == [None, "2"]
    assert not fake.of("tools/call")


@pytest.mark.must("CH-06")
async def test_whoever_leaves_out_a_tool_says_which_and_why(fake: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    fake.answers["tools/list"] = [tools({"name": "bad\n", "inputSchema": {"type": "object", "x-mcp-header": "X"}})]
    async with TaskClient(fake.url, policy=QUICK) as client:
        assert await client.list_tools() == []
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "'bad\\n'" in record.getMessage()
    assert "x-mcp-header" in record.getMessage()


@pytest.mark.must("CG-01", "CK-02")
async def test_a_list_that_changes_between_its_pages_is_read_once_more(fake: FakeServer) -> None:
    bad = error(-32602, "Invalid params: cursor", status=400)
    fake.answers["tools/list"] = [tools({"name": "old"}, nextCursor=""), bad, tools({"name": "new"}, nextCursor="a"), bad]
    async with TaskClient(fake.url, policy=QUICK) as client:
        with pytest.raises(ProtocolFailure, match="cursor"):
            await client.list_tools()
        fake.answers["tools/list"] = [tools({"name": "old"}, nextCursor=""), bad, tools({"name": "new"})]
        assert [tool.name for tool in await client.list_tools()] == ["new"]


@pytest.mark.must("CH-09")
async def test_tools_that_changed_are_read_anew_once(fake: FakeServer) -> None:
    annotated = {"type": "object", "properties": {"r": {"type": "string", "x-mcp-header": "R"}}}
    fake.answers["tools/list"] = [tools({"name": "work"}), tools({"name": "work", "inputSchema": annotated})]
    mismatch = error(-32020, "Header mismatch", status=400)
    fake.answers["tools/call"] = [mismatch, text("done"), mismatch]
    async with TaskClient(fake.url, policy=QUICK) as client:
        assert (await client.call_tool("work", {"r": "eu"})).text == "done"
        with pytest.raises(ProtocolFailure, match="-32020"):
            await client.call_tool("work", {"r": "eu"})
    assert [asked.headers.get("Mcp-Param-R") for asked in fake.of("tools/call")] == [None, "eu", "eu", "eu"]
