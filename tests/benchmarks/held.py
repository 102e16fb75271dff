"""P8: a call that is held over a durable task, one at a time."""

import itertools
import statistics
import time

import asyncpg

from tests.benchmarks.api import api
from tests.benchmarks.figures import Figure, Target
from tests.benchmarks.load import drive, mcp_request
from tests.benchmarks.plan import Plan
from tests.benchmarks.world import World


async def p8(world: World, plan: Plan) -> list[Figure]:
    """Against three single-row commits, one after the other."""
    worker = world.start_worker()
    url = world.pair.url
    call = mcp_request(url, "tools/call", {"name": "nothing", "arguments": {}}, capabilities={}, token=world.token)
    async with api(world.pair.store_address) as store:
        await store.lift_limits()
        await store.create(1, workflow="nothing")
        await store.until_ended()  # so the worker is there
    await drive(url, iter([call] * 30), connections=1, seconds=60, is_right=_is_right)
    connection = await asyncpg.connect(world.dsn)
    await connection.execute("CREATE TABLE bench_row (id bigserial PRIMARY KEY, text text)")
    insert = await connection.prepare("INSERT INTO bench_row (text) VALUES ($1) RETURNING id")
    meter = await world.meter(worker=worker)
    ours, theirs, cpu = [], [], []
    for number in range(plan.rounds):
        commits = []
        until = time.perf_counter() + plan.seconds / 3
        while (started := time.perf_counter()) < until:
            for _ in range(3):
                await insert.fetchval("x" * 100)
            commits.append((time.perf_counter() - started) * 1000)
        meter.start()
        load = await drive(url, itertools.repeat(call), connections=1, seconds=plan.seconds, is_right=_is_right)
        cpu.append(meter.stop(load.operations))
        ours.append(load.percentile_ms(50))
        theirs.append(statistics.median(commits))
        plan.tell(f"P8 round {number + 1}: {ours[-1]:.2f} ms against {theirs[-1]:.2f} ms")
    await connection.close()
    figure = Figure("P8", "a held call, p50", "three commits", "limit", Target("at most", 6.0), "ms", ours, theirs)
    figure.cpu = plan.median_of(cpu)
    return [figure]


def _is_right(answer: bytes | bytearray) -> bool:
    return b'"content":[]' in answer
