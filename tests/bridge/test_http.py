"""The edge: what HTTP may bring, and what is answered to it. Contract, sections 1, 2, 10.5, 10.6; cases 1 to 17."""

import asyncio
import errno
import gzip
import json
import re
import socket
from typing import Any

import pytest
from yarl import URL

from mcp_bridge.body import BODY_BYTES
from tests.bridge.client import TASKS, Client, client_of, headers_for, meta
from tests.bridge.fake_store import FakeTaskStore
from tests.conftest import bridge_on, started

DISCOVER = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": meta()}}


async def raw(port: int, data: bytes, *, until_closed: bool = False) -> bytes:
    """Sends bytes as they are. Returns the answer, or all until the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(60):
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
    async with asyncio.timeout(60):
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
    async with asyncio.timeout(60):
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
    async with asyncio.timeout(60):
        while not fake.read:
            await asyncio.sleep(0.001)
        for _ in range(30):  # time enough for the others' answers, if they were made
            assert (await client.ask("server/discover")).status == 200
        assert len(fake.read) < 9
        answers = b""
        while answers.count(b"HTTP/1.1 200 OK") < 9:
            answers += await reader.read(2**16)
    writer.close()


async def test_a_client_that_does_not_take_its_answer_is_given_up(
    client: Client, fake: FakeTaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_bridge.connections.WRITE_SECONDS", 0.2)
    task = (await client.call("task", tasks=True)).result["taskId"]
    await fake.complete(task, json.dumps({"content": [{"type": "text", "text": "x" * 2**23}]}).encode())
    params = {"taskId": task, "_meta": meta(TASKS)}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": params}).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", client.port))
        connection.send(post(headers_for("tasks/get", task), body))
        async with asyncio.timeout(60):
            while (fault := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)) == 0:
                await asyncio.sleep(0.01)
    assert fault == errno.ECONNRESET


@pytest.mark.row("H18")
async def test_answers_tell_nothing_about_what_serves_them_and_are_not_stored(client: Client) -> None:
    answer = await client.ask("server/discover")
    assert answer.headers["Server"] == "tenure"
    assert answer.headers["Cache-Control"] == "no-store"
