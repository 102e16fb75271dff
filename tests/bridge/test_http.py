"""The edge: what HTTP may bring, and in which order it is refused. Contract, sections 1, 2, 10.5, 10.6; cases 1 to 17."""

import asyncio
import gzip
import json
import re
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from yarl import URL

from mcp_bridge.app import Bridge
from mcp_bridge.body import BODY_BYTES
from store_service.client import StoreError
from tests.bridge.client import ABSENT, PREFIX, TASKS, VERSION, Answer, Client, client_of, headers_for, meta
from tests.bridge.fake_store import FakeTaskStore
from tests.client.fake_tasks import FakeTasks
from tests.conftest import bridge_on, started

DISCOVER = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": meta()}}


async def raw(port: int, data: bytes, *, until_closed: bool = False) -> bytes:
    """Sends bytes as they are. Returns the answer, or all until the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(10):
        writer.write(data)
        answer = await (reader.read() if until_closed else reader.read(65536))
    writer.close()
    return answer


def post(headers: dict[str, str], body: bytes, *, length: int | None = None, target: str = "/mcp") -> bytes:
    fields = {"Host": "127.0.0.1", **headers, "Content-Length": str(len(body) if length is None else length)}
    head = f"POST {target} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return head.encode() + b"\r\n" + body


@pytest.mark.row("H1")
@pytest.mark.must("H-39")
@pytest.mark.parametrize("verb", ["GET", "DELETE", "HEAD", "PUT", "OPTIONS", "PATCH"])
async def test_only_post_is_served(client: Client, verb: str) -> None:
    answer = await client.send(b"", {}, verb=verb)
    assert answer.status == 405
    assert answer.headers["Allow"] == "POST"


NOWHERE = [
    "",
    "/",
    "/mcp/",
    "/MCP",
    "/metrics",
    "/.well-known/oauth-protected-resource",
    "/t/mcp",
    "/t//mcp",
    "/t/dev",
    "/t/dev/mcp/",
]
NO_TENANTS = ["/t/other/mcp", "/t/DEV/mcp", "/t/%64ev/mcp", "/t/a%2Fb/mcp", "/t/dev/dev/mcp", f"/t/{'x' * 129}/mcp"]


@pytest.mark.row("A3", "H1")
@pytest.mark.must("H-01", "H-42")
@pytest.mark.parametrize("path", NOWHERE + NO_TENANTS)
async def test_elsewhere_there_is_nothing(client: Client, path: str) -> None:
    answer = await client.send(
        DISCOVER, headers_for("server/discover"), url=URL(f"http://127.0.0.1:{client.port}{path}", encoded=True)
    )
    assert answer.status == 404
    assert answer.json == {"jsonrpc": "2.0", "error": {"code": -32600, "message": "There is nothing here; MCP is at /mcp"}}


async def test_the_development_tenant_has_a_path_of_its_own(client: Client) -> None:
    client.url = client.url.replace("/mcp", "/t/dev/mcp")
    listed = (await client.ask("tools/list")).result["tools"]
    assert "held" in {tool["name"] for tool in listed}
    for target in ("/t/dev/mcp", "http://localhost/t/dev/mcp"):
        answer = await raw(client.port, post(headers_for("server/discover"), json.dumps(DISCOVER).encode(), target=target))
        assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.row("H17")
@pytest.mark.must("H-40", "H-41")
async def test_sessions_and_replays_are_ignored_and_never_minted(client: Client) -> None:
    answer = await client.ask("server/discover", Mcp_Session_Id="x", Last_Event_ID="7")
    assert answer.status == 200
    assert not {"mcp-session-id", "set-cookie"} & {name.lower() for name in answer.headers}


@pytest.mark.row("H2", "H3")
@pytest.mark.must("H-02", "H-03")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "localhost:1"}, 200),
        ({"Host": "[::1]"}, 200),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": ""}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:5173"}, 200),
        ({"Origin": "http://localhost.evil.example"}, 403),
        ({"Origin": "http://localhost@evil.example"}, 403),
        ({"Origin": "file://"}, 403),
        ({"Origin": "http://127.0.0.1:80/x"}, 403),
        ({"Origin": ""}, 403),
        ({"Host": "localhost", "Origin": "http://[::1]:9"}, 200),
    ],
)
async def test_pages_of_other_sites_cannot_drive_a_local_bridge(client: Client, headers: dict[str, str], status: int) -> None:
    answer = await client.send(DISCOVER, {**headers_for("server/discover"), **headers})
    assert answer.status == status


@pytest.mark.row("H2", "H3")
async def test_two_hosts_two_origins_and_a_foreign_absolute_target_are_refused(client: Client) -> None:
    body = json.dumps(DISCOVER).encode()
    headers = headers_for("server/discover")
    assert b" 400 " in await raw(client.port, post({**headers, "host": "localhost"}, body))
    origins = {"Origin": "http://localhost", "origin": "http://localhost"}
    assert b" 403 " in await raw(client.port, post({**headers, **origins}, body))
    assert b" 403 " in await raw(client.port, post(headers, body, target="http://evil.example/mcp"))
    assert b" 200 " in await raw(client.port, post(headers, body, target="http://localhost/mcp"))


@pytest.mark.row("H2")
@pytest.mark.must("H-02", "H-03")
async def test_a_listed_origin_is_matched_exactly(routes: Any, fake: FakeTaskStore) -> None:
    allowing = bridge_on(routes, fake=fake, allowed_origins=("https://good.example",))
    async with started(allowing), client_of(allowing) as client:
        for origin, status in {
            "https://good.example": 200,
            "http://good.example": 403,
            "https://good.example:8443": 403,
            "https://good.example.evil": 403,
        }.items():
            assert (await client.ask("server/discover", Origin=origin)).status == status


@pytest.mark.row("T15")
async def test_bad_http_is_answered_in_json_without_our_insides(client: Client) -> None:
    answer = await raw(client.port, b"NONSENSE\r\n\r\n", until_closed=True)
    assert b" 400 " in answer.splitlines()[0]
    assert b'"code":-32600' in answer
    assert b"ython" not in answer


@pytest.mark.row("H19", "H21")
@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Encoding": "gzip"},
        {"Content-Encoding": "identity, deflate"},
        {"Content-Type": "text/plain"},
        {"Content-Type": None},
    ],
)
async def test_compressed_and_foreign_bodies_are_refused_unread(client: Client, headers: dict[str, Any]) -> None:
    body = gzip.compress(b"\0" * 10_000_000)
    fields = {name: value for name, value in {**headers_for("server/discover"), **headers}.items() if value is not None}
    assert (await client.send(body, fields)).status == 415


@pytest.mark.row("H21")
@pytest.mark.parametrize("accept", ["application/json;q=0", "text/html"])
async def test_an_answer_that_cannot_be_taken_is_not_made(client: Client, accept: str) -> None:
    answer = await client.ask("server/discover", Accept=accept)
    assert answer.status == 406
    assert answer.code == -32600


@pytest.mark.row("H18", "H21")
@pytest.mark.must("H-09", "H-12")
async def test_a_client_that_takes_only_events_gets_one(client: Client) -> None:
    answer = await client.ask("server/discover", Accept="text/event-stream")
    assert answer.headers["Content-Type"] == "text/event-stream"
    assert answer.headers["X-Accel-Buffering"] == "no"
    assert answer.body.startswith(b"data: {")
    assert answer.body.endswith(b"}\n\n")
    refused = await client.ask("tasks/list", Accept="text/event-stream")
    assert (refused.status, refused.code) == (404, -32601)


def padded(size: int) -> bytes:
    body = json.dumps(DISCOVER).encode()
    return body + b" " * (size - len(body))


@pytest.mark.row("H19")
async def test_a_body_of_exactly_the_limit_is_taken(client: Client) -> None:
    assert (await client.send(padded(BODY_BYTES), headers_for("server/discover"))).status == 200


@pytest.mark.row("H19")
async def test_one_byte_more_is_refused_and_the_connection_closed(client: Client) -> None:
    answer = await raw(client.port, post(headers_for("server/discover"), padded(BODY_BYTES + 1)), until_closed=True)
    assert b" 413 " in answer.splitlines()[0]
    assert b"Connection: close" in answer
    assert b'"error"' in answer


@pytest.mark.row("H19")
async def test_the_real_bytes_of_a_chunked_body_are_counted(client: Client) -> None:
    head = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers_for("server/discover").items()) + "\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
    writer.write(head.encode())
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    sent = 0
    async with asyncio.timeout(10):
        status = asyncio.create_task(reader.readline())
        while not status.done() and sent < 100_000_000:
            writer.write(chunk)
            sent += 65536
            try:
                await writer.drain()
            except ConnectionError:
                break
        assert b" 413 " in await status
    writer.close()
    assert sent < 20_000_000


@pytest.mark.row("H19")
async def test_a_body_that_is_shorter_than_it_says_holds_up_nobody_else(client: Client) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", client.port)
    writer.write(post(headers_for("server/discover"), b"{", length=100))
    await writer.drain()
    assert (await client.ask("server/discover")).status == 200
    writer.close()


@pytest.mark.row("H19")
async def test_a_body_that_never_ends_is_given_up(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_bridge.body.BODY_SECONDS", 0.01)
    answer = await raw(client.port, post(headers_for("server/discover"), b"{", length=100), until_closed=True)
    assert b" 408 " in answer.splitlines()[0]


async def test_a_client_that_asks_before_it_sends_is_told_to_go_on(client: Client) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
    request = post({**headers_for("server/discover"), "Expect": "100-continue"}, padded(200_000))
    head, _, body = request.partition(b"\r\n\r\n")
    writer.write(head + b"\r\n\r\n")
    async with asyncio.timeout(10):
        assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")
        writer.write(body)
        assert b" 200 " in await reader.readline()
    writer.close()


@pytest.mark.row("H19")
async def test_large_headers_and_targets_are_refused(client: Client) -> None:
    headers = headers_for("server/discover") | {f"X-{n}": "y" * 4000 for n in range(5)}
    assert (await client.send(DISCOVER, headers)).status == 431
    url = f"http://127.0.0.1:{client.port}/mcp?{'x' * 3000}"
    assert (await client.send(DISCOVER, headers_for("server/discover"), url=url)).status == 414


BAD_JSON: list[tuple[bytes, int]] = [
    (b"", -32700),
    (b"{", -32700),
    (b'{"jsonrpc":"2.0","id":1,"id":1,"method":"x"}', -32700),
    (b'{"a":NaN}', -32700),
    (b"\xef\xbb\xbf{}", -32700),
    (b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":"\xff"}}', -32700),
    (b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":"\\ud800"}}', -32700),
    (b'{"jsonrpc":"2.0","id":' + b"1" * 4301 + b',"method":"x"}', -32700),
    (b"[" * 1_000_000, -32600),
    (b'{"a":' + b"[" * 20_000, -32700),
    (b"[" + b"{}," * 5000 + b"{}]", -32600),
    (b'"x"', -32600),
    (b'{"jsonrpc":"2.0","id":null,"method":"server/discover"}', -32600),
    (b'{"jsonrpc":"2.0","id":{"a":1},"method":"x"}', -32600),
    (b'{"jsonrpc":"2.0","id":"' + b"x" * 1_000_000 + b'","method":"x"}', -32600),
]


@pytest.mark.row("H4", "H5", "H6", "H20")
@pytest.mark.must("B-01", "B-06")
@pytest.mark.parametrize(("body", "code"), BAD_JSON)
async def test_what_cannot_be_read_is_refused_in_few_words(client: Client, body: bytes, code: int) -> None:
    answer = await client.send(body, headers_for("server/discover"))
    assert (answer.status, answer.code) == (400, code)
    assert "id" not in answer.json
    assert len(answer.body) < 300
    assert (await client.ask("server/discover")).status == 200


@pytest.mark.row("H6")
@pytest.mark.must("B-03", "B-05")
async def test_a_falsy_id_is_an_id(client: Client) -> None:
    for request_id in (0, "", "0", -1, 2**53 + 1, 10**600):
        answer = await client.ask("server/discover", request_id=request_id)
        assert answer.json["id"] == request_id
        assert type(answer.json["id"]) is type(request_id)


@pytest.mark.row("H5")
@pytest.mark.must("B-11", "C-09", "H-07", "H-08", "T-23", "X-02")
async def test_a_notification_is_accepted_and_dropped(client: Client, fake: FakeTaskStore) -> None:
    for method in ("notifications/cancelled", "tools/call", "no/such"):
        answer = await client.send({"jsonrpc": "2.0", "method": method, "params": {}}, headers_for("wrong"))
        assert (answer.status, answer.body) == (202, b"")
    assert not fake.created
    assert (await client.send({"jsonrpc": "2.0", "method": "x", "params": []}, headers_for("x"))).status == 400


@pytest.mark.row("H12")
@pytest.mark.must("B-05", "H-20")
@pytest.mark.parametrize(
    "method",
    ["tasks/result", "tasks/list", "ping", "logging/setLevel", "no/such", "tools/Call", "initialize"],
)
async def test_unknown_methods_are_not_found(client: Client, method: str) -> None:
    answer = await client.ask(method, {"taskId": "x"}, request_id="a")
    assert (answer.status, answer.code, answer.json["id"]) == (404, -32601, "a")


@pytest.mark.must("H-21")
async def test_a_request_that_names_no_version_anywhere_is_refused(client: Client) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    assert (await client.send(body, headers_for("tools/list", MCP_Protocol_Version=None))).code == -32020
    assert (await client.send(body, headers_for("tools/list"))).code == -32602


@pytest.mark.row("H13")
@pytest.mark.must("B-28")
@pytest.mark.parametrize(
    "bad_meta",
    [
        ABSENT,
        None,
        [],
        {},
        {PREFIX + "protocolVersion": VERSION},
        {PREFIX + "clientCapabilities": {}},
        {PREFIX + "protocolVersion": 5, PREFIX + "clientCapabilities": {}},
        {PREFIX + "protocolVersion": VERSION, PREFIX + "clientCapabilities": []},
        {PREFIX + "protocolVersion": VERSION, PREFIX + "clientCapabilities": {"extensions": []}},
    ],
)
async def test_missing_or_malformed_meta_is_refused(client: Client, bad_meta: Any) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {} if bad_meta is ABSENT else {"_meta": bad_meta}}
    answer = await client.send(body, headers_for("server/discover"))
    assert (answer.status, answer.code) == (400, -32602)


@pytest.mark.row("H7", "H9")
@pytest.mark.must("H-18", "H-22", "H-35", "H-36", "H-38")
@pytest.mark.parametrize(
    "headers",
    [
        {"MCP_Protocol_Version": None},
        {"MCP_Protocol_Version": "2025-11-25"},
        {"Mcp_Method": None},
        {"Mcp_Method": "tools/call"},
        {"Mcp_Method": "Server/Discover"},
        {"Mcp_Method": ""},
    ],
)
async def test_headers_that_differ_from_the_body_are_refused(client: Client, headers: dict[str, Any]) -> None:
    answer = await client.ask("server/discover", **headers)
    assert (answer.status, answer.code, answer.json["id"]) == (400, -32020, 1)


@pytest.mark.row("H9")
@pytest.mark.must("H-35")
async def test_header_names_have_no_case_and_values_may_be_padded(client: Client) -> None:
    headers = {name.lower(): f" {value} " for name, value in headers_for("server/discover").items()}
    assert (await client.send(DISCOVER, headers)).status == 200


@pytest.mark.row("H7", "H9")
async def test_a_doubled_header_is_refused(client: Client) -> None:
    body = json.dumps(DISCOVER).encode()
    answer = await raw(client.port, post({**headers_for("server/discover"), "mcp-method": "server/discover"}, body))
    assert b"-32020" in answer


@pytest.mark.row("H8")
@pytest.mark.must("H-19", "V-01")
async def test_another_version_is_refused_with_those_that_are_served(client: Client) -> None:
    params = {"_meta": {**meta(), PREFIX + "protocolVersion": "1900-01-01"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "no/such", "params": params}
    answer = await client.send(body, headers_for("no/such", MCP_Protocol_Version="1900-01-01"))
    assert (answer.status, answer.code) == (400, -32022)
    assert answer.json["error"]["data"] == {"supported": [VERSION], "requested": "1900-01-01"}


async def test_the_first_failure_wins(client: Client) -> None:
    """Each step mends what was refused before it; the next fault of the same request then shows."""
    params: dict[str, Any] = {"name": 5, "_meta": {}}
    body: dict[str, Any] = {"jsonrpc": "1.0", "id": 1, "method": "tools/cal", "params": params}
    headers = {
        "Origin": "https://evil.example",
        "Content-Type": "text/plain",
        "Accept": "text/html",
        "MCP-Protocol-Version": "1",
    }
    seen = []

    async def look(**changes: str) -> None:
        headers.update(changes)
        answer = await client.send(body, headers)
        seen.append((answer.status, answer.code))

    await look()
    await look(Origin="http://localhost")
    await look(**{"Content-Type": "application/json"})
    await look(Accept="*/*")
    body["jsonrpc"] = "2.0"
    await look()
    params["_meta"] = meta({})
    await look()
    await look(**{"MCP-Protocol-Version": VERSION})
    await look(**{"Mcp-Method": "tools/cal"})
    body["method"] = "tools/call"
    await look(**{"Mcp-Method": "tools/call"})
    params["name"] = "strict"
    await look()
    params["arguments"] = {"region": "eu", "items": [1]}
    params["requestState"] = "x"
    await look(**{"Mcp-Name": "strict"})
    await look(**{"Mcp-Param-Region": "eu"})
    del params["requestState"]
    answer = await client.send(body, headers)
    assert seen == [
        (403, -32600),
        (415, -32600),
        (406, -32600),
        (400, -32600),
        (400, -32602),
        (400, -32020),
        (400, -32020),
        (404, -32601),
        (400, -32602),
        (400, -32020),
        (400, -32020),
        (400, -32602),
    ]
    assert "arguments.items[0]" in answer.result["content"][0]["text"]


async def test_a_call_is_tried_again_no_longer_than_the_setting_says(routes: Path) -> None:
    with FakeTasks().serve() as store:
        store.answers["CreateTask"].extend(["STORAGE_UNAVAILABLE"] * 2)
        hasty = bridge_on(routes, store=store.address, store_retry_seconds=0)
        async with started(hasty), client_of(hasty) as client:
            answer = await client.call("task", tasks=True)
    assert (answer.status, answer.code) == (503, 50300)
    assert len(store.answers["CreateTask"]) == 1


@pytest.mark.row("T15")
async def test_store_trouble_is_told_safely_and_briefly(client: Client, fake: FakeTaskStore) -> None:
    fake.trouble = StoreError("10.0.0.7:5432 refused", reason="STORAGE_UNAVAILABLE", retry_after_ms=1500)
    answer = await client.call("task", tasks=True, request_id="r")
    assert (answer.status, answer.code, answer.json["id"]) == (503, 50300, "r")
    assert answer.headers["Retry-After"] == "2"
    assert b"10.0.0.7" not in answer.body


@pytest.mark.row("T15")
@pytest.mark.must("T-32")
@pytest.mark.parametrize("trouble", [RuntimeError("secret path /srv"), StoreError("secret field", reason="INVALID_INPUT")])
async def test_a_fault_of_ours_is_answered_under_an_id_that_the_log_has(
    client: Client, fake: FakeTaskStore, trouble: Exception, capfd: pytest.CaptureFixture[str]
) -> None:
    fake.trouble = trouble
    answer = await client.call("task", tasks=True)
    assert (answer.status, answer.code) == (200, -32603)
    assert b"secret" not in answer.body
    fake.trouble = None
    logged = "".join(capfd.readouterr())
    assert answer.json["error"]["data"]["correlationId"] in logged


async def test_an_answer_has_a_date_and_leaves_the_connection_as_its_client_wished(client: Client) -> None:
    request = post(headers_for("server/discover"), json.dumps(DISCOVER).encode())
    closing = post({**headers_for("server/discover"), "Connection": "close"}, json.dumps(DISCOVER).encode())
    both = await raw(client.port, request + closing, until_closed=True)
    first, second = both.split(b"HTTP/1.1 200 OK\r\n")[1:]
    for answer in (first, second):
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"Content-Length: %d" % len(body) in head
        assert re.search(rb"\r\nDate: \w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", head)
        assert json.loads(body)["result"]["resultType"] == "complete"
    assert b"Connection" not in first
    assert b"Connection: close" in second
    old = await raw(client.port, request.replace(b"HTTP/1.1", b"HTTP/1.0"), until_closed=True)
    assert b"Connection: close" in old
    kept = await raw(client.port, request.replace(b"HTTP/1.1\r\n", b"HTTP/1.0\r\nConnection: keep-alive\r\n"))
    assert b"Connection: keep-alive" in kept


async def test_a_client_that_does_not_read_is_not_written_to_for_ever(client: Client, fake: FakeTaskStore) -> None:
    task = (await client.call("task", tasks=True)).result["taskId"]
    await fake.complete(task, json.dumps({"content": [{"type": "text", "text": "x" * 2**20}]}).encode())
    params = {"taskId": task, "_meta": meta(TASKS)}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": params}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", client.port, limit=2**16)
    fake.read.clear()
    writer.write(post(headers_for("tasks/get", task), body) * 9)
    async with asyncio.timeout(10):
        while not fake.read:
            await asyncio.sleep(0.001)
        for _ in range(30):  # time enough for the others' answers, if they were made
            assert (await client.ask("server/discover")).status == 200
        assert len(fake.read) < 9
        answers = b""
        while answers.count(b"HTTP/1.1 200 OK") < 9:
            answers += await reader.read(2**16)
    writer.close()


@pytest.mark.row("H18")
async def test_answers_tell_nothing_about_what_serves_them_and_are_not_stored(client: Client) -> None:
    answer = await client.ask("server/discover")
    assert answer.headers["Server"] == "tenure"
    assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.row("S1")
async def test_calls_are_counted_without_naming_anybody(client: Client, bridge: Bridge) -> None:
    await client.call("task", tasks=True)
    await client.ask("no/such/method")
    await client.task("get", "x", name=None)
    answer = await client.send(b"", {}, verb="GET", url=f"http://127.0.0.1:{bridge.admin_port}/metrics")
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }
    assert samples["tenure_bridge_calls_total", (("method", "tools/call"), ("outcome", "OK"))] == 1
    assert samples["tenure_bridge_calls_total", (("method", "other"), ("outcome", "-32601"))] == 1
    assert samples["tenure_bridge_missing_mcp_name_total", ()] == 1
    assert samples["tenure_bridge_held_calls", ()] == 0
    ours = {name for sample, labels in samples for name, _ in labels if sample.startswith("tenure_bridge")}
    assert ours == {"method", "outcome", "le", "cell"}


@pytest.mark.row("S5")
async def test_readiness_follows_the_store_and_liveness_nothing(bridge: Bridge, client: Client, fake: FakeTaskStore) -> None:
    async def look(path: str) -> Answer:
        return await client.send(b"", {}, verb="GET", url=f"http://127.0.0.1:{bridge.admin_port}{path}")

    assert (await look("/livez")).status == 200
    assert (await look("/readyz")).status == 200  # the store answered the first look
    fake.trouble = StoreError("the connection broke", code=grpc.StatusCode.UNAVAILABLE)
    async with asyncio.timeout(60):
        while (await look("/readyz")).status != 503:
            await asyncio.sleep(0.05)
    assert b"the store cannot be reached" in (await look("/readyz")).body
    assert (await look("/livez")).status == 200


@pytest.mark.row("H20")
async def test_fifty_malformed_bodies_at_once_leave_it_fast(client: Client) -> None:
    started = time.perf_counter()
    await asyncio.gather(*(client.send(b"[" * 100_000, headers_for("x")) for _ in range(50)))
    assert time.perf_counter() - started < 5
    assert (await client.ask("tasks/get", {"taskId": "x"}, capabilities=TASKS, name="x")).code == -32602
