"""P7: from the creation of a task to its start, with a worker that waits for it; and how fast tasks are created."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import grpc.aio

from store_service.client import TaskStore
from tests.benchmarks import bare, peer
from tests.benchmarks.api import BATCH, api, new_task
from tests.benchmarks.figures import Figure, Target, percentile
from tests.benchmarks.plan import Plan
from tests.benchmarks.programs.hops import method_of
from tests.benchmarks.world import World

PGQUEUER: Final = "pgqueuer"
_IN_FLIGHT: Final = 16
_BATCHES_IN_FLIGHT: Final = 4
_PEER_BATCH: Final = 1_000
_PAUSE_SECONDS: Final = 0.01
_PATIENCE_SECONDS: Final = 60.0
WAITING: Final = "waiting"
"""The tenant of tasks that nobody runs, so that those that are run can be waited for."""


async def p7(world: World, plan: Plan) -> list[Figure]:
    """Against pgqueuer, whose producer and worker are one process without RPC."""
    half, tail = (
        Figure("P7", f"enqueue to start, p{percent}", PGQUEUER, "peer", Target("at most", most), "ms")
        for percent, most in ((50, 1.0), (99, 0.6))
    )
    single = Figure("P7", "enqueue, one by one, 16 in flight", PGQUEUER, "peer", Target("at least", 3.5))
    batch = Figure("P7", "enqueue in batches, 4 in flight", PGQUEUER, "peer", Target("at least", 1.3))
    floor = Figure("P7", "enqueue to start, p50", "the same way, nothing in it", "limit", None, "ms")
    figures = [half, tail, floor, single, batch]
    try:
        await asyncio.to_thread(peer.python_of, PGQUEUER)
        dsn = await peer.fresh_database(world.dsn, PGQUEUER)
        await peer.run(PGQUEUER, dsn, "install")
    except peer.MissingPeerError as error:
        for figure in figures:
            figure.missing = str(error)
        return figures
    seconds, bare_store = str(plan.seconds), await bare.start_store(world)
    async with api(world.pair.store_address) as store:
        await store.lift_limits(WAITING)
    for number in range(plan.dear_rounds):
        with plan.part(PGQUEUER):
            started = (await peer.run(PGQUEUER, dsn, "starts", seconds))["delays_ms"]
            one = (await peer.run(PGQUEUER, dsn, "enqueue", seconds, str(_IN_FLIGHT), "1"))["rate"]
            many = (await peer.run(PGQUEUER, dsn, "enqueue", seconds, str(_BATCHES_IN_FLIGHT), str(_PEER_BATCH)))["rate"]
        with plan.part("ours"):
            mine, least = await _starts(world, plan.seconds), await _bare_starts(world, plan.seconds, bare_store)
            singly, together = await _singly(world, plan.seconds), await _together(world, plan.seconds)
        for figure, ours, theirs in (
            (half, percentile(mine, 50), percentile(started, 50)),
            (tail, percentile(mine, 99), percentile(started, 99)),
            (floor, percentile(mine, 50), percentile(least, 50)),
            (single, singly, one),
            (batch, together, many),
        ):
            figure.ours, figure.theirs = [*figure.ours, ours], [*figure.theirs, theirs]
        plan.tell(
            f"P7 round {number + 1}: "
            + ", ".join(f"{each.ours[-1]:,.4g} against {each.theirs[-1]:,.4g} {each.unit}" for each in figures)
        )
    return figures


async def _starts(world: World, seconds: float) -> list[float]:
    async with api(world.pair.store_address) as store, TaskStore.connect(world.pair.store_address) as client:
        await store.lift_limits()
        program = ("-m", "tests.benchmarks.programs.starts", world.pair.store_address)
        return await _delays(world, seconds, program, lambda data: client.create_task(new_task("start", data=data)))


async def _bare_starts(world: World, seconds: float, store: str) -> list[float]:
    async with grpc.aio.insecure_channel(store) as channel:
        return await _delays(world, seconds, (*bare.MODULE, "worker", store), method_of(channel, "Create"))


async def _delays(
    world: World, seconds: float, program: Sequence[str], create: Callable[[bytes], Awaitable[object]]
) -> list[float]:
    """Milliseconds from before a creation until its task runs. Each is created a little while after the one before told that it
    runs, as the peer's are, and nobody asks the store how far it is."""
    delays: list[float] = []
    connected: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda *streams: connected.set_result(streams), "127.0.0.1", 0)
    async with server:
        worker = world.start("starts", *program, str(server.sockets[0].getsockname()[1]))
        async with asyncio.timeout(_PATIENCE_SECONDS):
            told, writer = await connected
        until = 0.0
        while not until or time.perf_counter() < until:
            await create(b'{"sent":%f}' % time.perf_counter())
            async with asyncio.timeout(_PATIENCE_SECONDS):
                delays.append(float(await told.readline()))
            await asyncio.sleep(_PAUSE_SECONDS)
            until = until or time.perf_counter() + seconds  # the first one waited for the worker to start
        await asyncio.to_thread(world.stop, worker)
        writer.close()
    return delays[1:]


async def _singly(world: World, seconds: float) -> float:
    """Creations a second, each a call of its own, as callers make them."""
    async with TaskStore.connect(world.pair.store_address) as client:

        async def create() -> int:
            await client.create_task(new_task("later", WAITING))
            return 1

        return await _rate(create, _IN_FLIGHT, seconds)


async def _together(world: World, seconds: float) -> float:
    """Creations a second in batches."""
    async with api(world.pair.store_address) as store:

        async def create() -> int:
            return len(await store.create(BATCH, workflow="later", tenant_id=WAITING))

        return await _rate(create, _BATCHES_IN_FLIGHT, seconds)


async def _rate(create: Callable[[], Awaitable[int]], lanes: int, seconds: float) -> float:
    began, made = time.perf_counter(), 0

    async def lane() -> None:
        nonlocal made
        while time.perf_counter() - began < seconds:
            more = await create()
            made += more  # not in one: that reads `made` before it waits, and forgets what others made meanwhile

    await asyncio.gather(*(lane() for _ in range(lanes)))
    return made / (time.perf_counter() - began)
