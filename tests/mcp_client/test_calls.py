"""A call comes to a result or to a task, never guessed; what may be repeated is, what may not is not."""

import socket
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import AddrInfoType, web

from mcp_bridge.client import (
    ClientError,
    DeadlineExceeded,
    InputNeeded,
    InputRequest,
    Policy,
    Progress,
    ProtocolFailure,
    TaskClient,
    TaskHandle,
    ToolError,
    ToolResult,
    TransportError,
)
from mcp_bridge.client.connection import open_socket
from tests.mcp_client.conftest import QUICK
from tests.mcp_client.fake_server import (
    TASK_ID,
    Answer,
    Asked,
    FakeServer,
    asks,
    cut,
    error,
    gateway,
    serving,
    stream,
    task,
    text,
    tools,
)

PREFIX = "io.modelcontextprotocol/"


async def accept(key: str, _request: InputRequest) -> Mapping[str, Any]:
    return {"action": "accept", "content": {"key": key}}


HANDLERS = {"elicitation/create": accept}
DISCOVERED: Answer = {"supportedVersions": [], "capabilities": {}}


@pytest.mark.must("CT-01", "CB-02")
async def test_a_result_is_a_result_and_a_task_is_a_task(fake: FakeServer) -> None:
    fake.answers["tools/call"] = [text("done", resultType="complete"), task("working", resultType="task"), text("old server")]
    async with TaskClient(fake.url, policy=QUICK) as client:
        done = await client.call_tool_outcome("work")
        handle = await client.call_tool_outcome("work")
        old = await client.call_tool_outcome("work")
    assert isinstance(done, ToolResult)
    assert handle == TaskHandle(TASK_ID, fake.url, "work")
    assert isinstance(old, ToolResult)


@pytest.mark.must("CB-01")
@pytest.mark.parametrize(
    "answer",
    [text("?", resultType="surprise"), {"resultType": "task"}, {"resultType": "input_required"}, {"resultType": "complete"}],
)
async def test_an_answer_of_no_known_kind_is_not_guessed_at(fake: FakeServer, answer: dict[str, Any]) -> None:
    fake.answers["tools/call"] = [answer]
    async with TaskClient(fake.url, policy=QUICK) as client:
        with pytest.raises(TransportError):
            await client.call_tool_outcome("work")


@pytest.mark.must("CT-02", "CB-01")
@pytest.mark.parametrize("kind", ["surprise", "input_required", "task"])
async def test_a_short_request_is_not_answered_by_a_result_of_another_kind(fake: FakeServer, kind: str) -> None:
    fake.answers |= {
        "tools/list": [tools({"name": "work"}, resultType=kind)],
        "server/discover": [{"supportedVersions": [], "capabilities": {}, "resultType": kind}],
        "tasks/cancel": [{"resultType": kind}],
    }
    async with TaskClient(fake.url, policy=QUICK) as client:
        for asking in (client.list_tools(), client.discover(), client.cancel_task(TaskHandle(TASK_ID, fake.url))):
            with pytest.raises(TransportError, match=kind):
                await asking


async def test_a_result_without_the_id_of_its_request_is_none(fake: FakeServer) -> None:
    async def nameless(_request: web.Request, _asked: Asked) -> web.StreamResponse:
        return web.json_response({"jsonrpc": "2.0", "result": text("whose?")})

    fake.answers["tools/call"] = [nameless]
    async with TaskClient(fake.url, policy=QUICK) as client:
        with pytest.raises(TransportError, match="another request"):
            await client.call_tool("work")


async def test_a_machine_that_vanished_is_noticed_however_long_an_answer_may_take(fake: FakeServer) -> None:
    seen: list[socket.socket] = []

    def open_and_keep(address: AddrInfoType) -> socket.socket:
        seen.append(open_socket(address))
        return seen[-1]

    fake.answers["tools/call"] = [text("done")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mcp_bridge.client.transport.open_socket", open_and_keep)
        async with TaskClient(fake.url, policy=QUICK) as client:
            await client.call_tool("work")
            (connection,) = seen
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            if sys.platform == "linux":
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 60
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 60_000


@pytest.mark.parametrize("after", ["9" * 400, "-1", "soon", "Fri, 31 Dec 99999 23:59:59 GMT"])
async def test_whatever_a_server_asks_for_by_retry_after_is_no_fault_of_ours(fake: FakeServer, after: str) -> None:
    fake.answers["tools/call"] = [error(42900, "slower", status=429, Retry_After=after), text("done")]
    async with TaskClient(fake.url, policy=QUICK) as client:
        try:
            assert (await client.call_tool("work", deadline=timedelta(seconds=30))).text == "done"
        except DeadlineExceeded:
            assert after.startswith("9")


@pytest.mark.must("CA-01", "CB-03", "CB-04", "CB-05", "CE-05", "CH-01", "CH-02", "CH-08")
async def test_every_request_tells_version_capabilities_and_headers(fake: FakeServer) -> None:
    fake.answers["tools/list"] = [
        tools({"name": "werk", "inputSchema": {"type": "object", "properties": {"r": {"type": "string", "x-mcp-header": "R"}}}})
    ]
    fake.answers["tools/call"] = [text("done")]
    async with TaskClient(fake.url, handlers=HANDLERS, token="secret", policy=QUICK) as client:
        await client.call_tool("werk", {"r": "zürich"})
    for asked in fake.asked:
        meta = asked.params["_meta"]
        assert meta[PREFIX + "clientCapabilities"] == {"extensions": {PREFIX + "tasks": {}}, "elicitation": {}}
        assert meta[PREFIX + "protocolVersion"] == asked.headers["MCP-Protocol-Version"] == "2026-07-28"
        assert meta[PREFIX + "clientInfo"]["name"] == "tenure"
        assert asked.headers["Accept"] == "application/json, text/event-stream"
        assert asked.headers["Mcp-Method"] == asked.method
        assert asked.headers["Authorization"] == "Bearer secret"
    (call,) = fake.of("tools/call")
    assert (call.headers["Mcp-Name"], call.headers["Mcp-Param-R"]) == ("werk", "=?base64?esO8cmljaA==?=")
    assert len({asked.id for asked in fake.asked}) == len(fake.asked)


@pytest.mark.must("CV-01")
async def test_a_server_that_refuses_the_version_though_it_names_it_is_asked_once_more(fake: FakeServer) -> None:
    def refusal(*supported: str) -> Answer:
        return error(
            -32022, "Unsupported protocol version", status=400, data={"supported": supported, "requested": "2026-07-28"}
        )

    fake.answers["tools/call"] = [refusal("2026-07-28"), text("done"), refusal("2099-01-01")]
    async with TaskClient(fake.url, policy=QUICK) as client:
        assert (await client.call_tool("work")).text == "done"
        with pytest.raises(ProtocolFailure, match="version"):
            await client.call_tool("work")
    assert len(fake.of("tools/call")) == 3


@pytest.mark.must("CR-01", "CR-02", "CR-03", "CR-04")
async def test_questions_of_a_held_call_are_answered_round_by_round(fake: FakeServer) -> None:
    fake.answers["tools/call"] = [
        asks("a", "b", resultType="input_required", requestState="s1"),
        {"resultType": "input_required", "requestState": "s2"},
        asks("c", resultType="input_required"),
        text("done"),
    ]
    async with TaskClient(fake.url, handlers=HANDLERS, policy=QUICK) as client:
        assert (await client.call_tool("work", {"x": 1}, idempotency_key="k")).text == "done"
    first, second, third, fourth = fake.of("tools/call")
    assert not {"inputResponses", "requestState"} & set(first.params)
    assert second.params["inputResponses"].keys() == {"a", "b"}
    assert second.params["requestState"] == "s1"
    assert (third.params.get("inputResponses"), third.params["requestState"]) == (None, "s2")
    assert fourth.params["inputResponses"].keys() == {"c"}
    assert "requestState" not in fourth.params
    assert {asked.params["_meta"]["dev.tenure/idempotencyKey"] for asked in fake.of("tools/call")} == {"k"}


async def test_a_call_that_asks_without_end_is_given_up(fake: FakeServer) -> None:
    fake.answers["tools/call"] = [{"resultType": "input_required", "requestState": "again"}]
    async with TaskClient(fake.url, policy=Policy(rounds=3)) as client:
        with pytest.raises(TransportError, match="more than 3"):
            await client.call_tool("work")


async def test_a_question_without_a_handler_is_handed_to_the_caller(fake: FakeServer) -> None:
    fake.answers["tools/call"] = [asks("a", resultType="input_required")]
    async with TaskClient(fake.url, policy=QUICK) as client:
        with pytest.raises(InputNeeded) as raised:
            await client.call_tool("work")
    assert raised.value.requests["a"].params == {"message": "a"}


@pytest.mark.must("CH-03", "CH-04")
async def test_progress_of_a_held_call_is_told_in_order(fake: FakeServer) -> None:
    notes = [{"method": "notifications/progress", "params": {"progressToken": 1, "progress": n, "total": 2}} for n in (1, 2)]
    fake.answers["tools/call"] = [stream(*notes, {"method": "notifications/other", "params": {}}, result=text("done"))]
    seen: list[Progress] = []
    async with TaskClient(fake.url, policy=QUICK) as client:
        assert (await client.call_tool("work", progress=seen.append)).text == "done"
    assert seen == [Progress(1, 2), Progress(2, 2)]
    (call,) = fake.of("tools/call")
    assert call.params["_meta"]["progressToken"] == call.id


@pytest.mark.parametrize("lost", [cut, stream(), gateway(503), gateway(502), error(50300, "away", status=503, Retry_After="0"),
                                  error(50300, "away")])  # fmt: skip
async def test_only_a_call_with_a_key_is_repeated_when_its_answer_was_lost(fake: FakeServer, lost: Answer) -> None:
    async with TaskClient(fake.url, policy=QUICK) as client:
        fake.answers["tools/call"] = [lost, text("done")]
        assert (await client.call_tool("work", idempotency_key="k")).text == "done"
        fake.answers["tools/call"] = [lost, text("done")]
        with pytest.raises((TransportError, ProtocolFailure)):
            await client.call_tool("work")
    assert len(fake.of("tools/call")) == 3


@pytest.mark.parametrize("busy", [gateway(429, Retry_After="0"), error(42900, "slower", status=429)])
async def test_a_call_that_came_too_early_is_repeated_without_a_key(fake: FakeServer, busy: Answer) -> None:
    fake.answers["tools/call"] = [busy, busy, text("done")]
    async with TaskClient(fake.url, policy=QUICK) as client:
        assert (await client.call_tool("work")).text == "done"


async def test_retry_after_beyond_the_deadline_is_not_waited_for(fake: FakeServer) -> None:
    fake.answers["tools/call"] = [error(42900, "slower", status=429, Retry_After="3600")]
    async with TaskClient(fake.url, policy=QUICK) as client:
        with pytest.raises(DeadlineExceeded) as raised:
            await client.call_tool("work", deadline=timedelta(seconds=30))
    assert isinstance(raised.value.__cause__, ProtocolFailure)
    assert raised.value.__cause__.code == 42900


async def test_a_server_that_is_not_there_is_a_transport_error() -> None:
    async with TaskClient("http://127.0.0.1:9/mcp", policy=Policy(request_seconds=0.05)) as client:
        with pytest.raises(TransportError, match="not reached") as raised:
            await client.discover()
    assert not raised.value.is_unknown


async def test_a_tool_error_is_raised_with_what_the_model_should_read(fake: FakeServer) -> None:
    fake.answers["tools/call"] = [text("no such file", isError=True)]
    async with TaskClient(fake.url, policy=QUICK) as client:
        with pytest.raises(ToolError, match="no such file"):
            await client.call_tool("work")
        outcome = await client.call_tool_outcome("work")
    assert isinstance(outcome, ToolResult)
    assert outcome.is_error


async def test_a_failure_carries_code_message_and_data(fake: FakeServer) -> None:
    fake.answers["tools/call"] = [error(-32021, "Missing", status=400, data={"requiredCapabilities": {"roots": {}}})]
    async with TaskClient(fake.url, policy=QUICK) as client:
        with pytest.raises(ProtocolFailure) as raised:
            await client.call_tool("work")
    failure = raised.value
    assert (failure.code, failure.message, failure.status) == (-32021, "Missing", 400)
    assert failure.data == {"requiredCapabilities": {"roots": {}}}
    assert isinstance(failure, ClientError)


async def test_an_answer_that_is_too_large_is_not_read(fake: FakeServer) -> None:
    fake.answers["tools/call"] = [text("x" * 10_000)]
    async with TaskClient(fake.url, policy=Policy(answer_bytes=5_000)) as client:
        with pytest.raises(TransportError, match="larger than 5000"):
            await client.call_tool("work")


async def test_the_token_is_asked_for_before_each_request_and_is_one(fake: FakeServer) -> None:
    tokens = iter(["first", "second", "two words", "line\r\nInjected: yes", ""])

    async def current() -> str:
        return next(tokens)

    fake.answers["tools/call"] = [text("done")]
    async with TaskClient(fake.url, token=current, policy=QUICK) as client:
        await client.call_tool("work")
        for _ in range(3):
            with pytest.raises(ValueError, match="a bearer token is"):
                await client.call_tool("work")
    assert [asked.headers["Authorization"] for asked in fake.asked] == ["Bearer first", "Bearer second"]


async def test_nothing_that_a_server_wants_to_be_kept_is_kept(fake: FakeServer) -> None:
    fake.answers["server/discover"] = [error(42900, "slower", status=429, Set_Cookie="a=b", Retry_After="0"), DISCOVERED]
    async with TaskClient(fake.url.replace("127.0.0.1", "localhost"), policy=QUICK) as client:
        await client.discover()
    assert [asked.headers.get("Cookie") for asked in fake.asked] == [None, None]


async def test_no_redirect_is_followed(fake: FakeServer) -> None:
    async with serving(FakeServer()) as other:
        fake.answers["tools/call"] = [gateway(307, Location=other.url)]
        async with TaskClient(fake.url, token="secret", policy=QUICK) as client:
            with pytest.raises(TransportError, match="HTTP 307"):
                await client.call_tool("work")
    assert not other.asked


def test_a_token_never_goes_over_a_network_in_the_clear() -> None:
    with pytest.raises(ValueError, match="https"):
        TaskClient("http://example.com/mcp", token="secret")
    TaskClient("https://example.com/mcp", token="secret")
    with pytest.raises(ValueError, match="not the URL"):
        TaskClient("example.com/mcp")
