"""P13: a minute at six tenths of what one worker does: whether claims stay as fast, and whether an old snapshot is felt."""

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

import asyncpg

from tests.benchmarks.api import BATCH, Api, api
from tests.benchmarks.figures import Figure, Target
from tests.benchmarks.plan import Plan
from tests.benchmarks.workers import LEAST, drain
from tests.benchmarks.world import World

SHARE: Final = 0.6
WORKFLOW: Final = "steady"
LANES: Final = 4
TAKEN: Final = 250
"""As many at most in one claim, as P5's worker takes when it brings as many along."""
_TICK_SECONDS: Final = 0.01


@dataclass(slots=True)
class Flow:
    """What came of a stretch at a steady rate."""

    offered: int = 0
    done: int = 0
    over: bool = False
    claims: list[tuple[float, float]] = field(default_factory=list)
    """When, and how many milliseconds it took; those that took nothing are left out."""

    def p50_ms(self, since: float, until: float) -> float:
        """The median of the claims between two moments."""
        return statistics.median(took for when, took in self.claims if since <= when < until)


async def p13(world: World, plan: Plan) -> list[Figure]:
    """The rate is that of P5, measured here once more."""
    seconds, window = (60, 10) if not plan.is_quick else (4, 1)
    with plan.part("P5's rate"):
        rate = 0.0 if plan.is_quick else (await drain(world, LEAST))[0]
        rate = SHARE * (await drain(world, plan.tasks(rate, least=LEAST)))[0]
    plan.tell(f"P13: {rate:,.0f} tasks a second for {seconds} s")
    with plan.part("plain"):
        plain = await _flow(world, rate, seconds)
    with plan.part("old snapshot"):
        async with _old_snapshot(world):
            held = await _flow(world, rate, seconds)
    claims = Figure(
        "P13", f"p50 of a claim in the last {window} s of {seconds}", f"the first {window} s", "itself",
        Target("at most", 1.3), "ms",
        [plain.p50_ms(seconds - window, seconds)], [plain.p50_ms(0, window)],
    )  # fmt: skip
    done = Figure(
        "P13", f"done in {seconds} s while an old snapshot is held", "offered", "itself", Target("at least", 0.9), "tasks",
        [float(held.done)], [rate * seconds],
    )  # fmt: skip
    claims.details = {"offered /s": rate, "done without the snapshot": plain.done / (rate * seconds)}
    done.details = {
        "p50 of a claim, first and last ms": [held.p50_ms(0, window), held.p50_ms(seconds - window, seconds)],
    }  # fmt: skip
    return [claims, done]


async def _flow(world: World, rate: float, seconds: float) -> Flow:
    flow, ready, began = Flow(), asyncio.Event(), time.perf_counter()
    async with api(world.pair.store_address) as store:
        lanes = [asyncio.create_task(_take(store, flow, ready, f"steady-{number}", began)) for number in range(LANES)]
        await asyncio.gather(*(_offer(store, flow, ready, rate, began, seconds) for _ in range(LANES)))
        done = flow.done
        flow.over = True
        ready.set()
        await asyncio.gather(*lanes)
        while taken := await store.claim(BATCH, workflow=WORKFLOW):  # for the next one to begin with nothing
            await store.finish(taken)
    flow.done = done
    return flow


async def _offer(store: Api, flow: Flow, ready: asyncio.Event, rate: float, began: float, seconds: float) -> None:
    """Creates what is due by now and is not on its way yet; several do, as one alone falls behind."""
    while (passed := time.perf_counter() - began) < seconds:
        if (wanted := min(int(passed * rate) - flow.offered, BATCH)) > 0:
            flow.offered += wanted
            await store.create(wanted, workflow=WORKFLOW)
            ready.set()
        await asyncio.sleep(_TICK_SECONDS)


async def _take(store: Api, flow: Flow, ready: asyncio.Event, worker_id: str, began: float) -> None:
    """Claims and finishes until it is over."""
    while not flow.over:
        asked = time.perf_counter()
        taken = await store.claim(TAKEN, workflow=WORKFLOW, worker_id=worker_id)
        if not taken and not flow.over:
            ready.clear()
            await ready.wait()
        if not taken:
            continue
        flow.claims.append((asked - began, (time.perf_counter() - asked) * 1000))
        await store.finish(taken)
        flow.done += len(taken)


@contextlib.asynccontextmanager
async def _old_snapshot(world: World) -> AsyncIterator[None]:
    """A reader that never comes to its end: nothing that was changed since may be vacuumed."""
    connection = await asyncpg.connect(world.dsn)
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        await connection.fetchval("SELECT count(*) FROM tenure.tenant")
        yield
    await connection.close()
