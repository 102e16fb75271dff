"""P1, P3, P11: calls over HTTP against the bare aiohttp server, side by side."""

import itertools
from collections.abc import Callable, Iterator

from tests.benchmarks.figures import Figure, Target
from tests.benchmarks.load import Load, drive, http_request, mcp_request
from tests.benchmarks.plan import Plan
from tests.benchmarks.world import World, api, echo, forever

IN_FLIGHT = 128
TASKS = 4_000


def polls(task_ids: list[str], url: str) -> list[bytes]:
    """A poll of each task."""
    return [mcp_request(url, "tasks/get", {"taskId": task_id}) for task_id in task_ids]


def result_of(size: int) -> bytes:
    """A tool's result of about so many bytes."""
    frame = b'{"content":[{"type":"text","text":"%s"}]}'
    return frame % (b"x" * (size - len(frame) + 2))


async def p1(world: World, plan: Plan) -> list[Figure]:
    """Polls of ended tasks with results of 1 KB."""
    return [await _polls(world, plan, "P1", 1_024, TASKS, Target("at least", 0.45), lambda load: load.rate)]


async def p11(world: World, plan: Plan) -> list[Figure]:
    """Polls of ended tasks with results of 64 KB, in bytes."""
    bytes_per_second: Callable[[Load], float] = lambda load: load.answer_bytes / load.seconds  # noqa: E731
    return [await _polls(world, plan, "P11", 65_536, 500, Target("at least", 0.5), bytes_per_second)]


async def p3(world: World, plan: Plan) -> list[Figure]:
    """Creations of durable tasks."""
    async with api(world) as store:
        await store.lift_limits()
    url = world.pair.url
    create = mcp_request(url, "tools/call", {"name": "job", "arguments": {"n": 1, "text": "x" * 100}})
    size = await _answer_bytes(url, create)
    figure = await _against_echo(
        world, plan, Figure("P3", "tools/call create / echo", Target("at least", 0.35), []), size,
        lambda: itertools.repeat(create), b'"resultType":"task"', lambda load: load.rate,
    )  # fmt: skip
    return [figure]


async def _polls(
    world: World, plan: Plan, name: str, size: int, count: int, target: Target, worth: Callable[[Load], float]
) -> Figure:
    async with api(world) as store:
        await store.lift_limits()
        ids = await store.create(count, workflow=name)
        await store.complete(count, result_of(size), workflow=name)
    requests = polls(ids, world.pair.url)
    answer = await _answer_bytes(world.pair.url, requests[0])
    figure = Figure(name, f"tasks/get of {size // 1024} KB / echo", target, [])
    return await _against_echo(
        world, plan, figure, answer, lambda: forever(requests), b'"status":"completed"', worth, bodies=len(requests)
    )


async def _answer_bytes(url: str, request: bytes) -> int:
    """How long the body of the answer to a request is."""
    sizes: list[int] = []

    def note(answer: bytes | bytearray) -> bool:
        sizes.append(len(answer) - answer.index(b"\r\n\r\n") - 4)
        return True

    await drive(url, iter([request]), connections=1, seconds=10, is_right=note)
    return sizes[0]


async def _against_echo(
    world: World, plan: Plan, figure: Figure, size: int, requests: Callable[[], Iterator[bytes]], mark: bytes,
    worth: Callable[[Load], float], bodies: int = 1,
) -> Figure:  # fmt: skip
    async with echo(world, size) as (echo_url, echo_process):
        example = next(requests())
        body = example[example.index(b"\r\n\r\n") + 4 :]
        bare = http_request(echo_url, body, {"Content-Type": "application/json"})
        meter = await world.meter(echo=echo_process)
        ours, theirs, cpu = [], [], []
        for number in range(plan.rounds + 1):  # the first warms up
            seconds = plan.seconds if number else min(1.0, plan.seconds)
            meter.start()
            bare_load = await drive(echo_url, itertools.repeat(bare), connections=IN_FLIGHT, seconds=seconds)
            echo_used = meter.stop(bare_load.operations)["echo"]
            meter.start()
            load = await drive(
                world.pair.url, requests(), connections=IN_FLIGHT, seconds=seconds, is_right=lambda answer: mark in answer
            )
            used = {**meter.stop(load.operations), "echo": echo_used}
            if number:
                theirs.append(bare_load)
                ours.append(load)
                cpu.append(used)
                plan.tell(f"{figure.id} round {number}: {load.rate:,.0f} /s against {bare_load.rate:,.0f} /s; CPU us {used}")
    figure.rounds = [worth(mine) / worth(bare) for mine, bare in zip(ours, theirs, strict=True)]
    figure.details = {
        "ours /s": [load.rate for load in ours],
        "echo /s": [load.rate for load in theirs],
        "p50 ms": [load.percentile_ms(50) for load in ours],
        "p99 ms": [load.percentile_ms(99) for load in ours],
        "CPU us per call": plan.median_of(cpu),
    }
    return figure
