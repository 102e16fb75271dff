"""What goes wrong in a run: a plan drawn from the seed, and the one who carries it out."""

import asyncio
import contextlib
import random
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import asyncpg

from store_service.db.migrate import keep_epoch
from tests.robustness.history import now_us
from tests.robustness.points import ACTIONS, RUN_POINTS
from tests.robustness.postgres import make_replica
from tests.robustness.proxy import Mode
from tests.robustness.surroundings import BOUNCER, CLOCKS, CODE, DISK, POOL, ROLL, Surroundings
from tests.robustness.world import BRIDGES, LEASE_SECONDS, STORES, WORKERS, World

KILLS: Final = ("kill worker", "kill store", "kill bridge")
PAUSES: Final = ("pause worker", "pause store", "pause bridge")
CUTS: Final = {
    "reset": Mode.REFUSE, "blackhole": Mode.BLACKHOLE, "no requests": Mode.NO_REQUESTS, "no replies": Mode.NO_REPLIES,
    "drop reply": Mode.DROP_REPLY, "delay": Mode.DELAY, "throttle": Mode.THROTTLE,
}  # fmt: skip
CRASH: Final = "crash postgres"
FAILOVER: Final = "fail over"
POINTS: Final = tuple(f"point {action}" for action in ACTIONS)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong: when, what, to whom, how long."""

    at_seconds: float
    kind: str
    target: str
    seconds: float


@dataclass(slots=True)
class Done:
    """What was done of the plan."""

    kind: str
    target: str
    began: int
    ended: int = 0
    failed: str = ""


def draw_plan(seed: int, seconds: float, counts: Mapping[str, int]) -> list[Fault]:
    """So many faults of each kind, spread over so many seconds. The same seed draws the same plan."""
    draw = random.Random(f"{seed}/plan")
    found = []
    for kind, count in counts.items():
        for number in range(count):
            # One in each stretch, anywhere in it, so that they are spread and yet meet.
            at = seconds * (number + draw.random()) / count
            found.append(Fault(round(at, 3), *_details(draw, kind)))
    return sorted(found, key=lambda fault: fault.at_seconds)


def _details(draw: random.Random, kind: str) -> tuple[str, str, float]:
    if kind == "kill":
        what = draw.choices(KILLS, (5, 3, 3))[0]
        return what, draw.choice(_parts_of(what)), 0
    if kind == "pause":
        what = draw.choices(PAUSES, (6, 2, 1))[0]
        longest = 3.0 * LEASE_SECONDS if what == "pause worker" else 5.0
        return what, draw.choice(_parts_of(what)), draw.uniform(0.5, longest)
    if kind == "cut":
        ways = [f"{store}>postgres" for store in STORES]
        ways += [f"{side}>{store}" for side in ("workers", "workers", "bridges", "clients") for store in STORES]
        return draw.choice(list(CUTS)), draw.choice(ways), draw.uniform(0.3, 5.0)
    if kind.startswith("point "):  # a certain one, named after it
        return "point raise", kind.removeprefix("point "), 0
    if kind == "point":
        what = draw.choices(POINTS, list(ACTIONS.values()))[0]
        return what, draw.choice(RUN_POINTS), draw.uniform(0.2, 4.0)
    if kind == "clock":
        return draw.choice(list(CLOCKS)), draw.choice((*STORES, *BRIDGES, *WORKERS)), draw.uniform(3.0, 15.0)
    if kind == BOUNCER:
        return kind, "pgbouncer", draw.uniform(0.0, 3.0)
    if kind in ("backends", "locks", "snapshot", POOL, DISK, "listen"):
        return kind, "postgres", draw.uniform(1.0, 8.0)
    return kind, "postgres", 0


def _parts_of(what: str) -> tuple[str, ...]:
    return {"worker": WORKERS, "store": STORES, "bridge": BRIDGES}[what.split()[1]]


class Nemesis:
    """Carries out a plan. What Postgres is hit by comes one after the other, all else as it comes."""

    def __init__(self, world: World, surroundings: Surroundings) -> None:
        self._world = world
        self._surroundings = surroundings
        self._postgres = asyncio.Lock()
        self._under_way: set[asyncio.Task[None]] = set()
        self._generation = 0
        self.done: list[Done] = []
        self.replica_seconds: list[float] = []

    @property
    def counts(self) -> dict[str, int]:
        """How many of each kind were carried out."""
        return dict(Counter(done.kind for done in self.done if done.ended and not done.failed))

    async def carry_out(self, plan: list[Fault]) -> None:
        """Begins each fault in its time, and waits until all are over."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        for fault in plan:
            await asyncio.sleep(max(0.0, start + fault.at_seconds - loop.time()))
            task = asyncio.create_task(self._one(fault))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _one(self, fault: Fault) -> None:
        done = Done(fault.kind, fault.target, now_us())
        self.done.append(done)
        try:
            await self._do(fault)
        except Exception as error:
            done.failed = f"{fault.kind}: {error!r}"[:300]
        done.ended = now_us()

    async def _do(self, fault: Fault) -> None:
        world = self._world
        if fault.kind in KILLS:
            part = world.parts[fault.target]
            await self._until_running(fault.target)
            world.kill(part)
        elif fault.kind in PAUSES:
            part = world.parts[fault.target]
            await self._until_running(fault.target)
            world.pause(part)
            try:
                await asyncio.sleep(fault.seconds)
            finally:
                world.resume(part)
        elif fault.kind in CUTS:
            await self._cut(fault)
        elif fault.kind in POINTS:
            action = fault.kind.removeprefix("point ")
            seconds = f" {fault.seconds:.3f}" if action == "sleep" else ""
            await world.armoury.fire(fault.target, action + seconds)
        elif fault.kind in CLOCKS:
            await self._surroundings.shift_clock(fault.target, fault.kind, fault.seconds)
        elif fault.kind == CODE:
            await self._surroundings.never_yield()
        elif fault.kind == BOUNCER:
            await self._surroundings.restart_pgbouncer(fault.seconds)
        elif fault.kind == ROLL:
            await self._surroundings.roll()
        else:
            await self._hit_postgres(fault)

    async def _until_running(self, name: str) -> None:
        """It may just be coming back from the fault before: the next one hits it, not the gap."""
        async with asyncio.timeout(30):
            while not self._world.parts[name].is_running:
                await asyncio.sleep(0.05)

    async def _cut(self, fault: Fault) -> None:
        proxy = self._world.proxies[fault.target]
        if self._world.pgbouncer is not None and fault.target.endswith(">postgres"):
            proxy = self._world.proxies[fault.target.replace("postgres", "pgbouncer")]  # the way of all but hints
        proxy.set(CUTS[fault.kind])
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            proxy.set(Mode.PASS)
            if fault.kind in ("blackhole", "no requests", "no replies") and fault.seconds > 2:
                proxy.cut()  # a path that was dead so long is given up by somebody in between

    async def _hit_postgres(self, fault: Fault) -> None:
        async with self._postgres:
            if fault.kind == CRASH:
                await self._world.postgres.stop(immediate=True)
                await self._world.postgres.start()
            elif fault.kind == FAILOVER:
                await self._fail_over()
            elif fault.kind == POOL:
                await self._surroundings.hog_connections(fault.seconds)
            elif fault.kind == DISK:
                await self._surroundings.fill_disk(fault.seconds)
            else:
                await self._disturb(fault)

    async def _disturb(self, fault: Fault) -> None:
        connection = await asyncpg.connect(self._world.postgres.dsn(), timeout=10)
        try:
            if fault.kind == "backends":
                await connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity WHERE application_name = "
                    "'tenure-store' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 4) x"
                )
            elif fault.kind == "listen":
                await connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tenure-wakeups'"
                )
            elif fault.kind == "locks":
                async with connection.transaction():
                    # A tenant, or some tasks that workers hold, whose leases run out meanwhile.
                    await connection.execute(
                        "SELECT FROM tenure.tenant ORDER BY random() LIMIT 1 FOR UPDATE"
                        if fault.seconds < 3
                        else "SELECT FROM tenure.task_state WHERE state = 'LEASED' ORDER BY random() LIMIT 5 FOR UPDATE"
                    )
                    await asyncio.sleep(fault.seconds)
            elif fault.kind == "snapshot":
                async with connection.transaction(isolation="repeatable_read"):
                    await connection.execute("SELECT count(*) FROM tenure.tenant")
                    await asyncio.sleep(fault.seconds * 5)
        finally:
            with contextlib.suppress(Exception):
                await connection.close(timeout=5)

    async def _fail_over(self) -> None:
        """A replica that every commit waits for takes over; the one before it never comes back."""
        world, old = self._world, self._world.postgres
        loop = asyncio.get_running_loop()
        began = loop.time()
        port = world.replica_ports[self._generation]
        self._generation += 1
        replica = await make_replica(old, world.folder / "postgres" / f"replica-{self._generation}", port)
        await old.wait_for_replica()
        self.replica_seconds.append(loop.time() - began)
        await asyncio.sleep(2)  # so that a good many commits have waited for it
        await old.stop(immediate=True)
        await asyncio.to_thread(replica.promote)
        await replica.answers()
        await keep_epoch(replica.dsn())  # nothing is lost
        world.postgres = replica
        shutil.rmtree(old.folder, ignore_errors=True)
        for name, proxy in world.proxies.items():
            if name.endswith(">postgres"):
                proxy.upstream = port
                proxy.cut()


def as_json(plan: list[Fault]) -> list[dict[str, Any]]:
    """The plan, to be kept with the history."""
    return [asdict(fault) for fault in plan]
