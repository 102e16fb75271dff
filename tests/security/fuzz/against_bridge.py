"""Bodies against a bridge that really listens, over a store in memory, all in this process."""

import asyncio
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

from taskstore.v1 import tasks_pb2

from store_service.client import StoreError
from store_service.client.task_watch import Following, Snapshot, Told
from tests.bridge.client import headers_for
from tests.bridge.fake_store import FakeTaskStore
from tests.conftest import bridge_on, started
from tests.security.fuzz.figures import Figures, Run
from tests.security.fuzz.json_bodies import JsonBodies

CONNECTIONS: Final = 32
_ANSWER_SECONDS: Final = 60.0
_REFRESH: Final = 2_000
"""After how many bodies the store forgets what it has."""
_ROUTES: Final = """
version: 1
tenants:
  dev:
    tools:
      - {name: either, workflow: done, task: optional, input_schema: {type: object}}
      - {name: task, workflow: w, task: required, input_schema: {type: object}}
      - {name: held, workflow: done, task: never, call_timeout: 10ms, max_detaches: 0, input_schema: {type: object}}
      - name: asks
        workflow: done
        task: optional
        call_timeout: 10ms
        preflight:
          - key: name
            method: elicitation/create
            params: {message: Who, requestedSchema: {type: object, properties: {name: {type: string}}}}
        input_schema: {type: object}
      - name: strict
        workflow: done
        task: optional
        input_schema:
          type: object
          properties:
            region: {type: string, x-mcp-header: Region}
            limits: {type: object, properties: {most: {type: integer}}}
            items: {type: array, items: {type: string}}
            code: {type: string, pattern: "^(a+)+$"}
          additionalProperties: false
"""


class QuickStore(FakeTaskStore):
    """A store whose work is done as soon as it is wanted, but for the workflow `w`."""

    async def create_task(
        self, request: tasks_pb2.CreateTaskRequest, *, timeout_seconds: float = 10
    ) -> tasks_pb2.CreateTaskResponse:
        """As TaskService.CreateTask."""
        created = await super().create_task(request, timeout_seconds=timeout_seconds)
        if request.contract.workflow == "done" and not created.replayed:
            await self.complete(created.task.task_id, b'{"content":[]}')
        return created

    def follow_task(self, wanted: tasks_pb2.WatchedTask, told: Told) -> Following:
        """As TaskStore.follow_task, for the task as it stands."""
        closed = False

        def tell() -> None:
            if closed:
                return
            try:
                told(Snapshot(self._find(wanted.tenant_id, wanted.task_id, wanted.owner, wanted.view), []))
            except StoreError as error:
                told(error)

        def close(_: Following) -> None:
            nonlocal closed
            closed = True

        asyncio.get_running_loop().call_soon(tell)
        return Following(None, told, close)  # type: ignore[arg-type] # nobody looks at its entry

    async def refresh(self) -> list[str]:
        """Forgets what it has. Returns a task that works, one that asks, one that is done, one that failed."""
        kept = (self.tasks, self._requests, self._ids, self._references, self._reports, self.created, self.read)
        for one in (*kept, self.cancelled, self.answered, self.attached):
            one.clear()
        ids = []
        for number in range(4):
            request = tasks_pb2.CreateTaskRequest(tenant_id="dev", request_id=str(number))
            request.contract.tool, request.contract.workflow = "task", "w"
            request.contract.owner.issuer, request.contract.owner.subject = self.owner
            request.contract.ttl_ms = 3_600_000
            ids.append((await self.create_task(request)).task.task_id)
        await self.ask(ids[1], "name", b'{"message":"?","requestedSchema":{"type":"object"}}')
        await self.complete(ids[2], b'{"content":[{"type":"text","text":"done"}]}')
        await self.fail(ids[3], -32000, "it broke")
        return ids

    owner = ("dev", "dev")


async def fuzz_bridge(run: Run) -> Figures:
    """Sends so many bodies, and tells what came of them."""
    fake, bodies = QuickStore(), JsonBodies(Random(run.seed))
    with tempfile.TemporaryDirectory() as folder:
        routes = Path(folder) / "routes.yaml"
        routes.write_text(_ROUTES)
        async with started(bridge_on(routes, fake=fake)) as bridge:
            async with asyncio.TaskGroup() as group:
                numbers = iter(range(run.warmup))
                for _ in range(CONNECTIONS):
                    group.create_task(_send(run, fake, bodies, bridge.port, numbers))
            run.begin()
            async with asyncio.TaskGroup() as group:
                numbers = iter(range(run.count))
                for _ in range(CONNECTIONS):
                    group.create_task(_send(run, fake, bodies, bridge.port, numbers))
            await fake.refresh()
            return await run.end()


async def _send(run: Run, fake: QuickStore, bodies: JsonBodies, port: int, numbers: Iterator[int]) -> None:
    """One connection at a time, one request after the other."""
    reader = writer = None
    for number in numbers:
        if number % _REFRESH == 0:
            bodies.task_ids = await fake.refresh()
        body, headers = bodies.next()
        if reader is None or writer is None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        whole = {**headers_for("", None, Mcp_Method=None, MCP_Protocol_Version=None), **headers, "Host": f"127.0.0.1:{port}"}
        head = "".join(f"{name}: {value}\r\n" for name, value in {**whole, "Content-Length": str(len(body))}.items())
        writer.write(f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + body)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                stays_open = await _read(run, reader, body)
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError) as error:
            run.fault(f"{type(error).__name__}: {error}", body)
            stays_open = False
        if not stays_open:
            writer.close()
            reader = writer = None
    if writer is not None:
        writer.close()


async def _read(run: Run, reader: asyncio.StreamReader, body: bytes) -> bool:
    """Reads an answer and looks at it. Returns whether the connection can be used again."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    status = int(head[9:12])
    if b"\r\ncontent-length: " not in head:  # a stream: its beginning is enough, and then the client leaves
        answer = b"" if status == 202 else await reader.readuntil(b"\n\n")
        answer = answer[answer.find(b"data: ") + 6 :] if b"data: " in answer else answer
    else:
        size = int(head.partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0])
        answer = await reader.readexactly(size)
    code = _code(answer)
    run.tell(f"{status} {code}")
    if status >= 500 or code == "-32603":
        run.fault(f"{status} {answer[:300]!r}", body)
    return b"\r\ncontent-length: " in head and b"connection: close" not in head


def _code(answer: bytes) -> str:
    """What an answer says; it must be JSON, if there is any."""
    if not answer:
        return ""
    try:
        told = json.loads(answer)
    except ValueError:
        return "comment" if answer.startswith(b":") or b"\n:" in answer else "-32603"
    return str(told["error"]["code"]) if "error" in told else "result" if "result" in told else "notification"
