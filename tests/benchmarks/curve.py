"""The curve: rates and latencies with 1 to 256 requests under way, of Tenure, of bare aiohttp and of FastMCP."""

import contextlib
import itertools
from typing import Final

from tests.benchmarks import peer
from tests.benchmarks.against_fastmcp import FASTMCP, fastmcp, fastmcp_polling
from tests.benchmarks.figures import Curve, Point
from tests.benchmarks.load import http_request
from tests.benchmarks.plan import Plan
from tests.benchmarks.side_by_side import Side, answer_of, creating, polling
from tests.benchmarks.world import World, echo

IN_FLIGHT: Final = (1, 8, 32, 128, 256)
FEWER_IN_FLIGHT: Final = (1, 32, 128)


async def curve(world: World, plan: Plan) -> list[Curve]:
    """The middle round of three, by rate, of each point; where rounds are short fewer points, once each, and no peer."""
    flights = FEWER_IN_FLIGHT if plan.is_quick else IN_FLIGHT
    async with contextlib.AsyncExitStack() as stack:
        polls = await polling(world, size=1_024, count=plan.size(4_000), workflow="curve")
        example = next(polls.requests())
        url, process = await stack.enter_async_context(echo(world, len(await answer_of(polls.url, example))))
        bare = http_request(url, example[example.index(b"\r\n\r\n") + 4 :], {"Content-Type": "application/json"})
        sides = {
            "bare aiohttp": Side(url=url, requests=lambda: itertools.repeat(bare), mark=b"", processes={"echo": process.pid}),
            "Tenure: tasks/get": polls,
            "Tenure: tools/call that creates": await creating(world),
        }
        with contextlib.suppress(peer.MissingPeerError):
            if not plan.is_quick:
                sides[f"{FASTMCP}: tasks/get"] = await fastmcp_polling(plan, *await stack.enter_async_context(fastmcp(world)))
        measured: dict[tuple[str, int], list[Point]] = {}
        for _, in_flight, name in itertools.product(range(1 if plan.is_quick else 3), flights, sides):
            load, _ = await sides[name].run(plan.seconds / 2, in_flight)
            point = Point(in_flight, load.rate, load.percentile_ms(50), load.percentile_ms(99))
            measured.setdefault((name, in_flight), []).append(point)
            plan.tell(f"curve: {name}, {in_flight} in flight: {load.rate:,.0f} /s, p99 {point.p99_ms:.1f} ms")
    middle = {key: sorted(points, key=lambda one: one.rate)[len(points) // 2] for key, points in measured.items()}
    series = {name: [middle[name, in_flight] for in_flight in flights] for name in sides}
    return [Curve("against requests in flight", series)]
