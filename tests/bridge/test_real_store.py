"""The bridge over a real store and a real Postgres, with workers where work is done.

Contract, sections 4, 5 and 10; cases 21, 22, 28, 29; security checklist T1 to T5.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from taskstore.v1 import tasks_pb2, tenants_pb2, types_pb2

from mcp_bridge.app import Bridge
from store_service.client import Context, ProtocolError, Worker
from tests.bridge.client import TASKS, Client, client_of, headers_for, meta
from tests.conftest import Clock, Stubs, bridge_on, snapshots, started
from tests.statements import count_statements
from tests.store.builders import claim, complete, fail, report, report_at_once

ROUTES = """
version: 1
tenants:
  dev:
    tools:
      - {name: echo, workflow: echo, task: optional, ttl: 2h, input_schema: {type: object}}
      - {name: echo_soon, workflow: echo, task: optional, inline_wait: 2s, input_schema: {type: object}}
      - {name: refuse, workflow: refuse, task: optional, input_schema: {type: object}}
      - {name: trace, workflow: trace, task: never, input_schema: {type: object}}
      - {name: ask, workflow: ask, task: never, input_schema: {type: object}}
      - {name: nobody, workflow: nobody, task: optional, call_timeout: 1d, disconnect_grace: 5s, input_schema: {type: object}}
      - {name: hasty, workflow: nobody, task: never, call_timeout: 10ms, max_detaches: 0, input_schema: {type: object}}
"""


@pytest.fixture
def route_text() -> str:
    return ROUTES


@pytest.fixture
async def real(store: Stubs, routes: Path) -> AsyncIterator[Bridge]:
    """A bridge over the real store."""
    async with started(bridge_on(routes, store=store.address)) as running:
        yield running


@pytest.fixture
async def user(real: Bridge) -> AsyncIterator[Client]:
    """A client of that bridge."""
    async with client_of(real) as client:
        yield client


@pytest.fixture
async def worker(store: Stubs) -> AsyncIterator[Worker]:
    """A worker that echoes, and one thing it refuses."""
    running = Worker(store.address, tenants=["dev"])

    @running.workflow("echo", version=1)
    async def echo(_: Context, args: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": json.dumps(args)}], "structuredContent": args}

    @running.workflow("refuse", version=1)
    async def refuse(_: Context, _args: dict[str, Any]) -> dict[str, Any]:
        raise ProtocolError(-32603, "I will not")

    @running.workflow("ask", version=1)
    async def ask(ctx: Context, _args: dict[str, Any]) -> dict[str, Any]:
        schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
        return (await ctx.ask("sure", "Sure?", schema)).content

    @running.workflow("trace", version=1)
    async def trace(ctx: Context, _args: dict[str, Any]) -> dict[str, Any]:
        return {"content": [], "structuredContent": ctx.trace_context}

    async with running:
        yield running


async def ended(store: Stubs, task_id: str) -> types_pb2.Task:
    """The task once it has ended."""
    async with asyncio.timeout(60):
        async for task in snapshots(store, "dev", task_id):
            if task.HasField("ended_at"):
                return task
    raise AssertionError("the watch ended before the task")


@pytest.mark.usefixtures("worker")
async def test_a_held_call_is_answered_with_what_the_worker_handed_over(user: Client) -> None:
    arguments = {"nul": "a\u0000b", "big": 12345678901234567890123, "é": [1.5, None, True]}
    result = (await user.call("echo", arguments)).result
    assert result["structuredContent"] == arguments
    assert (result["resultType"], "taskId" in result) == ("complete", False)
    assert (await user.call("refuse")).json["error"] == {"code": -32603, "message": "I will not"}


@pytest.mark.usefixtures("worker")
async def test_a_call_that_is_alone_costs_the_store_four_statements(user: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("leases.CLAIM_POLL_SECONDS", "watches.WATCH_POLL_SECONDS"):  # what goes by the clock
        monkeypatch.setattr(f"store_service.operations.{name}", 600.0)
    await user.call("echo", {"n": 0})
    statements = count_statements(monkeypatch)
    for number in range(20):
        assert (await user.call("echo", {"n": number})).result["structuredContent"] == {"n": number}
    assert {name: count for name, count in statements.items() if name.endswith("_tasks")} == dict.fromkeys(
        ("create_tasks", "claim_tasks", "finish_tasks", "get_tasks"), 20
    )


@pytest.mark.row("T11")
async def test_a_task_that_was_seen_to_fail_is_never_seen_at_work_again(user: Client, store: Stubs) -> None:
    task_id = (await user.call("nobody", tasks=True)).result["taskId"]
    [leased] = (await store.leases.LeaseTasks(claim(workflow="nobody", tenant_ids=["dev"]))).tasks
    await store.leases.FailTask(fail(leased.lease))
    assert (await user.task("get", task_id)).result["status"] == "failed"
    request = tenants_pb2.RedriveTasksRequest(tenant_id="dev", request_id="r", actor="ann", task_ids=[task_id])
    assert len((await store.tenants.RedriveTasks(request)).items) == 1
    unknown = await user.task("get", str(uuid4()))
    for action in ("get", "update", "cancel"):
        answer = await user.task(action, task_id)
        assert (answer.status, answer.body) == (400, unknown.body)
    [again] = (await store.leases.LeaseTasks(claim(workflow="nobody", tenant_ids=["dev"]))).tasks
    await store.leases.CompleteTask(complete(again.lease))
    assert (await user.task("get", task_id)).body == unknown.body


@pytest.mark.row("T2")
@pytest.mark.must("B-16", "T-07", "T-08", "T-10", "T-13")
@pytest.mark.usefixtures("worker")
async def test_a_task_is_created_found_at_once_and_read_to_its_end(user: Client, store: Stubs) -> None:
    created = (await user.call("echo", {"a": 1}, tasks=True)).result
    assert (created["resultType"], created["ttlMs"]) == ("task", 7_200_000)
    assert (await user.task("get", created["taskId"])).status == 200
    await ended(store, created["taskId"])
    result = (await user.task("get", created["taskId"])).result
    assert (result["status"], result["result"]["structuredContent"]) == ("completed", {"a": 1})
    assert result["createdAt"] == created["createdAt"] <= result["lastUpdatedAt"]
    assert (await user.task("cancel", created["taskId"])).status == 200
    assert (await user.task("get", created["taskId"])).result["status"] == "completed"


@pytest.mark.must("T-15")
@pytest.mark.usefixtures("worker")
async def test_a_failed_task_is_shown_with_its_error(user: Client, store: Stubs) -> None:
    task_id = (await user.call("refuse", tasks=True)).result["taskId"]
    await ended(store, task_id)
    result = (await user.task("get", task_id)).result
    assert (result["status"], result["error"]["message"], result["statusMessage"]) == ("failed", "I will not", "I will not")


@pytest.mark.usefixtures("worker")
async def test_short_work_is_answered_within_the_inline_wait(user: Client) -> None:
    result = (await user.call("echo_soon", {"a": 1}, tasks=True)).result
    assert (result["resultType"], result["structuredContent"]) == ("complete", {"a": 1})


@pytest.mark.usefixtures("worker")
async def test_an_answer_before_its_question_is_used_only_if_it_answers_it(user: Client) -> None:
    async def call(**params: Any) -> dict[str, Any]:
        params = {"name": "ask", "arguments": {}, **params}
        return (await user.ask("tools/call", params, name="ask", capabilities={"elicitation": {}})).result

    yes = {"sure": {"action": "accept", "content": {"ok": True}}}
    assert (await call(inputResponses=yes))["structuredContent"] == {"ok": True}
    asked = await call(inputResponses={"sure": {"action": "accept", "content": {"ok": "yes"}}})
    assert list(asked["inputRequests"]) == ["sure"]
    assert (await call(inputResponses=yes, requestState=asked["requestState"]))["structuredContent"] == {"ok": True}


@pytest.mark.usefixtures("worker")
async def test_the_trace_context_of_a_call_reaches_its_worker(user: Client) -> None:
    sent = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "t=1", "baggage": "user=" + "x" * 8000}
    assert (await user.call("trace", meta_members=sent)).result["structuredContent"] == sent
    assert (await user.call("trace", meta_members={"tracestate": "t=1"})).result["structuredContent"] == {}


async def test_a_mebibyte_of_arguments_reaches_the_store_byte_for_byte(user: Client, store: Stubs) -> None:
    arguments = b'{ "a":"' + b"x" * (1024 * 1024 - 9) + b'"}'
    assert len(arguments) == 1024 * 1024
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"nobody","arguments":%s,"_meta":%s}}'
    answer = await user.send(body % (arguments, json.dumps(meta(TASKS)).encode()), headers_for("tools/call", "nobody"))
    request = tasks_pb2.GetTaskRequest(tenant_id="dev", task_id=answer.result["taskId"], view=types_pb2.TASK_VIEW_FULL)
    assert (await store.tasks.GetTask(request)).task.input.data == arguments


async def test_a_repeated_call_with_its_key_finds_the_same_task(user: Client) -> None:
    calls = [user.call("nobody", {"a": 1}, tasks=True, Idempotency_Key="k") for _ in range(20)]
    assert len({answer.result["taskId"] for answer in await asyncio.gather(*calls)}) == 1
    answer = await user.call("nobody", {"a": 2}, tasks=True, Idempotency_Key="k")
    assert (answer.status, answer.code) == (409, 40900)


async def test_fast_reports_reach_the_caller_once_and_in_order_and_before_the_result(
    user: Client, store: Stubs, database: asyncpg.Connection
) -> None:
    calling = asyncio.create_task(user.call("nobody", meta_members={"progressToken": 5}))
    (task,) = (await store.leases.LeaseTasks(claim(workflow="nobody", wait_ms=20_000))).tasks
    await report_at_once(database, task.lease, *range(12))
    await store.leases.ReportProgress(report(task.lease, 12))
    await report_at_once(database, task.lease, 13, 14)
    await store.leases.CompleteTask(complete(task.lease, b'{"content":[]}'))
    *told, result = (await calling).events
    assert [event["params"] for event in told] == [{"progressToken": 5, "progress": value} for value in range(15)]
    assert result["result"]["content"] == []


@pytest.mark.must("C-03", "H-16")
async def test_an_abandoned_call_ends_after_its_grace_and_not_before(user: Client, store: Stubs, clock: Clock) -> None:
    calling = asyncio.create_task(user.call("nobody"))
    task_id = await only_task(store)
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    await clock.advance(seconds=4)
    request = tasks_pb2.GetTaskRequest(tenant_id="dev", task_id=task_id)
    assert (await store.tasks.GetTask(request)).task.state == types_pb2.TASK_STATE_QUEUED
    await clock.advance(seconds=30)
    assert (await ended(store, task_id)).state == types_pb2.TASK_STATE_CANCELLED


@pytest.mark.row("H16")
async def test_a_task_whose_handle_was_given_out_is_never_abandoned(user: Client, store: Stubs, clock: Clock) -> None:
    held = asyncio.create_task(user.call("nobody"))
    task_id = await only_task(store)
    handle = (await user.call("nobody", tasks=True)).result["taskId"]
    await clock.advance(seconds=100_000)
    request = tasks_pb2.GetTaskRequest(tenant_id="dev", task_id=handle)
    assert (await ended(store, task_id)).state == types_pb2.TASK_STATE_CANCELLED
    assert (await store.tasks.GetTask(request)).task.state == types_pb2.TASK_STATE_QUEUED
    assert (await held).result["content"][0]["text"] == "cancelled"


async def test_a_call_that_takes_too_long_ends_with_its_work(user: Client, store: Stubs) -> None:
    assert (await user.call("hasty")).result["content"][0]["text"] == "timed out after 0.01 s"
    assert (await ended(store, await only_task(store))).state == types_pb2.TASK_STATE_CANCELLED


@pytest.mark.row("T5")
@pytest.mark.parametrize("action", ["get", "update", "cancel"])
async def test_ids_that_are_not_the_callers_are_all_alike(user: Client, store: Stubs, clock: Clock, action: str) -> None:
    async def create(tenant: str, subject: str) -> str:
        owner = types_pb2.Owner(issuer="dev", subject=subject)
        contract = types_pb2.TaskContract(workflow="nobody", workflow_version=1, owner=owner, ttl_ms=1000)
        payload = types_pb2.Payload(data=b"{}")
        request = tasks_pb2.CreateTaskRequest(
            tenant_id=tenant, request_id=f"{tenant} {subject}", contract=contract, input=payload
        )
        return (await store.tasks.CreateTask(request)).task.task_id

    mine, foreign_owner, foreign_tenant = await create("dev", "dev"), await create("dev", "eve"), await create("other", "dev")
    assert (await user.task("get", mine)).status == 200
    await user.task("cancel", mine)
    await clock.advance(seconds=2)
    ids = [mine, foreign_owner, foreign_tenant, "00000000-0000-4000-8000-000000000000", "malformed", ""]
    answers = [await user.task(action, task_id, name=None) for task_id in ids]
    assert {(answer.status, answer.body) for answer in answers} == {
        (400, b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"Task not found"}}')
    }
    found = await store.tasks.GetTask(tasks_pb2.GetTaskRequest(tenant_id="dev", task_id=foreign_owner))
    assert not found.task.cancel_requested


async def only_task(store: Stubs) -> str:
    """The id of the tenant's only task, as soon as there is one."""
    async with asyncio.timeout(60):
        while True:
            found = (await store.tasks.ListTasks(tasks_pb2.ListTasksRequest(tenant_id="dev"))).tasks
            if found:
                (task,) = found
                return task.task_id


async def test_a_client_that_asks_is_told_why_its_task_is_where_it_is(user: Client) -> None:
    task_id = (await user.call("nobody", tasks=True)).result["taskId"]
    told = (await user.task("get", task_id, meta_members={"dev.tenure/why": True})).result
    assert told["_meta"]["dev.tenure/why"] == "No worker asks for nobody version 1, nor did one during the last day."
    assert told["status"] == "working"
    assert "io.modelcontextprotocol/serverInfo" in told["_meta"]
    assert "dev.tenure/why" not in (await user.task("get", task_id)).result["_meta"]
    wrong = await user.task("get", task_id, meta_members={"dev.tenure/why": "yes"})
    assert wrong.json["error"]["code"] == -32602
