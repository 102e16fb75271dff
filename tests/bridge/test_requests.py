"""What a request says of itself, and in which order it is refused. Contract, sections 1, 2, 10.5, 10.6; cases 1 to 17."""

import asyncio
import time
from typing import Any

import pytest

from tests.bridge.client import ABSENT, PREFIX, TASKS, VERSION, Client, headers_for, meta
from tests.bridge.fake_store import FakeTaskStore

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
@pytest.mark.must("B-28", "N-01")
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
        {PREFIX + "protocolVersion": VERSION, PREFIX + "clientCapabilities": {}, PREFIX + "logLevel": "loud"},
        {PREFIX + "protocolVersion": VERSION, PREFIX + "clientCapabilities": {}, PREFIX + "logLevel": ["info"]},
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


@pytest.mark.row("H20")
async def test_fifty_malformed_bodies_at_once_leave_it_fast(client: Client) -> None:
    started = time.process_time()
    await asyncio.gather(*(client.send(b"[" * 100_000, headers_for("x")) for _ in range(50)))
    assert time.process_time() - started < 5
    assert (await client.ask("tasks/get", {"taskId": "x"}, capabilities=TASKS, name="x")).code == -32602
