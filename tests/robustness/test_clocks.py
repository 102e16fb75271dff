"""Whose clock is wrong makes no difference: leases, timers and deadlines go by the database's, and by nobody's civil time."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio
from taskstore.v1 import tasks_pb2, types_pb2

from store_service.client import TaskStore
from tests.pair import Process
from tests.robustness.clients.callers import OWNER
from tests.robustness.surroundings import CLOCKS, clock_environment, find_clock_library
from tests.robustness.test_drain import open_world, replace
from tests.robustness.world import BRIDGES, STORES, World

pytestmark = pytest.mark.skipif(find_clock_library() is None, reason="libfaketime is not installed: make robustness-tools")

WORKERS: Final = ("worker-1",)
ROLES: Final = {"store": STORES, "bridge": BRIDGES, "worker": WORKERS, "client": ()}
SHORT: Final = {"store": "clock 2040", "bridge": "clock -1 day", "worker": "clock +1 h", "client": "clock -1 h"}
SHIFTS: Final = [
    (role, clock) for role in ROLES for clock in CLOCKS if os.environ.get("CLOCKS") == "all" or SHORT[role] == clock
]
NAP_SECONDS: Final = 1.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[World]:
    async with open_world(WORKERS) as world:
        yield world


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("role", "clock"), SHIFTS)
async def test_45_a_wrong_clock_makes_nothing_early_late_or_lost(world: World, role: str, clock: str, tmp_path: Path) -> None:
    environment = clock_environment(clock)
    try:
        for name in ROLES[role]:
            world.parts[name].clock = environment
            await replace(world, world.parts[name], twice=False)
        async with TaskStore.connect(world.address("clients")) as store:
            for workflow in ("steps", "nap"):
                began = time.monotonic()
                task = await run_task(store, workflow, f"{role} {clock} {workflow}")
                assert task.state == types_pb2.TASK_STATE_COMPLETED
                assert task.token <= (2 if workflow == "nap" else 1), "no lease was lost"
                assert workflow == "steps" or time.monotonic() - began >= NAP_SECONDS
        url = f"http://127.0.0.1:{world.bridge_ports[0]}/mcp"
        arguments = ["-m", "tests.robustness.programs.caller", url, "nap", f"mcp {role} {clock}"]
        shifted = environment if role == "client" else {}
        client = Process("client", arguments, environment=shifted, log=tmp_path / "client.log")
        assert await asyncio.to_thread(client.wait_end) == 0, client.tail()
    finally:
        for name in ROLES[role]:
            world.parts[name].clock = {}
            await replace(world, world.parts[name], twice=False)
    for name in STORES:
        assert '"INTERNAL"' not in (world.folder / f"{name}.log").read_text()


async def run_task(store: TaskStore, workflow: str, request_id: str) -> types_pb2.Task:
    """Makes a task with a deadline, and waits until it has ended."""
    contract = types_pb2.TaskContract(
        tool="job", workflow=workflow, workflow_version=1, owner=OWNER, ttl_ms=86_400_000, execution_deadline_ms=120_000
    )
    said = f'{{"canary": "{request_id}", "seconds": {NAP_SECONDS}}}'.encode()
    request = tasks_pb2.CreateTaskRequest(
        tenant_id="alfa", request_id=request_id, contract=contract, input=types_pb2.Payload(data=said)
    )
    made = await store.create_task(request, timeout_seconds=60)
    async with asyncio.timeout(120):
        async for snapshot in store.watch_task(tasks_pb2.WatchedTask(tenant_id="alfa", task_id=made.task.task_id)):
            task = snapshot.task
    return task
