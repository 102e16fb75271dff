"""Trials 1 to 15, over the whole pair: what a stranger may send, and what a worker may hand over."""

import base64
import json
import math
from typing import Any

import pytest
from taskstore.v1 import tasks_pb2, types_pb2

from mcp_bridge.app import Bridge
from store_service.client import Context, ProtocolError, ToolError
from tests.bridge.client import TASKS, Client, headers_for, meta
from tests.bridge.listening import SUBSCRIPTION_ID, listening
from tests.cases.work import TENANT, all_tasks, create, ended, shown, working
from tests.conftest import Stubs

CALL = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "work", "arguments": {}, "_meta": meta(TASKS)}}
HEADERS = headers_for("tools/call", "work")


def call_with(arguments: bytes, request_id: bytes = b"1") -> bytes:
    """A call whose arguments, and whose id, are these bytes."""
    params = b'{"name":"work","arguments":' + arguments + b',"_meta":' + json.dumps(meta(TASKS)).encode() + b"}"
    return b'{"jsonrpc":"2.0","id":' + request_id + b',"method":"tools/call","params":' + params + b"}"


@pytest.mark.parametrize("request_id", [None, 1.5, True, {}, []])
async def test_01_a_call_whose_id_is_none_does_nothing(user: Client, store: Stubs, request_id: Any) -> None:
    answer = await user.send({**CALL, "id": request_id}, HEADERS)
    assert (answer.status, answer.code, "id" in answer.json) == (400, -32600, False)
    assert await all_tasks(store) == []


async def test_02_falsy_ids_are_ids_and_are_not_mixed_up(user: Client, store: Stubs, bridge: Bridge) -> None:
    created = {}
    for request_id in (0, "", "0"):
        assert json.dumps((await user.ask("server/discover", request_id=request_id)).json["id"]) == json.dumps(request_id)
        answer = await user.send({**CALL, "id": request_id}, HEADERS)
        assert json.dumps(answer.json["id"]) == json.dumps(request_id)
        created[json.dumps(request_id)] = answer.result["taskId"]
    assert len({*created.values()}) == len(await all_tasks(store)) == 3
    for written, task_id in created.items():
        async with listening(bridge.port, task_id, request_id=json.loads(written)) as stream:
            assert json.dumps((await stream.frame())["params"]["_meta"][SUBSCRIPTION_ID]) == written
            assert (await stream.frame())["params"]["taskId"] == task_id
            await user.task("cancel", task_id)
            *told, last = await stream.rest()
        assert {json.dumps(frame["params"]["_meta"][SUBSCRIPTION_ID]) for frame in told} == {written}
        assert json.dumps(last["id"]) == written


@pytest.mark.parametrize(
    "body",
    [
        [],
        [{**CALL, "id": 1}],
        [{**CALL, "id": 1}, {**CALL, "id": 2}],
        [1],
        [{"jsonrpc": "2.0", "id": 3, "method": "tools/call"}] * 5_000,
    ],
)
async def test_03_no_call_of_a_batch_is_made(user: Client, store: Stubs, body: list[Any]) -> None:
    answer = await user.send(json.dumps(body).encode(), HEADERS)
    assert (answer.status, answer.code, "id" in answer.json) == (400, -32600, False)
    assert await all_tasks(store) == []


@pytest.mark.parametrize("digits", [4_301, 100_000])
async def test_07_a_number_of_thousands_of_digits_is_refused_in_arguments(user: Client, store: Stubs, digits: int) -> None:
    for body in (call_with(b'{"n":' + b"7" * digits + b"}"), call_with(b"{}", request_id=b"7" * digits)):
        answer = await user.send(body, HEADERS)
        assert (answer.status, answer.code) == (400, -32700)
        assert len(answer.body) < 300
    assert await all_tasks(store) == []
    assert (await user.ask("server/discover")).status == 200


@pytest.mark.parametrize("digits", [4_301, 100_000])
async def test_07_a_number_of_thousands_of_digits_in_a_step_fails_its_task_alone(
    user: Client, store: Stubs, digits: int
) -> None:
    async def work(ctx: Context, args: dict[str, Any]) -> Any:
        return await ctx.step("count", lambda: 10 ** args["digits"] if args else 1)

    async with working(store.address, work):
        failed = await ended(store, await create(user, {"digits": digits}))
        assert (failed.state, failed.attempts) == (types_pb2.TASK_STATE_FAILED, 1)
        assert "digits" in failed.error.message
        assert (await ended(store, await create(user))).state == types_pb2.TASK_STATE_COMPLETED


@pytest.mark.parametrize("levels", [62, 20_000, 200_000])
async def test_08_arguments_that_are_nested_too_deep_are_refused(user: Client, store: Stubs, levels: int) -> None:
    answer = await user.send(call_with(b'{"a":' + b"[" * levels + b"]" * levels + b"}"), HEADERS)
    assert (answer.status, answer.code) == (400, -32700)
    assert await all_tasks(store) == []
    assert (await user.ask("server/discover")).status == 200


@pytest.mark.parametrize("levels", [65, 900, 200_000])
async def test_08_a_result_that_is_nested_too_deep_fails_its_task(user: Client, store: Stubs, levels: int) -> None:
    async def work(_ctx: Context, args: dict[str, Any]) -> Any:
        value: list[Any] = []
        for _ in range(args["levels"]):
            value = [value]
        return value

    async with working(store.address, work):
        task_id = await create(user, {"levels": levels})
        failed = await ended(store, task_id)
    assert (failed.state, failed.attempts) == (types_pb2.TASK_STATE_FAILED, 1)
    assert "nested" in (await user.task("get", task_id)).result["error"]["message"]


async def test_10_what_is_no_number_leaves_nowhere(user: Client, store: Stubs) -> None:
    async def work(ctx: Context, args: dict[str, Any]) -> Any:
        value = {"NaN": math.nan, "inf": math.inf, "-inf": -math.inf}[args["value"]]
        match args["where"]:
            case "result":
                return {"value": [1, value]}
            case "content":
                return {"content": [{"type": "text", "text": "x", "annotations": {"priority": value}}]}
            case "step":
                return await ctx.step("one", lambda: value)
            case "error":
                raise ProtocolError(-32000, "no number", {"value": value})
            case _:
                return str(value)

    answer = await user.send(call_with(b'{"a":NaN}'), HEADERS)
    assert (answer.status, answer.code) == (400, -32700)
    async with working(store.address, work):
        for value in ("NaN", "inf", "-inf"):
            for where in ("result", "content", "step"):
                failed = await ended(store, await create(user, {"value": value, "where": where}))
                assert (failed.state, failed.attempts) == (types_pb2.TASK_STATE_FAILED, 1), where
                assert "is not JSON" in failed.error.message
            failed = await ended(store, await create(user, {"value": value, "where": "error"}))
            assert (failed.error.message, failed.error.HasField("data")) == ("no number", False)
            task_id = await create(user, {"value": value, "where": "text"})
            assert (await ended(store, task_id)).state == types_pb2.TASK_STATE_COMPLETED
            result = (await user.task("get", task_id)).result["result"]
            assert result["content"] == [{"type": "text", "text": {"NaN": "nan"}.get(value, value)}]


NUL = "a\u0000b"
ESCAPED = "a\\u0000b"


async def test_11_a_null_character_stops_no_task(user: Client, store: Stubs) -> None:
    async def work(ctx: Context, args: dict[str, Any]) -> Any:
        await ctx.progress(1, message=NUL)
        match args["where"]:
            case "result":
                return {"said": args["text"], "again": await ctx.step("one", lambda: args["text"])}
            case "failure":
                raise ProtocolError(-32000, args["text"], {"said": args["text"]})
            case "tool error":
                raise ToolError(args["text"])
            case "signal":
                return {"said": await ctx.wait_signal("go")}
            case _:
                schema = {"type": "object", "properties": {"said": {"type": "string"}}}
                return {"said": (await ctx.ask("what", "Say", schema)).content["said"]}

    async with working(store.address, work):
        for text in (NUL, ESCAPED):
            done = await ended_result(user, store, {"where": "result", "text": text})
            assert done["structuredContent"] == {"said": text, "again": text}
            failed = await ended(store, await create(user, {"where": "failure", "text": text}))
            assert failed.state == types_pb2.TASK_STATE_FAILED
            assert failed.error.message == text.replace("\0", "\ufffd")
            assert json.loads(failed.error.data.data) == {"said": text}
            done = await ended_result(user, store, {"where": "tool error", "text": text})
            assert (done["content"][0]["text"], done["isError"]) == (text, True)
            assert await after_signal(user, store, text) == text
            assert await after_answer(user, store, text) == text


async def ended_result(user: Client, store: Stubs, arguments: Any) -> Any:
    """The tool result of a task that completed."""
    task_id = await create(user, arguments)
    assert (await ended(store, task_id)).state == types_pb2.TASK_STATE_COMPLETED
    return (await user.task("get", task_id)).result["result"]


async def after_signal(user: Client, store: Stubs, text: str) -> Any:
    """What the work made of a signal with this message."""
    task_id = await create(user, {"where": "signal"})
    request = tasks_pb2.PublishSignalRequest(
        tenant_id=TENANT, signal_id=f"s {text}".replace("\0", "0"), task_id=task_id, name="go"
    )
    request.payload.data = json.dumps(text).encode()
    await store.tasks.PublishSignal(request)
    await ended(store, task_id)
    return (await user.task("get", task_id)).result["result"]["structuredContent"]["said"]


async def after_answer(user: Client, store: Stubs, text: str) -> Any:
    """What the work made of an answer with this content."""
    asked = {**TASKS, "elicitation": {}}
    task_id = await create(user, {"where": "answer"}, capabilities=asked)
    await shown(user, task_id, "input_required", capabilities=asked)
    params = {"taskId": task_id, "inputResponses": {"what": {"action": "accept", "content": {"said": text}}}}
    assert (await user.ask("tasks/update", params, name=task_id, capabilities=asked)).status == 200
    await ended(store, task_id)
    return (await user.task("get", task_id)).result["result"]["structuredContent"]["said"]


@pytest.mark.parametrize("accept", [None, "*/*", "application/json", "application/*, text/*;q=0.5"])
async def test_12_who_reads_json_alone_can_do_all_but_listen(user: Client, store: Stubs, accept: str | None) -> None:
    async def work(_ctx: Context, _args: dict[str, Any]) -> str:
        return "done"

    async def ask(method: str, params: dict[str, Any] | None = None, *, name: str | None = None) -> dict[str, Any]:
        answer = await user.ask(method, params, name=name, capabilities=TASKS, Accept=accept)
        assert answer.headers["Content-Type"] == "application/json"
        return answer.result

    assert "work" in {tool["name"] for tool in (await ask("tools/list"))["tools"]}
    assert (await ask("server/discover"))["supportedVersions"]
    left = (await ask("tools/call", {"name": "work"}, name="work"))["taskId"]
    await ask("tasks/update", {"taskId": left, "inputResponses": {}}, name=left)
    await ask("tasks/cancel", {"taskId": left}, name=left)
    assert (await ask("tasks/get", {"taskId": left}, name=left))["status"] == "cancelled"
    async with working(store.address, work):
        held = await user.call("held", Accept=accept)
        assert held.headers["Content-Type"] == "application/json"
        assert held.result["content"][0]["text"] == "done"


async def test_15_a_name_in_base64_finds_its_task_and_another_does_not(user: Client) -> None:
    def wrapped(text: str) -> str:
        return f"=?base64?{base64.b64encode(text.encode()).decode()}?="

    task_id = await create(user)
    assert (await user.task("get", task_id, name=wrapped(task_id))).result["taskId"] == task_id
    for name in (wrapped(task_id[:-1]), f"=?base64?{task_id}?=", "=?base64?!?="):
        answer = await user.task("get", task_id, name=name)
        assert (answer.status, answer.code) == (400, -32020)
    unknown = await user.ask("tools/call", {"name": "größe"}, name=wrapped("größe"))
    assert (unknown.status, unknown.code, unknown.json["error"]["message"]) == (400, -32602, "Invalid params: unknown tool")
