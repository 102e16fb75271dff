"""P8: a call that is held over a durable task, one at a time."""

import itertools
import statistics
import time
from typing import Any

import asyncpg

from tests.benchmarks import bare
from tests.benchmarks.api import api
from tests.benchmarks.figures import Figure, Target
from tests.benchmarks.load import Load, drive, mcp_request
from tests.benchmarks.plan import Plan
from tests.benchmarks.world import World


async def p8(world: World, plan: Plan) -> list[Figure]:
    """Against three single-row commits, one after the other; and against the same way with nothing in it."""
    worker = world.start_worker()
    url, bare_url = world.pair.url, await bare.start_bridge(world, await bare.start_store(world))
    async with api(world.pair.store_address) as store:
        await store.lift_limits()
        await store.create(1, workflow="nothing")
        await store.until_ended()  # so the worker is there
    for each in (url, bare_url):
        await _held(world, each, 1.0)
    connection = await asyncpg.connect(world.dsn)
    await connection.execute("CREATE TABLE bench_row (id bigserial PRIMARY KEY, text text)")
    insert = await connection.prepare("INSERT INTO bench_row (text) VALUES ($1) RETURNING id")
    meter = await world.meter(worker=worker)
    ours, commits, hops, cpu = [], [], [], []
    for number in range(plan.rounds):
        commits.append(await _three(insert, plan.seconds / 3))
        hops.append((await _held(world, bare_url, plan.seconds / 3)).percentile_ms(50))
        meter.start()
        load = await _held(world, url, plan.seconds)
        cpu.append(meter.stop(load.operations))
        ours.append(load.percentile_ms(50))
        plan.tell(f"P8 round {number + 1}: {ours[-1]:.2f} ms against {commits[-1]:.2f} ms, {hops[-1]:.2f} ms")
    await connection.close()
    what, cpu_of_each = "a held call, p50", plan.median_of(cpu)
    return [
        Figure("P8", what, "three commits", "limit", Target("at most", 6.0), "ms", ours, commits, cpu_of_each),
        Figure("P8", what, "the same way, nothing in it", "limit", None, "ms", ours, hops),
    ]


async def _held(world: World, url: str, seconds: float) -> Load:
    call = mcp_request(url, "tools/call", {"name": "nothing", "arguments": {}}, capabilities={}, token=world.token)
    return await drive(url, itertools.repeat(call), connections=1, seconds=seconds, is_right=_is_right)


async def _three(insert: Any, seconds: float) -> float:
    """Milliseconds of three commits, the median of so many seconds."""
    took = []
    until = time.perf_counter() + seconds
    while (started := time.perf_counter()) < until:
        for _ in range(3):
            await insert.fetchval("x" * 100)
        took.append((time.perf_counter() - started) * 1000)
    return statistics.median(took)


def _is_right(answer: bytes | bytearray) -> bool:
    return b'"content":[]' in answer
