"""P5: tasks that do nothing, taken, run and ended by one worker."""

import asyncio
import time

from tests.benchmarks import peer
from tests.benchmarks.figures import Figure, Target
from tests.benchmarks.plan import Plan
from tests.benchmarks.world import World, api

TASKS = 20_000
_COUNTED_FROM = 0.95


async def p5(world: World, plan: Plan) -> list[Figure]:
    """Against pgqueuer with a pool and batches of 100."""
    count = TASKS // 4 if plan.is_quick else TASKS
    dsn = await peer.fresh_database(world.dsn, "pgqueuer")
    peer.run("pgqueuer", dsn, "install")
    ours, theirs, cpu = [], [], []
    for number in range(plan.rounds):
        measured = await asyncio.to_thread(peer.run, "pgqueuer", dsn, "drain", str(count), "1")
        theirs.append(count / measured["seconds"])
        rate, used = await drain(world, count)
        ours.append(rate)
        cpu.append(used)
        plan.tell(f"P5 round {number + 1}: {rate:,.0f} /s against {theirs[-1]:,.0f} /s; CPU us {used}")
    figure = Figure("P5", "no-op tasks / pgqueuer", Target("at least", 2.0), [])
    figure.rounds = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    figure.details = {"ours /s": ours, "pgqueuer /s": theirs, "CPU us per task": plan.median_of(cpu)}
    return [figure]


async def drain(world: World, count: int) -> tuple[float, dict[str, float]]:
    """The rate at which one worker ends so many tasks, from when it has ended the first twentieth of them; and the CPU."""
    async with api(world) as store:
        await store.lift_limits()
        await store.create(count, workflow="nothing")
        worker = world.start_worker()
        meter = await world.meter(worker=worker)
        first = last = 0.0
        left_at_first = count
        while left := await store.outstanding():
            if not first and left < count * _COUNTED_FROM:
                first, left_at_first = time.perf_counter(), left
                meter.start()
            await asyncio.sleep(0.01)
        last = time.perf_counter()
        used = meter.stop(left_at_first)
        await asyncio.to_thread(world.stop, worker)
        return left_at_first / (last - first), used
