"""What holds for every method. Specification: the base protocol, versions, tools."""

import asyncio
import json
import re
from typing import Any

import aiohttp
import pytest

from mcp_bridge.access.tool_schemas import compile_arguments
from mcp_bridge.app import Bridge
from mcp_bridge.wire.mcp import IDEMPOTENCY_KEY, PREFLIGHT, TASKS
from tests.bridge.client import PREFIX, Client
from tests.bridge.client import TASKS as DECLARED
from tests.bridge.fake_store import FakeTaskStore

LABEL = r"[a-zA-Z]([a-zA-Z0-9-]*[a-zA-Z0-9])?"
KEY = re.compile(rf"{LABEL}(\.{LABEL})+/[a-zA-Z0-9]([a-zA-Z0-9._-]*[a-zA-Z0-9])?")
DONE = b'{"content":[]}'


@pytest.mark.row("H22", "T1")
@pytest.mark.must("B-03", "B-04", "B-31", "R-02", "T-05", "T-16", "T-22", "T-26")
async def test_every_result_is_complete_but_a_created_task_and_says_what_the_server_is(client: Client) -> None:
    created = (await client.call("task", tasks=True)).result
    task: dict[str, Any] = {"taskId": created["taskId"]}
    results = [created]
    for method, params in (
        ("server/discover", {}),
        ("tools/list", {}),
        ("tasks/get", task),
        ("tasks/update", {**task, "inputResponses": {}}),
        ("tasks/cancel", task),
    ):
        answer = await client.ask(method, params, name=params.get("taskId"), capabilities=DECLARED, request_id=method)
        assert answer.json["id"] == method
        results.append(answer.result)
    assert [result["resultType"] for result in results] == ["task"] + ["complete"] * 5
    assert {result["_meta"][PREFIX + "serverInfo"]["name"] for result in results} == {"tenure"}
    assert TASKS in results[1]["capabilities"]["extensions"], "the extension that has tasks is advertised"


@pytest.mark.row("A16")
@pytest.mark.must("B-32", "B-33", "E-07")
async def test_what_a_client_says_that_it_is_changes_nothing(client: Client) -> None:
    bodies = set()
    for info in ({}, {"name": "admin", "version": "1"}, {"name": 5}, "tenure", None, [1]):
        answer = await client.ask("tools/list", meta_members={PREFIX + "clientInfo": info})
        bodies.add(answer.body)
    assert bodies == {(await client.ask("tools/list")).body}


@pytest.mark.must("B-27", "V-03")
@pytest.mark.parametrize("key", [IDEMPOTENCY_KEY, PREFLIGHT, TASKS])
def test_names_have_the_form_of_keys_of_meta(key: str) -> None:
    assert KEY.fullmatch(key)
    is_mcps = key.split(".")[1].startswith("modelcontextprotocol/")
    assert is_mcps == (key == TASKS), "what is ours is not said to be MCP's"


@pytest.mark.must("B-13", "B-15", "L-03", "L-04")
async def test_the_list_is_the_same_on_every_connection_and_after_every_request(client: Client, bridge: Bridge) -> None:
    before = await client.ask("tools/list")
    await client.call("task", tasks=True)
    await client.ask("tools/list", capabilities={"sampling": {}, **DECLARED}, Mcp_Session_Id="other")
    async with aiohttp.ClientSession() as other:
        after = await Client(other, bridge.port).ask("tools/list")
    assert before.body == after.body == (await client.ask("tools/list")).body


@pytest.mark.must("B-14")
async def test_requests_of_many_conversations_are_served_side_by_side(client: Client, fake: FakeTaskStore) -> None:
    calls = [asyncio.create_task(client.call("held", {"n": n}, request_id=n)) for n in range(8)]
    async with asyncio.timeout(60):
        while len(fake.tasks) < len(calls):
            await fake.watching.wait()
            fake.watching.clear()
    for task_id, request in reversed(list(zip(fake.tasks, fake.created, strict=True))):
        await fake.complete(task_id, json.dumps({"content": [], "structuredContent": json.loads(request.input.data)}).encode())
    for n, answer in enumerate(await asyncio.gather(*calls)):
        assert (answer.json["id"], answer.result["structuredContent"]) == (n, {"n": n})


@pytest.mark.must("B-19")
def test_a_schema_without_a_dialect_is_one_of_2020_12() -> None:
    def refuse(path: object, reason: str) -> None:
        raise AssertionError(reason)

    schema = {"type": "object", "properties": {"pair": {"prefixItems": [{"type": "string"}], "items": {"type": "integer"}}}}
    arguments = compile_arguments(schema, refuse)
    assert arguments is not None
    assert not arguments.faults({"pair": ["a", 1]}, size_bytes=1)
    assert arguments.faults({"pair": [1, 1]}, size_bytes=1)
    assert arguments.faults({"pair": ["a", "b"]}, size_bytes=1)
