"""P2, P4: calls over HTTP against FastMCP with its tasks extension, on a Redis that keeps what it is told."""

import contextlib
import itertools
import json
from collections.abc import AsyncIterator

from tests.benchmarks import peer
from tests.benchmarks.figures import Figure, Target
from tests.benchmarks.load import drive, mcp_request
from tests.benchmarks.plan import Plan
from tests.benchmarks.side_by_side import (
    COMPLETED,
    IN_FLIGHT,
    Side,
    answer_of,
    creating,
    creation,
    polling,
    polls,
    side_by_side,
)
from tests.benchmarks.world import World, until_listening
from tests.pair import Process, free_ports

FASTMCP = "FastMCP on Redis"
_TASKS = 200
_FEWER = 32


async def p2(world: World, plan: Plan) -> list[Figure]:
    """Polls of ended tasks with results of 1 KB."""
    figure = Figure("P2", "tasks/get of 1 KB", FASTMCP, "peer", Target("at least", 40))
    try:
        async with fastmcp(world) as (url, processes):
            with plan.part("its best"):
                theirs = await _at_its_best(plan, await fastmcp_polling(plan, url, processes))
            ours = await polling(world, size=1_024, count=plan.size(4_000), workflow="p2")
            return [await side_by_side(plan, figure, ours, theirs)]
    except peer.MissingPeerError as error:
        figure.missing = str(error)
        return [figure]


async def p4(world: World, plan: Plan) -> list[Figure]:
    """Creations. Nothing takes the tasks meanwhile: no worker is there for ours; FastMCP's own has one to wait for."""
    figure = Figure("P4", "tools/call that creates a task", FASTMCP, "peer", Target("at least", 60))
    try:
        async with fastmcp(world, concurrency=1) as (url, processes):
            await answer_of(url, mcp_request(url, "tools/call", {"name": "wait", "arguments": {}}))
            with plan.part("its best"):
                theirs = await _at_its_best(plan, fastmcp_creating(url, processes))
            return [await side_by_side(plan, figure, await creating(world), theirs)]
    except peer.MissingPeerError as error:
        figure.missing = str(error)
        return [figure]


@contextlib.asynccontextmanager
async def fastmcp(world: World, *, concurrency: int = 100) -> AsyncIterator[tuple[str, dict[str, int]]]:
    """FastMCP's URL, and the processes behind it. Raises MissingPeerError."""
    python = peer.python_of("fastmcp")
    redis_url, redis = await world.start_redis()
    (port,) = free_ports(1)
    server: Process = world.start(
        f"fastmcp-{port}", str(peer.PROGRAMS / "fastmcp_peer.py"), redis_url, str(port), "1024", str(concurrency),
        program=python,
    )  # fmt: skip
    try:
        await until_listening(port)
        yield f"http://127.0.0.1:{port}/mcp", {"fastmcp": server.pid, "redis": redis.pid}
    finally:
        world.kill(server)
        world.kill(redis)


async def fastmcp_polling(plan: Plan, url: str, processes: dict[str, int]) -> Side:
    """Polls of FastMCP's tasks, which have ended."""
    made = [json.loads(await answer_of(url, creation(url)))["result"]["taskId"] for _ in range(plan.size(_TASKS))]
    requests = polls(made, url)
    while COMPLETED not in await answer_of(url, requests[-1]):
        pass
    return Side(url=url, requests=lambda: itertools.cycle(requests), mark=COMPLETED, processes=processes)


def fastmcp_creating(url: str, processes: dict[str, int]) -> Side:
    """Creations of FastMCP's tasks."""
    request = creation(url)
    return Side(url=url, requests=lambda: itertools.repeat(request), mark=b'"taskId"', processes=processes)


async def _at_its_best(plan: Plan, side: Side) -> Side:
    """With as many requests in flight as it is fastest with."""
    rates = {}
    for in_flight in (_FEWER, IN_FLIGHT):
        load = await drive(side.url, side.requests(), connections=in_flight, seconds=min(plan.seconds, 1.5))
        rates[in_flight] = load.rate
    best = max(rates, key=lambda number: rates[number])
    return Side(url=side.url, requests=side.requests, mark=side.mark, processes=side.processes, in_flight=best)
