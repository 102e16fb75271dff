"""Clients of 2025-11-25 and 2025-06-18 over HTTP. Contract, sections 8, 10.5 and 10.7."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from store_service.client import StoreError
from tests.bridge.client import TASKS, VERSION, Client, client_of, meta
from tests.bridge.fake_store import FakeTaskStore
from tests.bridge.legacy import VERSIONS, Legacy, cancelled
from tests.conftest import bridge_on, started

KEYS = [base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2)]
ASKING = """
      - {name: asking, workflow: w, task: never, input_schema: {type: object}, preflight: [{key: k, method: roots/list}]}
      - {name: listed, workflow: w, task: optional, input_schema: {type: object}, output_schema: {type: array}}
"""


@pytest.fixture
def routes(routes: Path) -> Path:
    """The route file, with a tool that asks and one whose output is no object."""
    routes.write_text(routes.read_text() + ASKING)
    return routes


@pytest.fixture
def legacy(client: Client) -> Legacy:
    return Legacy(client)


async def task_of(fake: FakeTaskStore) -> str:
    """The one task, once somebody waits for it."""
    await fake.watching.wait()
    (task_id,) = fake.tasks
    return task_id


@pytest.mark.parametrize(("wanted", "answered"), [(one, one) for one in VERSIONS] + [("2024-11-05", VERSIONS[0])])
async def test_a_session_is_opened_for_a_revision_that_is_served(legacy: Legacy, wanted: str, answered: str) -> None:
    result = await legacy.initialize(wanted)
    assert result["protocolVersion"] == answered
    assert result["capabilities"] == {"tools": {}}
    assert result["serverInfo"]["name"] == "tenure"
    assert legacy.session is not None
    assert legacy.session.isascii()
    accepted = await legacy.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert (accepted.status, accepted.body) == (202, b"")
    assert (await legacy.ask("ping")).result == {}


async def test_each_session_is_another(legacy: Legacy) -> None:
    await legacy.initialize()
    first = legacy.session
    await legacy.initialize()
    assert first != legacy.session


async def test_initialize_must_name_a_revision(legacy: Legacy) -> None:
    answer = await legacy.ask("initialize", {"protocolVersion": 5}, MCP_Protocol_Version=None)
    assert (answer.status, answer.code, answer.json["id"]) == (200, -32602, 1)


async def test_the_era_is_told_by_meta_then_by_the_version_header_then_by_initialize(legacy: Legacy) -> None:
    modern = {"_meta": meta()}
    asked: list[tuple[str, dict[str, Any], str | None, tuple[int, int | None]]] = [
        ("ping", {}, "2025-06-18", (200, None)),
        ("ping", {}, "2025-11-25", (200, None)),
        ("ping", {}, VERSION, (400, -32602)),
        ("ping", {}, "2025-03-26", (400, -32602)),
        ("ping", {}, None, (400, -32020)),
        ("ping", modern, "2025-11-25", (400, -32020)),
        ("initialize", {"protocolVersion": "2025-11-25"}, None, (200, None)),
        ("initialize", {"protocolVersion": "2025-11-25"}, "2025-11-25", (200, None)),
        ("initialize", {"protocolVersion": "2025-11-25"}, VERSION, (400, -32602)),
        ("initialize", modern, None, (400, -32020)),
    ]
    for method, params, version, expected in asked:
        answer = await legacy.ask(method, params, MCP_Protocol_Version=version)
        assert (answer.status, answer.json.get("error", {}).get("code")) == expected, (method, params, version)
    for method in ("initialize", "ping", "logging/setLevel"):
        answer = await legacy.ask(method, modern, MCP_Protocol_Version=VERSION, Mcp_Method=method)
        assert (answer.status, answer.code) == (404, -32601)


async def test_the_modern_versions_alone_are_told_to_modern_clients(client: Client) -> None:
    assert (await client.ask("server/discover")).result["supportedVersions"] == [VERSION]


async def test_earlier_clients_are_shown_the_tools_that_they_can_call(legacy: Legacy, client: Client) -> None:
    answer = await legacy.ask("tools/list")
    shown = {tool["name"]: tool for tool in answer.result["tools"]}
    assert set(answer.result) == {"tools"}
    everybody = {tool["name"]: tool for tool in (await client.ask("tools/list")).result["tools"]}
    assert set(everybody) - set(shown) == {"task", "watched", "sampler", "asking"}
    assert shown["strict"] == everybody["strict"]
    assert "outputSchema" not in shown["listed"]
    assert (await legacy.ask("tools/list", {"cursor": "x"})).code == -32602


async def test_errors_of_the_protocol_have_the_status_200(legacy: Legacy, fake: FakeTaskStore) -> None:
    asked: list[tuple[str, dict[str, Any], int]] = [
        ("no/such", {}, -32601),
        ("tasks/get", {"taskId": "x"}, -32601),
        ("subscriptions/listen", {}, -32601),
        ("logging/setLevel", {"level": "info"}, -32601),
        ("tools/call", {"name": 5}, -32602),
        ("tools/call", {"name": "nobody"}, -32602),
        ("tools/call", {"name": "held", "_meta": 5}, -32602),
        ("tools/call", {"name": "held", "_meta": {"progressToken": 1.5}}, -32602),
        ("tools/call", {"name": "task"}, -32021),
        ("tools/call", {"name": "sampler"}, -32021),
        ("tools/call", {"name": "asking"}, -32021),
    ]
    for method, params, code in asked:
        answer = await legacy.ask(method, params)
        assert (answer.status, answer.code, answer.json["id"]) == (200, code, 1), method
    fake.trouble = StoreError("away", reason="STORAGE_UNAVAILABLE")
    assert ((answer := await legacy.call("held")).status, answer.code) == (200, 50300)
    assert not fake.created


async def test_a_held_call_is_answered_with_the_plain_result(legacy: Legacy, fake: FakeTaskStore) -> None:
    await legacy.initialize()
    calling = asyncio.create_task(legacy.call("strict", {"dry": True}))  # without Mcp-Method and Mcp-Param-*
    task_id = await task_of(fake)
    await fake.complete(task_id, b'{"content":[],"structuredContent":{"a":[1]},"resultType":"complete"}')
    assert (await calling).result == {"content": [], "structuredContent": {"a": [1]}}
    (created,) = fake.created
    assert created.contract.client_capabilities == b"{}"
    assert created.abandon_after_ms > 0


@pytest.mark.parametrize("value", [b"[1,2]", b"5", b'"text"', b"null"])
async def test_what_is_no_object_comes_as_text_alone(legacy: Legacy, fake: FakeTaskStore, value: bytes) -> None:
    calling = asyncio.create_task(legacy.call("held"))
    await fake.complete(await task_of(fake), value)
    assert (await calling).result == {"content": [{"type": "text", "text": value.decode()}]}


async def test_what_is_wrong_with_arguments_is_a_tool_error(legacy: Legacy) -> None:
    answer = await legacy.call("strict", {"region": 5})
    assert answer.result["isError"] is True
    assert "arguments.region" in answer.result["content"][0]["text"]


async def test_the_end_of_the_work_is_told_as_it_is(legacy: Legacy, fake: FakeTaskStore) -> None:
    calling = asyncio.create_task(legacy.call("held"))
    await fake.fail(await task_of(fake), -32603, "broken")
    answer = await calling
    assert (answer.status, answer.json["error"]) == (200, {"code": -32603, "message": "broken"})


async def test_work_that_takes_too_long_is_ended_and_is_a_tool_error(legacy: Legacy, fake: FakeTaskStore) -> None:
    result = (await legacy.call("hasty")).result
    assert (result["isError"], result["content"][0]["text"]) == (True, "timed out after 0.01 s")
    assert len(fake.cancelled) == 1
    assert (await legacy.call("loose")).result["isError"] is True
    assert len(fake.cancelled) == 1


async def test_work_that_asks_all_the_same_is_ended(legacy: Legacy, fake: FakeTaskStore) -> None:
    calling = asyncio.create_task(legacy.call("held"))
    task_id = await task_of(fake)
    await fake.ask(task_id, "k", b"{}")
    assert (await calling).json["error"]["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}}}
    assert fake.cancelled == [task_id]


async def test_a_client_that_leaves_only_starts_the_clock(legacy: Legacy, fake: FakeTaskStore) -> None:
    calling = asyncio.create_task(legacy.call("held"))
    task_id = await task_of(fake)
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    await asyncio.wait_for(fake.heard.wait(), 60)
    assert fake.attached[-1] == (task_id, 10_000)
    assert not fake.cancelled


async def test_progress_comes_over_a_stream(legacy: Legacy, fake: FakeTaskStore) -> None:
    params = {"name": "held", "arguments": {}, "_meta": {"progressToken": "p"}}
    calling = asyncio.create_task(legacy.ask("tools/call", params))
    task_id = await task_of(fake)
    fake.watching.clear()
    await fake.report(task_id, 1, 2, "half")
    await fake.watching.wait()
    await fake.complete(task_id, b'{"content":[]}')
    answer = await calling
    told, result = answer.events
    assert (told["method"], told["params"]["progressToken"], told["params"]["progress"]) == ("notifications/progress", "p", 1)
    assert result == {"jsonrpc": "2.0", "id": 1, "result": {"content": []}}


async def test_a_repeated_key_finds_the_same_task(legacy: Legacy, fake: FakeTaskStore) -> None:
    calls = [asyncio.create_task(legacy.call("held", {"a": 1}, Idempotency_Key="k")) for _ in range(2)]
    await fake.complete(await task_of(fake), b'{"content":[]}')
    assert [answer.result for answer in await asyncio.gather(*calls)] == [{"content": []}] * 2
    assert ((answer := await legacy.call("held", {"a": 2}, Idempotency_Key="k")).status, answer.code) == (200, 40900)


@pytest.mark.parametrize("session", ["x", "", "é", "A" * 59, "A" * 5000])
async def test_a_session_that_was_not_opened_here_is_not_found(legacy: Legacy, session: str) -> None:
    answer = await legacy.ask("ping", Mcp_Session_Id=session)
    assert (answer.status, answer.code, answer.json["id"]) == (404, -32600, 1)


@pytest.mark.must("C-07", "C-08")
async def test_a_cancelled_call_is_found_by_its_session_and_its_id_on_another_bridge(routes: Path, fake: FakeTaskStore) -> None:
    async with running(routes, fake, "dev", KEYS[0]) as one, running(routes, fake, "dev", KEYS[0]) as other:
        holding = Legacy(one)
        await holding.initialize()
        calls = [asyncio.create_task(holding.call("held", {"n": n}, request_id=n)) for n in (1, "1")]
        async with asyncio.timeout(60):
            while len(fake.tasks) < 2:
                fake.watching.clear()
                await fake.watching.wait()
        with capture_logs() as lines:
            accepted = await Legacy(other).send(cancelled("1"), Mcp_Session_Id=holding.session)
        assert {"event": "cancel_asked", "reason": "enough", "log_level": "debug"} in lines
        assert (accepted.status, accepted.body) == (202, b"")
        assert (await calls[1]).result == {"content": [{"type": "text", "text": "cancelled"}], "isError": True}
        (ended,) = fake.cancelled
        assert fake.tasks[ended].contract.tool == "held"
        (left,) = set(fake.tasks) - {ended}
        await fake.complete(left, b'{"content":[]}')
        assert (await calls[0]).result == {"content": []}


async def test_only_the_session_that_called_cancels_and_every_notification_is_accepted(
    legacy: Legacy, fake: FakeTaskStore
) -> None:
    await legacy.initialize()
    calling = asyncio.create_task(legacy.call("held"))
    task_id = await task_of(fake)
    mine = legacy.session
    await legacy.initialize()
    others: list[tuple[dict[str, Any], dict[str, str | None]]] = [
        (cancelled(1), {}),
        (cancelled(1), {"Mcp_Session_Id": None}),
        (cancelled(1), {"Mcp_Session_Id": "x"}),
        (cancelled(1), {"Mcp_Session_Id": mine, "MCP_Protocol_Version": VERSION}),
        (cancelled(1), {"Mcp_Session_Id": mine, "MCP_Protocol_Version": None}),
        (cancelled(2), {"Mcp_Session_Id": mine}),
        (cancelled(True), {"Mcp_Session_Id": mine}),
        (cancelled([]), {"Mcp_Session_Id": mine}),
    ]
    for body, headers in others:
        assert (await legacy.send(body, **headers)).status == 202
    fake.trouble = StoreError("away", reason="STORAGE_UNAVAILABLE")
    assert (await legacy.send(cancelled(1), Mcp_Session_Id=mine)).status == 202
    fake.trouble = None
    assert not fake.cancelled
    assert (await legacy.send(cancelled(1), Mcp_Session_Id=mine)).status == 202
    assert fake.cancelled == [task_id]
    await calling
    assert (await legacy.send(cancelled(1), Mcp_Session_Id=mine)).status == 202
    assert fake.cancelled == [task_id]


@contextlib.asynccontextmanager
async def running(routes: Path, fake: FakeTaskStore, tenant: str, *keys: str) -> AsyncIterator[Client]:
    """A client of a bridge for one tenant."""
    path = routes.with_name(f"{tenant}.yaml")
    path.write_text(routes.read_text().replace("  dev:", f"  {tenant}:"))
    bridge = bridge_on(path, fake=fake, dev_tenant=tenant, state_keys=keys)
    async with started(bridge), client_of(bridge) as client:
        yield client


@pytest.mark.row("A16")
async def test_a_session_is_found_on_any_bridge_with_the_keys_and_by_its_own_caller_alone(
    routes: Path, fake: FakeTaskStore
) -> None:
    async with running(routes, fake, "dev", KEYS[0]) as client:
        opened = Legacy(client)
        await opened.initialize()

    async def status_on(tenant: str, *keys: str) -> int:
        async with running(routes, fake, tenant, *keys) as client:
            return (await Legacy(client).ask("ping", Mcp_Session_Id=opened.session)).status

    assert await status_on("dev", KEYS[1], KEYS[0]) == 200
    assert await status_on("dev", KEYS[1]) == 404
    assert await status_on("other", KEYS[0]) == 404


async def test_the_tasks_extension_of_an_earlier_client_is_not_known(legacy: Legacy, fake: FakeTaskStore) -> None:
    calling = asyncio.create_task(legacy.ask("tools/call", {"name": "either", "task": {"ttl": 1}, "_meta": TASKS}))
    await fake.complete(await task_of(fake), b'{"content":[]}')
    assert (await calling).result == {"content": []}
