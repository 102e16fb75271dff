"""Trials 32 to 41: leases over the whole pair, with workers that are cut off, late, killed, or poisoned."""

import asyncio
import contextlib
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from taskstore.v1 import tasks_pb2, types_pb2

from store_service.client import Context
from tests.bridge.client import Client
from tests.cases.conftest import ALL, ROUTES
from tests.cases.work import PATIENCE_SECONDS, TENANT, all_tasks, create, ended, shown, working
from tests.client.fake_store import outcomes
from tests.conftest import Stubs, serving, stubs_on
from tests.pair import Pair, Process, free_ports
from tests.robustness.proxy import Mode, Proxy
from tests.store.builders import checkpoint, create_and_lease, publish, refusal_of, set_policy
from tests.tied import TIED

BUSY = "import time\nwhile True:\n end = time.monotonic() + 0.08\n while time.monotonic() < end: pass\n time.sleep(0.02)"


@pytest.fixture
async def way(store: Stubs) -> AsyncIterator[Proxy]:
    """What lies between a worker and the store."""
    proxy = await Proxy("worker", listen=free_ports(1)[0], upstream=int(store.address.rpartition(":")[2])).start()
    yield proxy
    await proxy.stop()


@contextlib.contextmanager
def busy_machine(processes: int) -> Iterator[None]:
    """So many processes that take four fifths of a core each."""
    running = [subprocess.Popen([*TIED, sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


@pytest.mark.parametrize("lease_seconds", [1, 2, 5, 30] if ALL else [5])
@pytest.mark.timeout(900)
async def test_32_no_lease_is_lost_that_its_worker_keeps(
    user: Client, store: Stubs, way: Proxy, lease_seconds: int, capsys: pytest.CaptureFixture[str]
) -> None:
    count, leases = (50, 5.0) if ALL else (10, 1.5)
    way.conditions.delay_seconds = 0.15  # each way
    way.set(Mode.DELAY)
    gaps: list[float] = []

    async def work(ctx: Context, _args: dict[str, Any]) -> str:
        await ctx.wait_cancelled(leases * lease_seconds)
        return "kept"

    with busy_machine(2 if ALL else 0):
        async with working(f"127.0.0.1:{way.listen}", work, concurrency=count, lease_seconds=lease_seconds) as worker:
            worker._metrics.heartbeat_gap_seconds.observe = gaps.append  # type: ignore[method-assign, assignment]
            tasks = [await create(user) for _ in range(count)]
            async with asyncio.timeout(leases * lease_seconds + 120):
                attempts = [(await ended(store, task_id)).attempts for task_id in tasks]
        assert (attempts, outcomes(worker)) == ([1] * count, {"completed": count})
    late = sorted(gaps)[int(len(gaps) * 0.999)]
    with capsys.disabled():
        print(f"\nleases of {lease_seconds} s: {len(gaps)} renewals, the gap at p99.9 is {late:.2f} s")
    assert not ALL or late <= lease_seconds / 2


async def test_34_a_worker_that_is_not_answered_stops_before_another_begins(user: Client, store: Stubs, way: Proxy) -> None:
    ledger: list[int] = []
    may_end = asyncio.Event()

    async def work(ctx: Context, _args: dict[str, Any]) -> str:
        while not may_end.is_set() and not await ctx.wait_cancelled(0.02):
            ledger.append(ctx.fencing_token)
        await ctx.step("last", lambda: 1)
        return str(ctx.fencing_token)

    async def until_written_by(token: int) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while token not in ledger:
                await asyncio.sleep(0.01)

    async with working(f"127.0.0.1:{way.listen}", work, lease_seconds=4) as cut_off:
        task_id = await create(user)
        await until_written_by(1)
        way.set(Mode.BLACKHOLE)
        async with working(store.address, work, lease_seconds=4) as other:
            await until_written_by(2)
            before = len(ledger)
            way.set(Mode.PASS)
            async with asyncio.timeout(PATIENCE_SECONDS):
                while len(ledger) < before + 50 or not outcomes(cut_off):
                    await asyncio.sleep(0.01)
            may_end.set()
            task = await ended(store, task_id)
        assert (task.attempts, outcomes(other), outcomes(cut_off)) == (2, {"completed": 1}, {"lease_lost": 1})
    assert ledger == sorted(ledger), "the first wrote after the second had begun"
    request = tasks_pb2.ListCheckpointsRequest(tenant_id=TENANT, task_id=task_id)
    assert [one.token for one in (await store.tasks.ListCheckpoints(request)).checkpoints] == [2]


async def test_39_whoever_comes_second_is_told_what_the_api_says(store: Stubs, dsn: str) -> None:
    async with serving(dsn) as other:
        both = [store, other] * 25
        held = (await create_and_lease(store)).lease
        told = await asyncio.gather(*(publish(one, held.task_id, name="go", signal_id="s") for one in both))
        assert sum(not one.replayed for one in told) == 1
        fork = tasks_pb2.ForkTaskRequest(tenant_id=held.tenant_id, request_id="f", source_task_id=held.task_id)
        forks = await asyncio.gather(*(one.tasks.ForkTask(fork) for one in both))
        assert len({one.task.task_id for one in forks}) == 1
        writes = [one.leases.AppendCheckpoint(checkpoint(held)) for one in both]
        refused = [
            one for one in await asyncio.gather(*writes, return_exceptions=True) if isinstance(one, grpc.aio.AioRpcError)
        ]
        assert {one.code() for one in refused} == {grpc.StatusCode.ABORTED}
        assert len(refused) == len(both) - 1
        assert (await refusal_of(store.leases.AppendCheckpoint(checkpoint(held)))).reason == "REVISION_CONFLICT"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """A pair of processes, where a task may lose its workers four times."""
    routes = tmp_path / "routes.yaml"
    routes.write_text(ROUTES)
    settings = {"TENURE_STORE_MAX_CRASHES": "4", "TENURE_LOG_LEVEL": "warning"}
    with Pair(tmp_path, routes=routes, durable=False, store_settings=settings) as pair:
        yield pair


@contextlib.asynccontextmanager
async def client_of(pair: Pair) -> AsyncIterator[tuple[Client, Stubs]]:
    """A client of its bridge, and its store."""
    async with aiohttp.ClientSession() as session, grpc.aio.insecure_channel(pair.store_address) as channel:
        port = int(pair.url.rpartition(":")[2].partition("/")[0])
        yield Client(session, port), stubs_on(channel, address=pair.store_address, admin_port=0)


def start(pair: Pair, name: str, *, lease_seconds: float, concurrency: int) -> Process:
    return pair.start_worker(name, "tests.cases.worker", str(lease_seconds), str(concurrency))


@pytest.mark.timeout(900)
async def test_36_what_killed_workers_held_is_at_work_again_soon(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    count, lease_seconds = (200, 10.0) if ALL else (40, 4.0)
    async with client_of(pair) as (user, store):
        await set_policy(store, tenant_id=TENANT, outstanding=count, leased=count)
        workers = [start(pair, f"lost-{one}", lease_seconds=lease_seconds, concurrency=count // 2) for one in (1, 2)]
        tasks = [await create(user, {"do": "hang"}) for _ in range(count)]

        async def begun(token: int) -> bool:
            found = await all_tasks(store)
            return sum(task.token >= token and task.HasField("progress") for task in found) == count

        await until(lambda: begun(1))
        for worker in workers:
            worker.kill()
        killed_at = time.monotonic()
        start(pair, "next", lease_seconds=lease_seconds, concurrency=count)
        statuses = {"working"}
        while statuses != {"completed"}:
            statuses = {(await shown(user, task_id, None))["status"] for task_id in tasks[::10]}
            assert statuses <= {"working", "completed"}
        seen = [await ended(store, task_id) for task_id in tasks]
        took = time.monotonic() - killed_at
        assert {(task.state, task.attempts, task.crashes) for task in seen} == {(types_pb2.TASK_STATE_COMPLETED, 2, 1)}
        [expired] = re.findall(r'^tenure_store_due_total{event="LEASE_EXPIRED"} (\S+)$', pair.figures(), re.MULTILINE)
        assert float(expired) == count
    with capsys.disabled():
        print(f"\n{count} tasks of killed workers were taken over and done after {took:.1f} s, leases of {lease_seconds:g} s")
    assert not ALL or took <= lease_seconds + 5


async def until(condition: Any) -> None:
    """Waits for what must come to be."""
    async with asyncio.timeout(2 * PATIENCE_SECONDS):
        while not await condition():
            await asyncio.sleep(0.05)


@pytest.mark.timeout(900)
async def test_41_a_task_that_kills_its_workers_is_given_up_and_the_others_are_done(pair: Pair) -> None:
    count = 100 if ALL else 20
    async with client_of(pair) as (user, store):
        workers = {f"w{number}": start(pair, f"w{number}", lease_seconds=3, concurrency=8) for number in range(3)}
        poison = await create(user, {"do": "die"})
        others = [await create(user) for _ in range(count)]
        starts = 0

        async def is_given_up() -> bool:
            nonlocal starts
            for name, worker in list(workers.items()):
                if worker._popen.poll() is not None:
                    starts += 1
                    workers[name] = start(pair, f"{name}-{starts}", lease_seconds=3, concurrency=8)
            return bool((await user.task("get", poison)).json.get("result", {}).get("status") == "failed")

        await until(is_given_up)
        result = (await user.task("get", poison)).result
        assert result["error"] == {"code": -32603, "message": "The work was given up: its workers were lost too often."}
        assert {(await ended(store, task_id)).state for task_id in others} == {types_pb2.TASK_STATE_COMPLETED}
        task = await ended(store, poison)
        assert (task.crashes, task.retries) == (5, 0)
        assert starts == 5
        assert 'tenure_store_due_total{event="FAILED"} 1.0' in pair.figures()
