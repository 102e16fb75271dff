"""P5, P6: tasks that do nothing, taken, run and ended by one worker."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

from tests.benchmarks import peer
from tests.benchmarks.api import api
from tests.benchmarks.figures import Figure, Target
from tests.benchmarks.plan import Plan
from tests.benchmarks.world import AT_ONCE, World
from tests.pair import Process

WHAT: Final = "no-op tasks run by one worker"
_WORKERS: Final[Mapping[str, int]] = {WHAT: AT_ONCE, f"{WHAT}, 2,000 at once": 2_000}
"""What is measured, and how many tasks the worker runs at once."""
LEAST: Final = 2_000
_COUNTED_FROM: Final = 0.9
_PEERS: Final[Mapping[str, tuple[str, float]]] = {
    "pgqueuer": ("P5", 2.0),
    "procrastinate": ("P6", 30),
    "dbos": ("P6", 20),
    "absurd": ("P6", 15),
    "docket": ("P6", 10),
    "oban": ("P6", 5),
}
"""Of each peer the figure, and how many times as fast we are to be."""
NO_RPC: Final = "the schema without RPC"
_USUAL: Final[Mapping[str, float]] = {
    **dict.fromkeys(_WORKERS, 3_000), NO_RPC: 4_000, "pgqueuer": 6_000, "procrastinate": 200, "dbos": 250, "absurd": 800,
    "docket": 500, "oban": 1_800,
}  # fmt: skip
"""Tasks a second on two cores: how many a short first round needs."""


async def p5(world: World, plan: Plan) -> list[Figure]:
    """Against pgqueuer."""
    return await _against(world, plan, ["pgqueuer"], workers=list(_WORKERS))


async def p6(world: World, plan: Plan) -> list[Figure]:
    """Against the others, and against the same schema without RPC."""
    names = [name for name, (figure, _) in _PEERS.items() if figure == "P6"]
    return await _against(world, plan, names, workers=[WHAT], no_rpc=True)


async def _against(world: World, plan: Plan, names: list[str], *, workers: Sequence[str], no_rpc: bool = False) -> list[Figure]:
    figures = {
        (what, name): Figure(_PEERS[name][0], what, name, "peer", Target("at least", _PEERS[name][1]))
        for what in workers
        for name in names
    }
    with plan.part("install"):
        where = {name: await _address(world, name, [figures[what, name] for what in workers]) for name in names}
        await asyncio.gather(*(peer.run(name, at, "install") for name, at in where.items() if at.startswith("postgres")))
    if no_rpc:
        figures |= {(what, NO_RPC): Figure("P6", what, NO_RPC, "limit", Target("at least", 0.6)) for what in workers}
    rates = {name: _USUAL[name] if plan.is_quick else 0.0 for name in (*workers, *names, NO_RPC)}
    used: dict[str, list[dict[str, float]]] = {what: [] for what in workers}
    rounds = plan.dear_rounds if no_rpc else plan.rounds
    for number in range(plan.is_quick, rounds + 1):  # the one before the first tells how many tasks the others need
        for what in workers:
            with plan.part("ours"):
                rates[what], cpu = await drain(world, plan.tasks(rates[what], least=LEAST), at_once=_WORKERS[what])
            used[what] += [cpu] * bool(number)
        for name in dict.fromkeys(name for (_, name), figure in figures.items() if not figure.missing):
            with plan.part(name):
                rates[name], theirs = await _rate_of(world, plan, name, where.get(name, ""), rates[name])
            for what in workers:
                figure = figures[what, name]
                figure.cpu |= theirs
                if number:
                    figure.ours, figure.theirs = [*figure.ours, rates[what]], [*figure.theirs, rates[name]]
                plan.tell(f"{figure.id} round {number}: {rates[what]:,.0f} /s against {rates[name]:,.0f} /s of {name}")
    for (what, _), figure in figures.items():
        figure.cpu = plan.median_of(used[what]) | figure.cpu
    return list(figures.values())


async def _address(world: World, name: str, figures: Sequence[Figure]) -> str:
    """The address of a peer's database, or Redis, which is empty."""
    try:
        await asyncio.to_thread(peer.python_of, name)
        if name == "docket":
            return (await world.start_redis())[0]
        return await peer.fresh_database(world.dsn, name)
    except peer.MissingPeerError as error:
        for figure in figures:
            figure.missing = str(error)
        return ""


async def _rate_of(world: World, plan: Plan, name: str, address: str, before: float) -> tuple[float, dict[str, float]]:
    """The rate of a peer, and its CPU where it tells it."""
    if name == NO_RPC:
        return await drain_without_rpc(world, plan.tasks(before, least=LEAST)), {}
    count = plan.tasks(before)
    measured = await peer.run(name, address, "drain", str(count))
    return float(count / measured["seconds"]), {name: measured["cpu_us"]}


async def drain(
    world: World, count: int, *, at_once: int = AT_ONCE, stores: Sequence[str] = (), **others: Process
) -> tuple[float, dict[str, float]]:
    """The rate at which workers, one at each of these stores, end so many tasks, from when they have ended the first tenth of
    them; and the CPU."""
    async with api(world.pair.store_address) as store:
        await store.lift_limits()
        await store.create(count, workflow="nothing")
        places = stores or [world.pair.store_address]
        workers = {
            f"worker_{number}": world.start_worker(f"worker-{number}", store=at, at_once=at_once)
            for number, at in enumerate(places, 1)
        }
        meter = await world.meter(**workers, **others)
        began, left_then = 0.0, count
        while left := await store.outstanding():
            pause = 0.005
            if began:
                # Each look is a call and a statement, which a peer does not have: few, but the end is not to be noticed late.
                to_go = (time.perf_counter() - began) * left / max(left_then - left, 1)
                pause = min(max(to_go, pause), 0.05)
            elif left < count * _COUNTED_FROM:
                began, left_then = time.perf_counter(), left
                meter.start()
            await asyncio.sleep(pause)
        assert began, f"{count} tasks ended before they could be counted"
        seconds = time.perf_counter() - began
        used = meter.stop(left_then)
        for worker in workers.values():
            await asyncio.to_thread(world.stop, worker)
        return left_then / seconds, used


async def drain_without_rpc(world: World, count: int) -> float:
    """The rate at which a process claims and finishes so many tasks in Postgres itself, in batches of 100."""
    async with api(world.pair.store_address) as store:
        await store.create(count, workflow="direct")
    command = [sys.executable, "-m", "tests.benchmarks.programs.direct", world.dsn, str(count)]
    done = await asyncio.to_thread(subprocess.run, command, stdout=subprocess.PIPE, check=True)
    return float(count / json.loads(done.stdout)["seconds"])
