"""Two servers of HTTP under load, in turn, round by round."""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tests.benchmarks.api import api
from tests.benchmarks.figures import Figure
from tests.benchmarks.load import Load, drive, mcp_request
from tests.benchmarks.plan import Plan
from tests.benchmarks.world import Meter, World

IN_FLIGHT = 128
CREATING = "creating"
CREATED = b'"resultType":"task"'
COMPLETED = b'"status":"completed"'


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of two servers: where it is, what it is asked, and how a right answer is known."""

    url: str
    requests: Callable[[], Iterator[bytes]]
    mark: bytes
    processes: Mapping[str, int]
    """Those whose CPU is told."""
    in_flight: int = IN_FLIGHT

    async def run(self, seconds: float, in_flight: int | None = None) -> tuple[Load, dict[str, float]]:
        """A stretch of requests; and the CPU of each process for one of them."""
        meter = Meter(dict(self.processes))
        load = await drive(
            self.url, self.requests(), connections=in_flight or self.in_flight, seconds=seconds,
            is_right=lambda answer: self.mark in answer,
        )  # fmt: skip
        return load, meter.stop(load.operations)


def rate(load: Load) -> float:
    """Answers a second."""
    return load.rate


async def side_by_side(plan: Plan, figure: Figure, ours: Side, theirs: Side, worth: Callable[[Load], float] = rate) -> Figure:
    """Fills the figure: they by turns, after a short warming up."""
    loads: dict[str, list[Load]] = {"ours": [], "theirs": []}
    used: list[dict[str, float]] = []
    for number in range(plan.rounds + 1):
        other, other_used = await theirs.run(plan.seconds if number else min(plan.seconds, 1.0))
        mine, mine_used = await ours.run(plan.seconds if number else min(plan.seconds, 1.0))
        if number:
            loads["theirs"].append(other)
            loads["ours"].append(mine)
            used.append({**mine_used, **other_used})
            plan.tell(f"{figure.id} round {number}: {mine.rate:,.0f} /s against {other.rate:,.0f} /s of {figure.against}")
    figure.ours, figure.theirs = ([worth(load) for load in loads[side]] for side in ("ours", "theirs"))
    figure.details |= {
        "ours p50 ms": [load.percentile_ms(50) for load in loads["ours"]],
        "ours p99 ms": [load.percentile_ms(99) for load in loads["ours"]],
        f"{figure.against} p50 ms": [load.percentile_ms(50) for load in loads["theirs"]],
    }
    figure.cpu = plan.median_of(used)
    return figure


async def polling(world: World, *, size: int, count: int, workflow: str) -> Side:
    """Polls of as many tasks, which have ended with results of about so many bytes."""
    async with api(world.pair.store_address) as store:
        await store.lift_limits()
        ids = await store.create(count, workflow=workflow)
        await store.complete(count, result_of(size), workflow=workflow)
    requests = polls(ids, world.pair.url, world.token)
    return Side(url=world.pair.url, requests=lambda: itertools.cycle(requests), mark=COMPLETED, processes=await world.parts())


async def creating(world: World) -> Side:
    """Creations of durable tasks, of a tenant whose tasks nobody runs and nobody waits for."""
    async with api(world.pair.store_address) as store:
        await store.lift_limits(CREATING)
    request = creation(world.pair.url, world.token_of(CREATING))
    return Side(url=world.pair.url, requests=lambda: itertools.repeat(request), mark=CREATED, processes=await world.parts())


def polls(task_ids: list[str], url: str, token: str | None = None) -> list[bytes]:
    """A poll of each task."""
    return [mcp_request(url, "tasks/get", {"taskId": task_id}, token=token) for task_id in task_ids]


def creation(url: str, token: str | None = None) -> bytes:
    """A call that makes a task."""
    return mcp_request(url, "tools/call", {"name": "job", "arguments": {"n": 1, "text": "x" * 100}}, token=token)


def result_of(size: int) -> bytes:
    """A tool's result of about so many bytes."""
    return json.dumps({"content": [{"type": "text", "text": "x" * size}]}, separators=(",", ":")).encode()


async def answer_of(url: str, request: bytes) -> bytes:
    """The body of one answer."""
    bodies: list[bytes] = []

    def note(answer: bytes | bytearray) -> bool:
        bodies.append(bytes(answer[answer.index(b"\r\n\r\n") + 4 :]))
        return True

    await drive(url, iter([request]), connections=1, seconds=10, is_right=note)
    return bodies[0]
