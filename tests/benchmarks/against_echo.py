"""P1, P3, P11: calls over HTTP against the bare aiohttp server."""

import itertools
from collections.abc import Callable

from tests.benchmarks.figures import Figure, Target
from tests.benchmarks.load import Load, http_request
from tests.benchmarks.plan import Plan
from tests.benchmarks.side_by_side import Side, answer_of, creating, polling, rate, side_by_side
from tests.benchmarks.world import World, echo

ECHO = "bare aiohttp"


async def p1(world: World, plan: Plan) -> list[Figure]:
    """Polls of ended tasks with results of 1 KB."""
    ours = await polling(world, size=1_024, count=plan.size(4_000), workflow="p1")
    figure = Figure("P1", "tasks/get of 1 KB", ECHO, "limit", Target("at least", 0.45))
    return [await _against_echo(world, plan, figure, ours)]


async def p3(world: World, plan: Plan) -> list[Figure]:
    """Creations of durable tasks."""
    figure = Figure("P3", "tools/call that creates a task", ECHO, "limit", Target("at least", 0.35))
    return [await _against_echo(world, plan, figure, await creating(world))]


async def p11(world: World, plan: Plan) -> list[Figure]:
    """Polls of ended tasks with results of 64 KB, in bytes."""
    ours = await polling(world, size=65_536, count=plan.size(500), workflow="p11")
    figure = Figure("P11", "tasks/get of 64 KB", ECHO, "limit", Target("at least", 0.5), unit="MB/s")
    return [await _against_echo(world, plan, figure, ours, lambda load: load.answer_bytes / load.seconds / 1e6)]


async def _against_echo(world: World, plan: Plan, figure: Figure, ours: Side, worth: Callable[[Load], float] = rate) -> Figure:
    """The server answers as many bytes as ours does, to the same body."""
    example = next(ours.requests())
    async with echo(world, len(await answer_of(ours.url, example))) as (url, process):
        body = example[example.index(b"\r\n\r\n") + 4 :]
        bare = http_request(url, body, {"Content-Type": "application/json"})
        theirs = Side(url=url, requests=lambda: itertools.repeat(bare), mark=b"", processes={"echo": process.pid})
        return await side_by_side(plan, figure, ours, theirs, worth)
