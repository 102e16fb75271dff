"""Messages against a store that really listens, over a real Postgres, all in this process but for Postgres."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import uuid4

import asyncpg
import grpc
from google.protobuf.message import Message
from taskstore.v1 import leases_pb2, tasks_pb2

from store_service.config import Config
from store_service.db.migrate import migrate
from store_service.embedded import EmbeddedPostgres
from store_service.server import Store
from tests.conftest import Stubs, open_stubs
from tests.descriptors import methods
from tests.security.fuzz.figures import Figures, Run
from tests.security.fuzz.messages import Mutator, retarget
from tests.store.budgets import Amounts, reserve, set_budget
from tests.store.builders import claim, new_task, set_policy
from tests.store.refusals.calls import WATCHES, Scene, a_request

CALLS_AT_ONCE: Final = 48
_REFRESH: Final = 1_000
"""After how many messages there are a new tenant and new tasks."""
_CALL_SECONDS: Final = 3.0
_STREAM_SECONDS: Final = 0.2
_FAULTS: Final = frozenset(
    {grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAVAILABLE}
)


class Templates:
    """A valid message for each method, which a refresh lets speak of tasks that there are now."""

    def __init__(self, stubs: Stubs, random: Random) -> None:
        self._stubs = stubs
        self._random = random
        self._recorded: dict[str, Message] = {}
        self.now: list[tuple[str, Message]] = []

    async def record(self, database: asyncpg.Connection) -> None:
        """Makes one of each."""
        await set_policy(self._stubs)
        await set_budget(self._stubs, Amounts(tokens=1_000_000))
        for method in methods():
            if method == "WatchTasks":
                self._recorded[method] = tasks_pb2.WatchTasksRequest(add=[tasks_pb2.WatchedTask(tenant_id="t", task_id="t")])
            elif method == "WatchLeases":
                self._recorded[method] = leases_pb2.WatchLeasesRequest(worker_id="w")
            else:
                self._recorded[method] = await a_request(Scene(self._stubs, database), method)

    async def refresh(self) -> None:
        """A tenant with tasks in every state, and messages that speak of them."""
        # A workflow of their own, so that no claim of an earlier message takes them.
        tenant_id, workflow, stubs = f"fuzz-{uuid4().hex}", uuid4().hex, self._stubs
        await set_policy(stubs, tenant_id=tenant_id, outstanding=200, leased=50)
        await set_budget(stubs, Amounts(tokens=1_000_000), tenant_id=tenant_id)
        created = [(await stubs.tasks.CreateTask(new_task(tenant_id=tenant_id, workflow=workflow))).task for _ in range(6)]
        request = claim(tenant_ids=[tenant_id], workflow=workflow, limit=3, lease_ms=300_000)
        leases = [leased.lease for leased in (await stubs.leases.LeaseTasks(request)).tasks]
        await stubs.leases.ReserveBudget(reserve(leases[0], 10))
        self.now = []
        for method, recorded in self._recorded.items():
            for lease in leases:
                message = type(recorded)()
                message.CopyFrom(recorded)
                task_id = self._random.choice(created).task_id
                ids = {"task_id": task_id, "source_task_id": task_id, "request_id": uuid4().hex}
                retarget(message, tenant_id, **ids, workflow=workflow, lease=lease)
                if method in ("LeaseTasks", "CompleteAndLeaseTasks"):
                    self._narrow(message, tenant_id)
                self.now.append((method, message))

    @staticmethod
    def _narrow(message: Any, tenant_id: str) -> None:
        request = message if isinstance(message, leases_pb2.LeaseTasksRequest) else message.lease
        request.tenant_ids[:] = [tenant_id]
        request.wait_ms = 1


async def fuzz_store(run: Run) -> Figures:
    """Sends so many messages, and tells what came of them."""
    random = Random(run.seed)
    with tempfile.TemporaryDirectory() as folder, EmbeddedPostgres(Path(folder), durable=False) as postgres:
        await migrate(postgres.dsn)
        store = Store(Config(dsn=postgres.dsn, port=0, admin_port=0, drain_seconds=2))
        await store.start()
        database = await asyncpg.connect(postgres.dsn)
        try:
            async with open_stubs(store) as stubs, grpc.aio.insecure_channel(stubs.address) as channel:
                templates = Templates(stubs, random)
                await templates.record(database)
                await _send_all(run, channel, templates, Mutator(random), random, run.warmup)
                run.begin()
                await _send_all(run, channel, templates, Mutator(random), random, run.count)
                figures = await run.end()
            for table in ("audit", "budget_audit"):
                if wrong := await database.fetch(f"SELECT * FROM tenure.{table}"):
                    figures.faults.append(f"tenure.{table} has {wrong[:3]}")
            return figures
        finally:
            await database.close()
            await store.stop()


async def _send_all(
    run: Run, channel: grpc.aio.Channel, templates: Templates, mutator: Mutator, random: Random, count: int
) -> None:
    numbers = iter(range(count))
    await templates.refresh()
    async with asyncio.TaskGroup() as group:
        for _ in range(CALLS_AT_ONCE):
            group.create_task(_send(run, channel, templates, mutator, random, numbers))


async def _send(
    run: Run, channel: grpc.aio.Channel, templates: Templates, mutator: Mutator, random: Random, numbers: Iterator[int]
) -> None:
    """One call after the other."""
    for number in numbers:
        if number % _REFRESH == _REFRESH - 1:
            await templates.refresh()
        method, message = random.choice(templates.now)
        if method in WATCHES and random.random() < 0.9:  # they take their time
            method, message = templates.now[0]
        data = mutator.bytes_of(message)
        try:
            await _call(channel, method, data)
            run.tell("OK")
        except grpc.aio.AioRpcError as error:
            code = error.code()
            run.tell(code.name)
            if code in _FAULTS or (code is grpc.StatusCode.UNKNOWN):
                run.fault(f"{method} {code.name} {error.details()}", data)
        except TimeoutError:
            run.tell("WATCHED")


async def _call(channel: grpc.aio.Channel, method: str, data: bytes) -> None:
    about = methods()[method]
    path = f"/{about.containing_service.full_name}/{method}"
    if not about.server_streaming:
        unary: Any = channel.unary_unary(path)
        await unary(data, timeout=_CALL_SECONDS)
        return
    stream: Any = channel.stream_stream(path) if about.client_streaming else channel.unary_stream(path)
    call = stream(iter([data]) if about.client_streaming else data)
    try:
        async with asyncio.timeout(_STREAM_SECONDS):
            await anext(aiter(call), None)
    finally:
        call.cancel()
