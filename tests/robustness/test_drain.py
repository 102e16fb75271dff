"""SIGTERM: whatever runs is replaced under load, and no client's operation fails; and it may come at any time."""

import asyncio
import functools
import itertools
import os
import random
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from taskstore.v1 import tasks_pb2, types_pb2

from mcp_bridge.client import Policy, TaskClient
from store_service.client import TaskStore
from tests.pair import Process, free_ports
from tests.robustness.clients.callers import OWNER
from tests.robustness.world import BRIDGES, LEASE_SECONDS, STORES, Part, World

GRACE_SECONDS: Final = 10
"""What Kubernetes would give; each is told so. A busy machine gets more before it counts as hanging: `Process.wait_end`."""
ROUNDS: Final = int(os.environ.get("DRAIN_ROUNDS", "2"))
WORKERS: Final = ("worker-1", "worker-2")
_CLIENTS: Final = 3
_PATIENCE_SECONDS: Final = 120


async def until(condition: Callable[[], bool], what: str) -> None:
    """Looks again and again until it is so, within bounds."""
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while not condition():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"in vain: {what}") from None


@asynccontextmanager
async def open_world(workers: Sequence[str]) -> AsyncIterator[World]:
    folder = Path(tempfile.mkdtemp(prefix="tenure-world-"))
    folder.chmod(0o755)  # where we are root, Postgres runs as another account
    async with World(folder / "world", workers=workers, drain_seconds=GRACE_SECONDS) as world:
        yield world
    shutil.rmtree(folder)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world(WORKERS) as world:
        yield world


class Load:
    """Clients that go on and on; the first thing that any of them is not given is raised by `stop`."""

    def __init__(self, world: World) -> None:
        self._is_over = False
        self.done = 0
        self._clients = [asyncio.create_task(self._over_grpc(world, number)) for number in range(_CLIENTS)]
        for number, port in zip(range(_CLIENTS), itertools.cycle(world.bridge_ports), strict=False):
            self._clients.append(asyncio.create_task(self._over_mcp(f"http://127.0.0.1:{port}/mcp", number)))

    def has_done(self, count: int) -> bool:
        """Whether more was done than this; raises what a client was not given."""
        for client in self._clients:
            if client.done():
                client.result()
        return self.done > count

    async def stop(self) -> None:
        """Lets each finish what it began."""
        self._is_over = True
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await asyncio.gather(*self._clients)

    async def _over_grpc(self, world: World, client: int) -> None:
        contract = types_pb2.TaskContract(tool="job", workflow="steps", workflow_version=1, owner=OWNER, ttl_ms=86_400_000)
        async with TaskStore.connect(world.address("clients")) as store:
            for number in itertools.count():
                if self._is_over:
                    return
                said = f'{{"canary": "grpc-{client}-{number}", "n": 2}}'.encode()
                request = tasks_pb2.CreateTaskRequest(
                    tenant_id="alfa", request_id=f"grpc-{client}-{number}", contract=contract,
                    input=types_pb2.Payload(data=said),
                )  # fmt: skip
                task_id = (await store.create_task(request, timeout_seconds=60)).task.task_id
                async for snapshot in store.watch_task(tasks_pb2.WatchedTask(tenant_id="alfa", task_id=task_id)):
                    state = snapshot.task.state
                assert state == types_pb2.TASK_STATE_COMPLETED
                self.done += 1

    async def _over_mcp(self, url: str, client: int) -> None:
        draw = random.Random(client)
        async with TaskClient(url, policy=Policy(deadline_seconds=120, request_seconds=60)) as bridge:
            for number in itertools.count():
                if self._is_over:
                    return
                said = {"canary": f"mcp-{client}-{number}", "n": 2}
                key = f"mcp-{client}-{number}"
                result = await bridge.call_tool(draw.choice(("steps", "held")), said, idempotency_key=key)
                assert not result.is_error
                assert len(result.structured_content["steps"]) == 2
                self.done += 1


async def replace(world: World, part: Part, *, twice: bool) -> None:
    """Ends it with SIGTERM, and waits until the next one is there."""
    process, starts = part.process, part.starts
    assert process is not None
    world.terminate(part)
    if twice:
        process.send(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait_end) == 0, f"{part.name}: {process.tail()}"
    await until(lambda: part.starts > starts and part.is_running, f"{part.name} is started again")
    await world.until_ready(part)


@pytest.mark.timeout(300 * max(1, ROUNDS))
async def test_a_rolling_restart_fails_no_operation_of_any_client(world: World) -> None:
    load = Load(world)
    for number in range(ROUNDS):
        for name in (*STORES, *BRIDGES, *WORKERS):
            done = load.done
            await replace(world, world.parts[name], twice=number % 2 == 1)
            await until(functools.partial(load.has_done, done + _CLIENTS), "clients are served beside it")
    await load.stop()
    assert [end for part in world.parts.values() for end in part.unexpected_ends] == []


class Silence:
    """An address that takes connections and never answers."""

    def __init__(self) -> None:
        self.is_called = asyncio.Event()
        (self.port,) = free_ports(1)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.is_called.set()
        try:
            await reader.read()
        finally:
            writer.close()


@pytest.mark.parametrize("what", ["store", "worker"])
async def test_whoever_is_still_starting_ends_at_once(what: str, tmp_path: Path) -> None:
    silence = Silence()
    server = await asyncio.start_server(silence.serve, "127.0.0.1", silence.port)
    ports = free_ports(2)
    environment: dict[str, Any] = {}
    if what == "store":
        arguments = ["-m", "store_service", "serve"]
        environment = {
            "TENURE_STORE_DSN": f"postgresql://tenure:x@127.0.0.1:{silence.port}/tenure",
            "TENURE_STORE_PORT": str(ports[0]), "TENURE_STORE_ADMIN_PORT": str(ports[1]),
        }  # fmt: skip
    else:
        arguments = ["-m", "tests.robustness.programs.worker", f"127.0.0.1:{silence.port}", "w", "0", str(LEASE_SECONDS), "10"]
    process = Process(what, arguments, environment=environment, log=tmp_path / "log")
    try:
        await asyncio.wait_for(silence.is_called.wait(), 60)
        process.send(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait_end) == 0, process.tail()
    finally:
        process.kill()
        server.close()
