"""Two cells, each with a Postgres, a store and a worker of its own, behind one bridge; a tenant moves from one to the other
while clients call, poll, answer, hold calls and listen. The mover is killed in the middle of it. No task is lost, none is done
twice, and who calls sees nothing but calls to be made again."""

import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import asyncpg
import pytest
from taskstore.v1 import tasks_pb2, types_pb2

from mcp_bridge.app import Bridge
from mcp_bridge.config import Config as BridgeConfig
from store_service.client import Context, TaskStore, Worker
from store_service.config import Config
from store_service.db.migrate import migrate
from store_service.embedded import EmbeddedPostgres
from store_service.server import Store
from tests.bridge.client import TASKS, Answer, Client
from tests.bridge.listening import listening
from tests.bridge.test_reload import put
from tests.conftest import started

CALLERS: Final = 6
ROUNDS: Final = 3
"""How many calls each caller makes before the move, while it is under way, and after it, at least."""
PATIENCE_SECONDS: Final = 180.0
ROUTES: Final = """
version: 1
cells: {{east: '{east}'}}
tenants:
  dev:
    {cell}
    tools:
      - {{name: echo, workflow: echo, task: required, poll_interval: 50ms, input_schema: {{type: object}}}}
      - {{name: sure, workflow: sure, task: required, poll_interval: 50ms, input_schema: {{type: object}}}}
      - {{name: wait, workflow: wait, task: optional, call_timeout: 10m, input_schema: {{type: object}}}}
"""
ASKED: Final = {**TASKS, "elicitation": {"form": {}}}
"""What clients that may be asked declare."""
FORM: Final = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}


@dataclass(frozen=True)
class Cell:
    """One of the two."""

    dsn: str
    address: str

    async def fetch(self, query: str) -> list[asyncpg.Record]:
        """What is in its database."""
        connection = await asyncpg.connect(self.dsn)
        try:
            rows: list[asyncpg.Record] = await connection.fetch(query)
            return rows
        finally:
            await connection.close()


@asynccontextmanager
async def running_cell(folder: Path) -> AsyncIterator[Cell]:
    """A cell that works for the tenant."""
    postgres = EmbeddedPostgres(folder, durable=False)
    await asyncio.to_thread(postgres.start)
    try:
        await migrate(postgres.dsn)
        async with (
            started(Store(Config(dsn=postgres.dsn, port=0, admin_port=0, drain_seconds=2))) as store,
            working(f"127.0.0.1:{store.port}"),
        ):
            yield Cell(postgres.dsn, f"127.0.0.1:{store.port}")
    finally:
        await asyncio.to_thread(postgres.stop)


@asynccontextmanager
async def working(address: str) -> AsyncIterator[None]:
    """A worker of one cell."""
    worker = Worker(address, concurrency=8, drain_seconds=1)

    @worker.workflow("echo", version=1)
    async def echo(ctx: Context, args: dict[str, Any]) -> dict[str, Any]:
        await ctx.step("think", asyncio.sleep, 0.02)
        return {"content": [], "structuredContent": args}

    @worker.workflow("sure", version=1)
    async def sure(ctx: Context, args: dict[str, Any]) -> dict[str, Any]:
        answer = await ctx.ask("sure", "Sure?", FORM)
        return {"content": [], "structuredContent": {**args, "answer": answer.content}}

    @worker.workflow("wait", version=1)
    async def wait(ctx: Context, args: dict[str, Any]) -> dict[str, Any]:
        await ctx.wait_signal("go")
        return {"content": [], "structuredContent": args}

    async with worker:
        yield


@dataclass
class Load:
    """What clients do the whole time, each call with a key of its own, and what they were answered."""

    client: Client
    asked: set[str] = field(default_factory=set)
    results: dict[str, Any] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    statuses: Counter[int] = field(default_factory=Counter)
    ends: asyncio.Event = field(default_factory=asyncio.Event)
    callers: list[asyncio.Task[None]] = field(default_factory=list)

    async def call_on(self, number: int) -> None:
        """One caller: call after call, to the end of each."""
        count = 0
        while not self.ends.is_set():
            key, tool = f"{number}-{count}", "sure" if count % 3 == 0 else "echo"
            count += 1
            self.asked.add(key)
            created = await self._until_answered(tool, key)
            self.ids[key] = created["taskId"]
            self.results[key] = await self._outcome(created["taskId"])

    async def again(self, key: str) -> str:
        """The id that a repetition of a call is answered with."""
        created = await self._until_answered("sure" if int(key.split("-")[1]) % 3 == 0 else "echo", key)
        return str(created["taskId"])

    async def _until_answered(self, tool: str, key: str) -> dict[str, Any]:
        return await self._patiently(lambda: self.client.call(tool, {"key": key}, capabilities=ASKED, Idempotency_Key=key))

    async def _outcome(self, task_id: str) -> Any:
        while True:
            task = await self._patiently(lambda: self.client.task("get", task_id, capabilities=ASKED))
            if task["status"] == "completed":
                return task["result"]["structuredContent"]
            assert task["status"] in ("working", "input_required"), task
            if questions := task.get("inputRequests"):
                params = {
                    "taskId": task_id,
                    "inputResponses": {key: {"action": "accept", "content": {"ok": True}} for key in questions},
                }
                await self._patiently(lambda: self.client.ask("tasks/update", params, capabilities=ASKED, name=task_id))  # noqa: B023
            await asyncio.sleep(0.05)

    async def _patiently(self, send: Any) -> dict[str, Any]:
        """Sends until it is answered: what is to be tried again is."""
        while True:
            answer: Answer = await send()
            self.statuses[answer.status] += 1
            if answer.status == 200:
                return answer.result
            assert answer.status in (503, 429), answer.body
            assert answer.headers["Retry-After"]
            await asyncio.sleep(0.1)

    async def has_done(self, more: int) -> None:
        """Waits until so many calls more have come to their end."""
        wanted = len(self.results) + more
        while len(self.results) < wanted:
            for caller in self.callers:
                if caller.done():
                    caller.result()
            await asyncio.sleep(0.05)


async def move(here: Cell, there: Cell, *, until: str = "") -> tuple[int, str]:
    """The operators' command, killed once it has told `until`. Returns its exit code and what it told."""
    environment: Mapping[str, str] = {**os.environ, "TENURE_MOVE_FROM_DSN": here.dsn, "TENURE_MOVE_TO_DSN": there.dsn}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "store_service", "tenant", "move", "dev", "--drain-seconds", "0.5", env=environment,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    told = ""
    async for line in process.stdout:
        told += line.decode()
        if until and until in told:
            process.kill()
            break
    return await process.wait(), told


@pytest.mark.timeout(600)
async def test_a_tenant_moves_under_load_and_no_task_is_lost_or_done_twice(tmp_path: Path) -> None:
    routes = tmp_path / "routes.yaml"
    async with AsyncExitStack() as stack:
        west, east = [await stack.enter_async_context(running_cell(tmp_path / name)) for name in ("west", "east")]
        routes.write_text(ROUTES.format(east=east.address, cell="# the default cell"))
        config = BridgeConfig(routes=str(routes), port=0, admin_port=0, drain_seconds=0, store=west.address)
        bridge = Bridge(config)
        await bridge.start()
        stack.push_async_callback(bridge.stop)
        client = Client(await stack.enter_async_context(aiohttp.ClientSession()), bridge.port)
        load = Load(client)
        followed = (await client.call("wait", {"who": "listener"}, tasks=True)).result["taskId"]
        stream = await stack.enter_async_context(listening(bridge.port, followed))
        assert (await stream.frame())["method"] == "notifications/subscriptions/acknowledged"
        held = asyncio.create_task(client.call("wait", {"who": "held"}))
        load.callers = [asyncio.create_task(load.call_on(number)) for number in range(CALLERS)]
        async with asyncio.timeout(PATIENCE_SECONDS):
            await load.has_done(ROUNDS * CALLERS)

            code, told = await move(west, east, until="it is frozen")
            assert code < 0, told
            refused = load.statuses[503]
            while load.statuses[503] == refused:  # nobody serves it: clients are told to come back
                await asyncio.sleep(0.05)
            code, told = await move(west, east)
            assert code == 0, told
            put(routes, ROUTES.format(east=east.address, cell="cell: east"))

            await load.has_done(ROUNDS * CALLERS)
            load.ends.set()
            await asyncio.gather(*load.callers)
            waiting = await east.fetch("SELECT task_id::text FROM tenure.task_state WHERE state = 'WAITING'")
            assert len(waiting) == 2
            async with TaskStore.connect(east.address) as store:
                for row in waiting:
                    await store.publish_signal(signal(row["task_id"]))
            assert (await held).result["structuredContent"] == {"who": "held"}
            while (frame := await stream.frame()).get("params", {}).get("status") != "completed":
                assert frame["method"] == "notifications/tasks"
            assert frame["params"]["result"]["structuredContent"] == {"who": "listener"}
            sample = sorted(load.ids)[:: CALLERS * 2]
            assert [await load.again(key) for key in sample] == [load.ids[key] for key in sample]

        assert load.results.keys() == load.asked
        for key, result in load.results.items():
            assert result["key"] == key
        assert len(set(load.ids.values())) == len(load.ids)
        states = await east.fetch("SELECT state, count(*) AS count FROM tenure.task_state GROUP BY 1")
        assert {row["state"]: row["count"] for row in states} == {"COMPLETED": len(load.asked) + 2}
        ends = await east.fetch("SELECT task_id FROM tenure.history WHERE event = 'COMPLETED' GROUP BY 1 HAVING count(*) > 1")
        assert list(ends) == []
        assert list(await west.fetch("SELECT FROM tenure.task")) == []
        for cell in (west, east):
            assert list(await cell.fetch("SELECT * FROM tenure.audit")) == []


def signal(task_id: str) -> tasks_pb2.PublishSignalRequest:
    """What a waiting task waits for."""
    return tasks_pb2.PublishSignalRequest(
        tenant_id="dev", signal_id=f"go-{task_id}", task_id=task_id, name="go", payload=types_pb2.Payload(data=b"1")
    )
