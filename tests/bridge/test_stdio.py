"""The bridge over standard input and output, as a process with pipes, over a real store. Contract, sections 8 and 10.24; MCP,
basic/transports/stdio."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from taskstore.v1 import leases_pb2, tasks_pb2, types_pb2

from mcp_bridge.lines import LINE_BYTES
from tests.bridge.client import PREFIX, TASKS, meta
from tests.conftest import Clock, Stubs
from tests.store.builders import claim, complete, report

ROUTES = """
version: 1
tenants:
  dev:
    tools:
      - {name: held, workflow: w, task: optional, input_schema: {type: object}, disconnect_grace: 5s}
      - {name: task, workflow: w, task: required, input_schema: {type: object}}
      - name: mirrored
        workflow: w
        task: never
        input_schema: {type: object, properties: {region: {type: string, x-mcp-header: Region}}}
  acme:
    tools:
      - {name: secret, workflow: w, task: never, input_schema: {type: object}, grants: {call: {groups: [hr]}}}
      - {name: open, workflow: w, task: optional, input_schema: {type: object}, grants: {call: anyone}}
"""
PATIENCE_SECONDS = 120


class Host:
    """A host that has started a bridge."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr

    def send(self, message: dict[str, Any] | bytes) -> None:
        """Sends a line."""
        self.stdin.write((message if isinstance(message, bytes) else json.dumps(message).encode()) + b"\n")

    def ask(self, method: str, params: dict[str, Any] | None = None, *, request_id: Any = 1, capabilities: Any = None) -> None:
        """Sends a request of today."""
        params = {**(params or {}), "_meta": {**meta(capabilities), **(params or {}).get("_meta", {})}}
        self.send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})

    def call(self, tool: str, *, request_id: Any = 1, capabilities: Any = None, **params: Any) -> None:
        """Calls a tool as of today."""
        wanted = {"name": tool, "arguments": {}, **params}
        self.ask("tools/call", wanted, request_id=request_id, capabilities=capabilities)

    async def read(self) -> dict[str, Any]:
        """The next message."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            line = await self.stdout.readline()
        assert line.endswith(b"\n"), line
        value = json.loads(line)
        assert value["jsonrpc"] == "2.0"
        return dict(value)

    async def end(self) -> tuple[int, bytes]:
        """Its exit code, and what it wrote before."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            rest = await self.stdout.read()
            return await self.process.wait(), rest


Start = Callable[..., AbstractAsyncContextManager[Host]]


@pytest.fixture
def start(store: Stubs, tmp_path: Path) -> Start:
    """Starts a bridge for a host."""
    routes = tmp_path / "routes.yaml"
    routes.write_text(ROUTES)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    settings = {"TENURE_BRIDGE_ROUTES": str(routes), "TENURE_BRIDGE_STORE": store.address}

    @asynccontextmanager
    async def started(**more: str) -> AsyncIterator[Host]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "mcp_bridge", "stdio", env={**inherited, **settings, **more}, limit=2 * LINE_BYTES,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            yield Host(process)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()

    return started


@pytest.fixture
async def host(start: Start) -> AsyncIterator[Host]:
    async with start() as running:
        yield running


async def leased(store: Stubs, limit: int = 1) -> list[leases_pb2.LeasedTask]:
    """So many tasks, taken by a worker as soon as they are there."""
    found: list[leases_pb2.LeasedTask] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(found) < limit:
            found += (await store.leases.LeaseTasks(claim(workflow="w", wait_ms=20_000))).tasks
    return found


async def state_of(store: Stubs, task_id: str) -> str:
    task = (await store.tasks.GetTask(tasks_pb2.GetTaskRequest(tenant_id="dev", task_id=task_id))).task
    return types_pb2.TaskState.Name(task.state).removeprefix("TASK_STATE_")


async def is_over(store: Stubs, task_id: str) -> bool:
    """Whether the task has been cancelled, or its worker was asked to end it."""
    task = (await store.tasks.GetTask(tasks_pb2.GetTaskRequest(tenant_id="dev", task_id=task_id))).task
    return task.cancel_requested or task.state == types_pb2.TASK_STATE_CANCELLED


async def until_over(store: Stubs, task_id: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await is_over(store, task_id):
            await asyncio.sleep(0.02)  # until the store's chores have looked


async def abandoned_in(database: asyncpg.Connection, task_id: str) -> float:
    """In how many seconds nobody will wait for the task any more."""
    query = "SELECT extract(epoch FROM abandon_at - tenure.task_now())::float8 FROM tenure.task_state WHERE task_id = $1::uuid"
    return float(await database.fetchval(query, task_id))


@pytest.mark.must("O-01", "O-03")
async def test_a_client_of_today_discovers_lists_calls_and_follows_a_task(host: Host, store: Stubs) -> None:
    host.ask("server/discover", request_id="a")
    discovered = await host.read()
    assert (discovered["id"], discovered["result"]["supportedVersions"]) == ("a", ["2026-07-28"])
    host.ask("tools/list", request_id=2)
    assert [tool["name"] for tool in (await host.read())["result"]["tools"]] == ["held", "task", "mirrored"]
    host.call("task", capabilities=TASKS)
    created = (await host.read())["result"]
    (task,) = await leased(store)
    assert created["taskId"] == task.lease.task_id
    await store.leases.CompleteTask(complete(task.lease, b'{"content":[{"type":"text",\n "text":"\\n"}]}'))
    host.ask("tasks/get", {"taskId": created["taskId"]}, capabilities=TASKS)
    result = (await host.read())["result"]
    assert (result["status"], result["result"]["content"][0]["text"]) == ("completed", "\n")


async def test_requests_run_side_by_side_with_progress_and_without_headers(host: Host, store: Stubs) -> None:
    host.call("held", request_id=1, _meta={"progressToken": "p"})
    host.call("mirrored", request_id="1", arguments={"region": "eu"})
    host.ask("server/discover", request_id=3)
    assert (await host.read())["id"] == 3
    tasks = {task.contract.tool: task.lease for task in await leased(store, 2)}
    await store.leases.CompleteTask(complete(tasks["mirrored"], b'{"content":[]}'))
    assert (await host.read())["id"] == "1"
    await store.leases.ReportProgress(report(tasks["held"], 1))
    told = await host.read()
    assert (told["method"], told["params"]) == ("notifications/progress", {"progressToken": "p", "progress": 1})
    await store.leases.CompleteTask(complete(tasks["held"], b'{"content":[]}'))
    assert (await host.read())["id"] == 1


@pytest.mark.must("O-07")
async def test_a_legacy_host_initializes_and_calls(host: Host, store: Stubs) -> None:
    host.send({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}})
    host.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
    host.send({"jsonrpc": "2.0", "id": 1, "method": "ping"})
    answers = {message["id"]: message["result"] for message in (await host.read(), await host.read())}
    assert (answers[0]["protocolVersion"], answers[1]) == ("2025-06-18", {})
    host.send({"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}})
    assert [tool["name"] for tool in (await host.read())["result"]["tools"]] == ["held", "mirrored"]
    host.send({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "held"}})
    (task,) = await leased(store)
    await store.leases.CompleteTask(complete(task.lease, b'{"content":[]}'))
    assert await host.read() == {"jsonrpc": "2.0", "id": 3, "result": {"content": []}}
    host.ask("server/discover", request_id=4)
    assert (await host.read())["result"]["resultType"] == "complete"


async def test_what_is_wrong_is_told_by_line_and_the_next_line_is_served(host: Host) -> None:
    wrong: list[tuple[bytes, Any, int]] = [
        (b"{", None, -32700),
        (b'{"jsonrpc":"2.0","id":7,"method":5}', 7, -32600),
        (b"[]", None, -32600),
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', 1, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', 1, -32602),
        (b'"' + b"x" * LINE_BYTES + b'"', None, -32700),
        (b'{"jsonrpc":"2.0","id":2,"method":"no/such","params":{"_meta":%s}}' % json.dumps(meta()).encode(), 2, -32601),
    ]
    host.send(b"")
    host.send(b" \r")
    host.send({"jsonrpc": "2.0", "method": "no/such"})
    for line, request_id, code in wrong:
        host.send(line)
        answer = await host.read()
        assert (answer.get("id"), answer["error"]["code"]) == (request_id, code), line[:80]
    padding = LINE_BYTES - len(
        b'{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":%s,"x":""}}' % json.dumps(meta()).encode()
    )
    host.send(
        b'{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":%s,"x":"%s"}}'
        % (json.dumps(meta()).encode(), b"x" * padding)
    )
    assert "result" in await host.read()


async def test_an_id_that_is_under_way_is_not_used_again(host: Host, store: Stubs) -> None:
    host.call("held")
    host.call("held")
    assert (await host.read())["error"]["code"] == -32600
    (task,) = await leased(store)
    await store.leases.CompleteTask(complete(task.lease, b'{"content":[]}'))
    assert "result" in await host.read()
    host.ask("server/discover")
    assert "result" in await host.read()


@pytest.mark.must("O-04", "O-05")
async def test_a_cancelled_request_is_not_answered_and_its_work_has_its_grace(
    host: Host, store: Stubs, database: asyncpg.Connection, clock: Clock
) -> None:
    host.call("held", request_id=5)
    (task,) = await leased(store)
    for request_id in (6, "5", None, True):
        host.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id}})
    host.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}})
    host.ask("server/discover", request_id=7)
    assert (await host.read())["id"] == 7
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await abandoned_in(database, task.lease.task_id) > 5:  # 25 s as long as somebody waits
            await asyncio.sleep(0.02)  # until the process has told the store, of which no event tells here
    assert not await is_over(store, task.lease.task_id)
    await clock.advance(seconds=6)
    await until_over(store, task.lease.task_id)


async def test_a_request_that_is_cancelled_at_once_leaves_nothing_behind(host: Host, store: Stubs) -> None:
    for _ in range(3):
        host.ask("server/discover", request_id="first")
        host.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "first"}})
    host.ask("server/discover", request_id="last")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (answer := await host.read())["id"] != "last":
            assert "result" in answer
    host.ask("server/discover", request_id="first")
    assert "result" in await host.read()


@pytest.mark.must("O-06")
async def test_the_end_of_the_input_lets_go_of_every_call_and_ends_the_process(host: Host, store: Stubs, clock: Clock) -> None:
    for request_id in range(3):
        host.call("held", request_id=request_id)
    host.call("task", request_id="kept", capabilities=TASKS)
    tasks = await leased(store, 4)
    assert (await host.read())["id"] == "kept"
    host.stdin.write_eof()
    assert await host.end() == (0, b"")
    await clock.advance(seconds=6)
    for task in tasks:
        if task.contract.tool == "held":
            await until_over(store, task.lease.task_id)
    (kept,) = (task for task in tasks if task.contract.tool == "task")
    assert not await is_over(store, kept.lease.task_id)


async def test_what_is_piped_in_is_answered(host: Host) -> None:
    host.ask("server/discover", request_id=1)
    host.ask("tools/list", request_id=2)
    host.stdin.write_eof()
    status, output = await host.end()
    assert status == 0
    assert sorted(json.loads(line)["id"] for line in output.splitlines()) == [1, 2]


async def test_a_host_that_does_not_read_any_more_has_left(host: Host, store: Stubs) -> None:
    host.call("held")
    await leased(store)
    host.stdout._transport.close()  # type: ignore[attr-defined]  # the reading end of the pipe
    await host.stdout.read()  # until it is closed
    host.ask("server/discover", request_id=2)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await host.process.wait() == 0


@pytest.mark.must("C-01", "S-07")
async def test_a_subscription_tells_and_ends_with_its_result_and_a_cancelled(host: Host, store: Stubs) -> None:
    host.call("task", capabilities=TASKS)
    task_id = (await host.read())["result"]["taskId"]
    host.ask("subscriptions/listen", {"notifications": {"taskIds": [task_id]}}, request_id="s", capabilities=TASKS)
    acknowledged, snapshot = await host.read(), await host.read()
    assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
    assert (snapshot["method"], snapshot["params"]["status"]) == ("notifications/tasks", "working")
    assert snapshot["params"]["_meta"][PREFIX + "subscriptionId"] == "s"
    (task,) = await leased(store)
    await store.leases.CompleteTask(complete(task.lease, b'{"content":[]}'))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (told := await host.read())["params"]["status"] != "completed":
            pass
    result, ended = await host.read(), await host.read()
    assert (result["id"], result["result"]["resultType"]) == ("s", "complete")
    assert (ended["method"], ended["params"]) == ("notifications/cancelled", {"requestId": "s"})
    assert told["params"]["taskId"] == task_id


async def test_a_bridge_that_is_told_to_end_says_so_to_whoever_listens(host: Host, store: Stubs) -> None:
    host.ask("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, request_id=1)
    assert (await host.read())["method"] == "notifications/subscriptions/acknowledged"
    host.call("held", request_id=2)
    (task,) = await leased(store)
    host.process.send_signal(signal.SIGTERM)
    told = [await host.read() for _ in range(3)]
    answers = {message["id"]: message["result"]["resultType"] for message in told if "id" in message}
    assert answers == {1: "complete", 2: "input_required"}
    assert [message["params"] for message in told if "method" in message] == [{"requestId": 1}]
    assert await host.end() == (0, b"")
    assert await state_of(store, task.lease.task_id) == "LEASED"


@pytest.mark.must("O-02")
async def test_standard_output_has_messages_alone_and_the_log_goes_to_standard_error(host: Host) -> None:
    host.ask("server/discover")
    await host.read()
    host.stdin.write_eof()
    assert await host.end() == (0, b"")
    events = [json.loads(line)["event"] for line in (await host.stderr.read()).splitlines()]
    assert (events[0], events[-1]) == ("bridge_started", "bridge_stopped")
    assert "call" in events


async def test_who_the_host_is_was_configured(start: Start, store: Stubs) -> None:
    ann = {
        "TENURE_BRIDGE_STDIO_TENANT": "acme",
        "TENURE_BRIDGE_STDIO_ISSUER": "https://as",
        "TENURE_BRIDGE_STDIO_SUBJECT": "ann",
    }
    async with start(**ann) as host:
        host.ask("tools/list")
        assert [tool["name"] for tool in (await host.read())["result"]["tools"]] == ["open"]
        host.call("secret")
        assert (await host.read())["error"]["code"] == -32602
        host.call("open", capabilities=TASKS)
        task_id = (await host.read())["result"]["taskId"]
    task = (await store.tasks.GetTask(tasks_pb2.GetTaskRequest(tenant_id="acme", task_id=task_id))).task
    assert (task.contract.owner.issuer, task.contract.owner.subject) == ("https://as", "ann")
    async with start(**ann, TENURE_BRIDGE_STDIO_GROUPS="hr") as host:
        host.ask("tools/list")
        assert [tool["name"] for tool in (await host.read())["result"]["tools"]] == ["secret", "open"]
    async with start(TENURE_BRIDGE_STDIO_TENANT="acme") as host:
        assert (await host.end())[0] == 1
        assert b"TENURE_BRIDGE_STDIO_ISSUER" in await host.stderr.read()


async def test_a_store_that_is_away_is_told_and_the_process_goes_on(start: Start) -> None:
    async with start(TENURE_BRIDGE_STORE="127.0.0.1:1", TENURE_BRIDGE_STORE_RETRY_SECONDS="0") as host:
        host.call("task", capabilities=TASKS)
        assert (await host.read())["error"]["code"] == 50300
        host.ask("server/discover")
        assert "result" in await host.read()
