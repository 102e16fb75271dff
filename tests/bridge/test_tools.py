"""`tools/list` and `tools/call`. Contract, sections 4, 10.1 to 10.7, 10.11, 10.21, 10.22."""

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from taskstore.v1 import types_pb2

from mcp_bridge.app import Bridge
from store_service.client import StoreError
from tests.bridge.client import TASKS, Answer, Client, client_of, headers_for, meta
from tests.bridge.fake_store import FakeTaskStore
from tests.conftest import bridge_on, started

TASKS_REQUIRED = {"requiredCapabilities": TASKS}
DONE = b'{"content":[{"type":"text","text":"done"}]}'


async def hold(client: Client, fake: FakeTaskStore, tool: str, **others: Any) -> tuple[asyncio.Task[Answer], str]:
    """Calls a tool that is held. Returns the call under way, and its task's id."""
    calling = asyncio.create_task(client.call(tool, **others))
    async with asyncio.timeout(10):
        await fake.watching.wait()
    return calling, list(fake.tasks)[-1]


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
    async with asyncio.timeout(5):
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
    async with asyncio.timeout(10):
        await fake.heard.wait()
    assert fake.attached == [(task_id, 10_000)]
    assert not fake.cancelled


async def test_a_call_that_is_held_long_tells_the_store_so(
    routes: Path, fake: FakeTaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_bridge.methods.held.HeldCalls.__init__.__kwdefaults__", {"renew_seconds": 0.001})
    async with started(bridge_on(routes, fake=fake)) as running, client_of(running) as client:
        calling, task_id = await hold(client, fake, "held")
        async with asyncio.timeout(10):
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


@pytest.mark.parametrize("where", ["header", "quoted", "meta", "both"])
async def test_a_repeated_call_with_its_key_finds_the_same_task(client: Client, fake: FakeTaskStore, where: str) -> None:
    key: dict[str, Any] = {}
    if where != "meta":
        key["Idempotency_Key"] = '"k-1"' if where == "quoted" else "k-1"
    if where in ("meta", "both"):
        key["meta_members"] = {"dev.tenure/idempotencyKey": "k-1"}
    answers = await asyncio.gather(*(client.call("task", {"a": 1}, tasks=True, **key) for _ in range(20)))
    assert len({answer.result["taskId"] for answer in answers}) == 1
    assert len(fake.tasks) == 1
    parts = b"".join(len(part).to_bytes(8, "big") + part for part in (b"dev", b"dev", b"k-1"))
    assert fake.created[0].request_id == hashlib.sha256(parts).hexdigest()


@pytest.mark.row("T16")
async def test_a_key_that_was_used_for_another_call_is_refused(client: Client, fake: FakeTaskStore) -> None:
    await client.call("task", {"secret": "a"}, tasks=True, Idempotency_Key="k")
    for answer in (
        await client.call("task", {"secret": "b"}, tasks=True, Idempotency_Key="k"),
        await client.call("either", {"secret": "a"}, tasks=True, Idempotency_Key="k"),
    ):
        assert (answer.status, answer.code) == (409, 40900)
        assert b'"a"' not in answer.body
    assert len(fake.tasks) == 1


async def test_calls_without_a_key_are_different_calls(client: Client, fake: FakeTaskStore) -> None:
    for _ in range(2):
        await client.call("task", tasks=True)
    assert len({request.request_id for request in fake.created}) == 2


@pytest.mark.parametrize(
    "key",
    [
        {"Idempotency_Key": ""},
        {"Idempotency_Key": "x" * 257},
        {"meta_members": {"dev.tenure/idempotencyKey": 5}},
        {"Idempotency_Key": "a", "meta_members": {"dev.tenure/idempotencyKey": "b"}},
    ],
)
async def test_a_bad_key_is_refused(client: Client, fake: FakeTaskStore, key: dict[str, Any]) -> None:
    assert (await client.call("task", tasks=True, **key)).code == -32602
    assert not fake.created


async def test_a_held_call_may_be_come_back_to_with_its_key(client: Client, fake: FakeTaskStore) -> None:
    calling, task_id = await hold(client, fake, "held", Idempotency_Key="k")
    assert fake.created[0].abandon_after_ms == 7_200_000
    calling.cancel()
    fake.watching.clear()
    again, same = await hold(client, fake, "held", Idempotency_Key="k")
    assert same == task_id
    await fake.complete(task_id, DONE)
    assert (await again).result["content"][0]["text"] == "done"
    assert not fake.attached


async def test_a_handle_for_a_task_that_was_held_before_keeps_it_alive(client: Client, fake: FakeTaskStore) -> None:
    calling, task_id = await hold(client, fake, "either", Idempotency_Key="k")
    answer = await client.call("either", tasks=True, Idempotency_Key="k")
    assert answer.result["taskId"] == task_id
    assert fake.attached == [(task_id, 0)]
    await fake.complete(task_id, DONE)
    await calling


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


@pytest.mark.row("T13")
@pytest.mark.must("L-16")
async def test_too_many_tasks_are_refused_with_the_time_to_wait(client: Client, fake: FakeTaskStore) -> None:
    fake.trouble = StoreError("m", reason="OUTSTANDING_LIMIT", retry_after_ms=1000)
    answer = await client.call("task", tasks=True)
    assert (answer.status, answer.code, answer.headers["Retry-After"]) == (429, 42900, "1")
