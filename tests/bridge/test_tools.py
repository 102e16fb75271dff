"""`tools/list` and `tools/call`. Contract, sections 4, 10.1 to 10.7, 10.11, 10.21, 10.22."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from store_service.client import StoreError
from tests.bridge.client import TASKS, Client, client_of, headers_for, meta
from tests.bridge.fake_store import FakeTaskStore
from tests.bridge.holding import DONE, hold
from tests.conftest import bridge_on, started

TASKS_REQUIRED = {"requiredCapabilities": TASKS}


@pytest.mark.row("H23")
@pytest.mark.must("K-01", "K-02", "K-04", "L-02", "L-04")
async def test_tools_are_listed_in_the_order_of_the_file_with_their_cache_hints(client: Client) -> None:
    result = (await client.ask("tools/list")).result
    assert [tool["name"] for tool in result["tools"]][:3] == ["held", "either", "task"]
    assert (result["resultType"], result["cacheScope"]) == ("complete", "private")
    assert result["ttlMs"] >= 0
    assert "nextCursor" not in result


@pytest.mark.must("D-01", "D-02", "K-01", "K-02", "L-01", "V-02")
async def test_discovery_says_what_is_served_and_nothing_else(client: Client) -> None:
    result = (await client.ask("server/discover")).result
    assert result["supportedVersions"] == ["2026-07-28"]
    assert result["capabilities"] == {"tools": {"listChanged": True}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
    assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "tenure"
    assert (result["resultType"], result["cacheScope"]) == ("complete", "public")


@pytest.fixture
async def many(tmp_path: Path, fake: FakeTaskStore) -> AsyncIterator[Client]:
    """A client of a bridge with 401 tools."""
    tools = [{"name": f"t{n}", "workflow": "w", "task": "never", "input_schema": {"type": "object"}} for n in range(401)]
    path = tmp_path / "many.yaml"
    path.write_text(json.dumps({"version": 1, "tenants": {"dev": {"tools": tools}}}))
    async with started(bridge_on(path, fake=fake)) as running, client_of(running) as client:
        yield client


@pytest.mark.must("G-01", "K-03")
async def test_a_long_list_is_told_in_pages_of_two_hundred(many: Client) -> None:
    names, cursor, sizes, scopes = [], None, [], set()
    while True:
        result = (await many.ask("tools/list", {} if cursor is None else {"cursor": cursor})).result
        names += [tool["name"] for tool in result["tools"]]
        sizes.append(len(result["tools"]))
        scopes.add(result["cacheScope"])
        if (cursor := result.get("nextCursor")) is None:
            break
    assert (sizes, scopes) == ([200, 200, 1], {"private"})
    assert names == [f"t{n}" for n in range(401)]


@pytest.mark.must("G-02", "G-03")
@pytest.mark.parametrize("cursor", ["", "x", "dG9vbHM6MA==", "dG9vbHM6MTAw", "dG9vbHM6ODAw", 200, "\u00e9", "dG9vbHM6MjAw!"])
async def test_a_cursor_that_was_never_given_is_refused(many: Client, cursor: Any) -> None:
    answer = await many.ask("tools/list", {"cursor": cursor})
    assert (answer.status, answer.code) == (400, -32602)
    assert base64.urlsafe_b64decode("dG9vbHM6MjAw") == b"tools:200"


@pytest.mark.row("T1")
@pytest.mark.must("B-30", "T-01", "T-02", "T-04", "T-05", "V-04")
@pytest.mark.parametrize(
    ("tool", "declares", "comes_as"),
    [
        ("task", True, "task"),
        ("either", True, "task"),
        ("held", True, "result"),
        ("task", False, "refusal"),
        ("either", False, "result"),
        ("held", False, "result"),
    ],
)
async def test_route_and_client_together_decide_how_a_tool_runs(
    client: Client, fake: FakeTaskStore, tool: str, declares: bool, comes_as: str
) -> None:
    if comes_as == "result":
        calling, task_id = await hold(client, fake, tool, tasks=declares)
        await fake.complete(task_id, DONE)
        result = (await calling).result
        assert result["resultType"] == "complete"
        assert result["content"] == [{"type": "text", "text": "done"}]
        assert "taskId" not in result
        return
    answer = await client.call(tool, tasks=declares)
    if comes_as == "refusal":
        assert (answer.status, answer.code) == (400, -32021)
        assert answer.json["error"]["data"] == TASKS_REQUIRED
        assert not fake.created
    else:
        assert answer.result["resultType"] == "task"


@pytest.mark.row("T2")
@pytest.mark.must("T-04", "T-07")
async def test_a_created_task_is_flat_and_committed_before_it_is_told(client: Client, fake: FakeTaskStore) -> None:
    result = (await client.call("task", {"a": 1}, tasks=True)).result
    assert set(result) == {"resultType", "_meta", "taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs"}
    assert (result["status"], result["ttlMs"], result["pollIntervalMs"]) == ("working", 7_200_000, 2_000)
    assert result["taskId"] in fake.tasks
    assert fake.created[0].abandon_after_ms == 0


async def test_the_contract_goes_with_the_task(client: Client, fake: FakeTaskStore) -> None:
    capabilities = {**TASKS, "elicitation": {}, "sampling": {"tools": {}}}
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await client.call("strict", {"dry": False}, capabilities=capabilities, Mcp_Param_Dry="false", traceparent=trace)
    (request,) = fake.created
    contract = request.contract
    assert (contract.tool, contract.workflow, contract.workflow_version) == ("strict", "w", 3)
    assert (contract.owner.issuer, contract.owner.subject, request.tenant_id) == ("dev", "dev", "dev")
    assert json.loads(contract.client_capabilities) == capabilities
    assert contract.output_schema == b'{"type":"object"}'
    assert (contract.ttl_ms, contract.execution_deadline_ms, request.priority) == (3_600_000, 600_000, 7)
    assert contract.trace_parent == trace


@pytest.mark.parametrize(
    "arguments",
    [
        b'{ "b" : 1.0,  "a":[1e2 , -0, 12345678901234567890123] }',
        b'{"a":"\\u0000\\u00e9\\/"}',
        b"{}",
        b'{"n":' + b"7" * 640 + b"}",
        b'{"a":"' + "é\u2028😀".encode() + b'"}',
    ],
)
async def test_arguments_reach_the_store_byte_for_byte(client: Client, fake: FakeTaskStore, arguments: bytes) -> None:
    meta_json = json.dumps(meta(TASKS)).encode()
    body = (
        b'{"params":{"arguments": '
        + arguments
        + b' ,"name":"task","_meta":'
        + meta_json
        + b'},"method":"tools/call","id":1,"jsonrpc":"2.0"}'
    )
    assert (await client.send(body, headers_for("tools/call", "task"))).status == 200
    assert fake.created[0].input.data == arguments
    assert fake.created[0].contract.client_capabilities == json.dumps(TASKS).encode()


async def test_a_call_without_arguments_has_none(client: Client, fake: FakeTaskStore) -> None:
    assert (await client.ask("tools/call", {"name": "task"}, name="task", capabilities=TASKS)).status == 200
    assert fake.created[0].input.data == b"{}"


@pytest.mark.must("B-06", "R-14")
@pytest.mark.parametrize(
    "changes",
    [
        {"name": None},
        {"name": 5},
        {"arguments": []},
        {"arguments": None},
        {"arguments": "{}"},
        {"inputResponses": []},
        {"requestState": 5},
        {"requestState": "forged"},
    ],
)
async def test_parameters_of_another_shape_are_refused(client: Client, fake: FakeTaskStore, changes: dict[str, Any]) -> None:
    answer = await client.ask("tools/call", {"name": "task", **changes}, name="task", capabilities=TASKS)
    assert (answer.status, answer.code) == (400, -32602)
    assert not fake.created


@pytest.mark.must("P-01")
@pytest.mark.parametrize("token", [None, 1.5, True, {}, "x" * 257])
async def test_a_progress_token_is_a_short_string_or_an_integer(client: Client, token: Any) -> None:
    """It is told again with each report: a long one would be many times as much."""
    assert (await client.call("task", tasks=True, meta_members={"progressToken": token})).code == -32602
    for right in (0, "", "x" * 256):
        assert (await client.call("task", tasks=True, meta_members={"progressToken": right})).status == 200


async def test_early_answers_and_the_legacy_task_parameter_are_ignored(client: Client) -> None:
    params = {"name": "task", "arguments": {}, "inputResponses": {"x": 1}, "task": {"ttl": 5, "pollInterval": "?"}}
    assert (await client.ask("tools/call", params, name="task", capabilities=TASKS)).result["resultType"] == "task"


@pytest.mark.must("L-13")
@pytest.mark.parametrize("tool", ["nothing", "Task", "", "x" * 5000, "ta\u0000sk"])
async def test_an_unknown_tool_is_refused(client: Client, tool: str) -> None:
    name = f"=?base64?{base64.b64encode(tool.encode()).decode()}?="
    answer = await client.ask("tools/call", {"name": tool}, name=name)
    assert (answer.status, answer.code, answer.json["error"]["message"]) == (400, -32602, "Invalid params: unknown tool")


@pytest.mark.must("H-22", "H-28", "H-36")
@pytest.mark.parametrize(
    ("name", "status"), [(None, 400), ("TASK", 400), ("=?base64?dGFzaw==?=", 200), ("=?base64?dGFza?=", 400)]
)
async def test_the_name_in_the_header_is_that_of_the_tool(client: Client, name: str | None, status: int) -> None:
    answer = await client.ask("tools/call", {"name": "task"}, name=name, capabilities=TASKS)
    assert answer.status == status
    assert status == 200 or answer.code == -32020


@pytest.mark.row("H24")
@pytest.mark.must("L-13", "L-14")
@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"region": 5}, "arguments.region: 5 is not of type"),
        ({"items": ["a", 1]}, "arguments.items[1]: 1 is not of type"),
        ({"what": 1}, "arguments: Additional properties"),
        ({"limits": {"most": 10**30}, "items": [10**30]}, f"arguments.items[0]: {10**30} is not of type"),
    ],
)
async def test_invalid_arguments_are_told_so_that_a_model_can_mend_them(
    client: Client, fake: FakeTaskStore, arguments: Any, path: str
) -> None:
    mirrored = {"Mcp_Param_Region": "5", "Mcp_Param_Most": str(10**30)}
    mirrored = {
        key: value
        for key, value in mirrored.items()
        if {"Mcp_Param_Region": "region", "Mcp_Param_Most": "limits"}[key] in arguments
    }
    result = (await client.call("strict", arguments, tasks=True, **mirrored)).result
    assert result["isError"] is True
    assert result["resultType"] == "complete"
    assert path in result["content"][0]["text"]
    assert not fake.created


async def test_a_fault_in_large_arguments_is_told_in_few_words(client: Client) -> None:
    answer = await client.call("strict", {"items": [1] * 100_000, "code": "a" * 500_000 + "b"}, tasks=True)
    assert answer.result["isError"] is True
    assert len(answer.body) < 1000


@pytest.mark.row("H24")
@pytest.mark.must("B-26")
async def test_a_regular_expression_takes_linear_time(client: Client) -> None:
    async with asyncio.timeout(60):
        assert (await client.call("strict", {"code": "a" * 500_000 + "b"}, tasks=True)).result["isError"] is True


async def test_arguments_of_a_mebibyte_are_taken_and_larger_ones_told(client: Client, fake: FakeTaskStore) -> None:
    room = 1024 * 1024 - len('{"a": ""}')
    assert (await client.call("task", {"a": "x" * room}, tasks=True)).result["resultType"] == "task"
    assert (await client.call("task", {"a": "x" * (room + 1)}, tasks=True)).result["isError"] is True
    assert len(fake.created) == 1


@pytest.mark.row("H14")
@pytest.mark.must("B-30")
async def test_a_route_names_what_it_requires_of_a_client(client: Client, fake: FakeTaskStore) -> None:
    answer = await client.call("sampler")
    assert (answer.status, answer.code) == (400, -32021)
    assert answer.json["error"]["data"] == {"requiredCapabilities": {"sampling": {}}}
    calling, task_id = await hold(client, fake, "sampler", capabilities={"sampling": {}})
    await fake.complete(task_id, DONE)
    assert (await calling).status == 200


async def test_capabilities_are_bounded(client: Client, fake: FakeTaskStore) -> None:
    answer = await client.call("task", capabilities={**TASKS, "experimental": {"x": {"y": "z" * 70_000}}})
    assert answer.code == -32602
    assert not fake.created


@pytest.mark.row("T13")
@pytest.mark.must("L-16")
async def test_too_many_tasks_are_refused_with_the_time_to_wait(client: Client, fake: FakeTaskStore) -> None:
    fake.trouble = StoreError("m", reason="OUTSTANDING_LIMIT", retry_after_ms=1000)
    answer = await client.call("task", tasks=True)
    assert (answer.status, answer.code, answer.headers["Retry-After"]) == (429, 42900, "1")
