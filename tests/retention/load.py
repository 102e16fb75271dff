"""Finished tasks by the million are cleaned up by two stores that are killed again and again, beside live work.

    python -m tests.retention.load --tasks 1000000 --tenants 1000 --kills 20

Each task must leave exactly one tombstone, whose digest is that of its history, and nothing else; nothing unfinished may be
touched. How long claims of live work take is printed beside how long they took before.
"""

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Self
from uuid import uuid4

import asyncpg
import grpc.aio
from taskstore.v1 import tasks_pb2

from store_service.db.migrate import migrate
from store_service.embedded import EmbeddedPostgres
from tests.conftest import Stubs, stubs_on
from tests.pair import Process, free_ports
from tests.store.builders import claim, complete, new_task

CLEANERS: Final = 2
LIVES: Final = 4
"""How many work beside."""
UNFINISHED: Final = 2
"""How many tasks of each tenant have not ended."""
FILLERS: Final = 4
CHUNK: Final = 20_000
LOOK_SECONDS: Final = 0.2
FINISHED: Final = """
WITH made AS MATERIALIZED (
  SELECT 't' || lpad((n % $2)::text, 6, '0') AS tenant_id, gen_random_uuid() AS task_id,
         clock_timestamp() - interval '3 days' - n * interval '1 ms' AS at
  FROM generate_series($1::bigint, $1 + $3 - 1) n
), told AS (
  INSERT INTO public.seeded SELECT tenant_id, task_id FROM made
), cold AS (
  INSERT INTO tenure.task (tenant_id, task_id, request_id, request_digest, tool, workflow, version, issuer, subject,
    client_capabilities, output_schema, ttl_ms, poll_interval_ms, execution_deadline_ms, trace_parent, trace_state, baggage,
    priority, media_type, input, created_at)
  SELECT tenant_id, task_id, task_id::text, '', 'report', 'report', 1, 'test', 'ann', '{}', '', 3600000, 1000, 0, '', '', '', 0,
    'application/json', '{"a": 1}', at FROM made
), hot AS (
  INSERT INTO tenure.task_state (tenant_id, task_id, workflow, version, priority, created_at, state, ready, ready_at, token,
    attempts, lines, changed_at, ended_at, ttl_ms, handle_ends_at)
  SELECT tenant_id, task_id, 'report', 1, 0, at, 'COMPLETED', false, at, 1, 1, 3, at, at, 3600000, at + interval '1 hour'
  FROM made
), result AS (
  INSERT INTO tenure.outcome (tenant_id, task_id, media_type, data)
  SELECT tenant_id, task_id, 'application/json', '{"b": 2}' FROM made
)
INSERT INTO tenure.history (tenant_id, task_id, line, event, at, worker_id, token)
SELECT m.tenant_id, m.task_id, e.line, e.event, m.at, e.worker, e.token
FROM made m CROSS JOIN (VALUES (0, 'CREATED', NULL, NULL), (1, 'LEASED', 'w1', 1), (2, 'COMPLETED', 'w1', 1))
  e(line, event, worker, token)
"""
KEEP: Final = """
UPDATE tenure.task_state SET handle_ends_at = handle_ends_at + interval '1 year' WHERE (tenant_id, task_id) IN
  (SELECT DISTINCT ON (tenant_id) tenant_id, task_id FROM public.seeded ORDER BY tenant_id, task_id)
"""
"""One task of each tenant is not to be removed yet."""
LET_GO: Final = """
UPDATE tenure.task_state SET handle_ends_at = handle_ends_at - interval '1 year'
WHERE handle_ends_at > clock_timestamp() + interval '100 days'
"""
WRONG: Final = """
SELECT 'not one tombstone ' || s.task_id FROM public.seeded s
  WHERE 1 <> (SELECT count(*) FROM tenure.tombstone t WHERE t.tenant_id = s.tenant_id AND t.task_id = s.task_id)
UNION ALL SELECT 'a tombstone of what was not finished ' || t.task_id FROM tenure.tombstone t
  WHERE NOT EXISTS (SELECT FROM public.seeded s WHERE s.tenant_id = t.tenant_id AND s.task_id = t.task_id)
UNION ALL SELECT 'a gap in the cursors of ' || t.tenant_id FROM tenure.tenant t
  WHERE (t.tombstones, t.tombstones) IS DISTINCT FROM
    (SELECT (count(*), coalesce(max(x.cursor), 0)) FROM tenure.tombstone x WHERE x.tenant_id = t.tenant_id)
UNION ALL SELECT 'a digest of another history ' || t.task_id FROM tenure.tombstone t
  WHERE t.history_digest <> sha256(t.history) OR t.history_lines <> 3
UNION ALL SELECT 'a part without its task ' || x.task_id FROM (
    SELECT tenant_id, task_id FROM tenure.history UNION ALL SELECT tenant_id, task_id FROM tenure.outcome
    UNION ALL SELECT tenant_id, task_id FROM tenure.task_state) x
  WHERE NOT EXISTS (SELECT FROM tenure.task t WHERE t.tenant_id = x.tenant_id AND t.task_id = x.task_id)
UNION ALL SELECT 'a task that is over is left ' || s.task_id FROM tenure.task_state s
  JOIN public.seeded USING (tenant_id, task_id)
UNION ALL SELECT 'an unfinished task is not what it was ' || u.task_id FROM public.unfinished u
  WHERE NOT EXISTS (SELECT FROM tenure.task_state s WHERE s.tenant_id = u.tenant_id AND s.task_id = u.task_id
                    AND s.state = 'QUEUED' AND s.change = 1)
UNION ALL SELECT 'audit ' || a::text FROM tenure.audit a
LIMIT 20
"""


@dataclass
class Latencies:
    """How long claims took that found something, in ms."""

    seen_ms: list[float] = field(default_factory=list)

    def told(self) -> dict[str, float]:
        """In few numbers."""
        if len(self.seen_ms) < 2:
            return {"claims": len(self.seen_ms)}
        cuts = statistics.quantiles(self.seen_ms, n=100)
        return {
            "claims": len(self.seen_ms),
            "p50_ms": round(cuts[49], 1),
            "p95_ms": round(cuts[94], 1),
            "p99_ms": round(cuts[98], 1),
        }


@dataclass
class Report:
    """What a run showed."""

    tasks: int
    tenants: int
    kills: int = 0
    seconds: float = 0.0
    tasks_per_second: float = 0.0
    leases_left: int = 0
    """By stores that were killed, of tenants that had nothing more to remove."""
    claims_before: dict[str, float] = field(default_factory=dict)
    claims_meanwhile: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


class Cleaner:
    """A store that does nothing but clean up."""

    def __init__(self, number: int, dsn: str, folder: Path, *, lease_seconds: float) -> None:
        self._number = number
        self._folder = folder
        self._settings = {
            "TENURE_STORE_DSN": dsn, "TENURE_STORE_CLEANUP": "true", "TENURE_STORE_CLEANUP_SCAN_SECONDS": "1",
            "TENURE_STORE_CLEANUP_LEASE_SECONDS": str(lease_seconds),
        }  # fmt: skip
        self.start()

    def start(self) -> None:
        """Starts it."""
        ports = {"TENURE_STORE_PORT": "0", "TENURE_STORE_ADMIN_PORT": "0"}
        log = self._folder / f"cleaner-{self._number}.log"
        self._process = Process("cleaner", ["-m", "store_service", "serve"], environment=self._settings | ports, log=log)

    def kill(self) -> None:
        """Ends it at once, whatever it does."""
        self._process.kill()

    def stop(self) -> None:
        """Lets it end."""
        self._process.stop()


class World:
    """A database full of what is over, a store for live work, and a look into the database."""

    def __init__(self, dsn: str, folder: Path, tenants: int) -> None:
        self.dsn = dsn
        self.folder = folder
        self.tenants = [f"t{number:06}" for number in range(tenants)]

    async def __aenter__(self) -> Self:
        await migrate(self.dsn)
        self.database = await asyncpg.connect(self.dsn)
        port, admin = free_ports(2)
        environment = {
            "TENURE_STORE_DSN": self.dsn, "TENURE_STORE_PORT": str(port), "TENURE_STORE_ADMIN_PORT": str(admin),
        }  # fmt: skip
        self._store = Process("store", ["-m", "store_service", "serve"], environment=environment, log=self.folder / "store.log")
        self._store.wait_ready(admin)
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        self.stubs = stubs_on(self._channel, address="", admin_port=admin)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()
        await asyncio.to_thread(self._store.stop)
        await self.database.close()

    async def fill(self, tasks: int) -> None:
        """Makes what is over, and beside it what is not."""
        for table in ("seeded", "unfinished"):
            await self.database.execute(f'CREATE TABLE public.{table} (tenant_id text COLLATE "C", task_id uuid)')
        made = []
        for tenant_id in self.tenants:
            made += [new_task(tenant_id=tenant_id, workflow="later", ttl_ms=1) for _ in range(UNFINISHED)]
        for first in range(0, len(made), 500):
            request = tasks_pb2.CreateTasksRequest(items=made[first : first + 500])
            created = [item.created.task for item in (await self.stubs.tasks.CreateTasks(request)).items]
            await self.database.executemany(
                "INSERT INTO public.unfinished VALUES ($1, $2::text::uuid)", [(one.tenant_id, one.task_id) for one in created]
            )
        chunks = iter(range(0, tasks, CHUNK))

        async def make() -> None:
            connection = await asyncpg.connect(self.dsn)
            for first in chunks:
                await connection.execute(FINISHED, first, len(self.tenants), min(CHUNK, tasks - first), timeout=1_200)
            await connection.close()

        await asyncio.gather(*(make() for _ in range(FILLERS)))
        await self.database.execute("CREATE INDEX ON public.seeded (tenant_id, task_id)", timeout=600)
        await self.database.execute("ANALYZE", timeout=600)

    @contextlib.asynccontextmanager
    async def live_work(self, latencies: Latencies) -> AsyncIterator[None]:
        """Tasks of these tenants are created, claimed and completed as long as the block lasts."""
        stopping = asyncio.Event()
        lives = [asyncio.create_task(self._live(number, latencies, stopping)) for number in range(LIVES)]
        try:
            yield
        finally:
            stopping.set()
            await asyncio.gather(*lives)

    async def _live(self, number: int, latencies: Latencies, stopping: asyncio.Event) -> None:
        chance = random.Random(number)
        stubs: Stubs = self.stubs
        while not stopping.is_set():
            tenant_id = chance.choice(self.tenants)
            await stubs.tasks.CreateTask(new_task(tenant_id=tenant_id, workflow=f"live-{number}"))
            mine = {"workflow": f"live-{number}", "worker_id": f"w-{number}", "request_id": uuid4().hex}
            request = claim(tenant_ids=[tenant_id], wait_ms=20_000, **mine)  # type: ignore[arg-type]
            started = time.perf_counter()
            while not (leased := (await stubs.leases.LeaseTasks(request)).tasks):
                request.request_id = uuid4().hex
            latencies.seen_ms.append((time.perf_counter() - started) * 1_000)
            await stubs.leases.CompleteTask(complete(leased[0].lease))

    async def removed(self) -> int:
        """How many are gone."""
        count: int = await self.database.fetchval("SELECT sum(tombstones)::bigint FROM tenure.tenant")
        return count


async def run(
    dsn: str, folder: Path, *, tasks: int, tenants: int, kills: int, calm_seconds: float, lease_seconds: float = 30.0,
    most_seconds: float = 7_200.0,
) -> Report:  # fmt: skip
    """Fills a database, lets two stores clean it up, and kills both so often on the way."""
    report = Report(tasks, tenants)
    async with World(dsn, folder, tenants) as world:
        await world.fill(tasks)
        if kills:
            await world.database.execute(KEEP)
        before, meanwhile = Latencies(), Latencies()
        async with world.live_work(before):
            await asyncio.sleep(calm_seconds)  # as long as is measured
        cleaners = [Cleaner(number, dsn, folder, lease_seconds=lease_seconds) for number in range(CLEANERS)]
        try:
            async with asyncio.timeout(most_seconds), world.live_work(meanwhile):
                await _clean(world, cleaners, report, kills)
        finally:
            for cleaner in cleaners:
                await asyncio.to_thread(cleaner.stop)
        report.tasks_per_second = round(tasks / report.seconds, 1)
        report.claims_before, report.claims_meanwhile = before.told(), meanwhile.told()
        report.leases_left = await world.database.fetchval(
            "SELECT count(*) FROM tenure.cleanup_lease WHERE owner_id IS NOT NULL"
        )
        report.wrong = [row[0] for row in await world.database.fetch(WRONG, timeout=1_200)]
    return report


async def _clean(world: World, cleaners: list[Cleaner], report: Report, kills: int) -> None:
    """Returns when all is gone; kills all cleaners so often before, however late it looks."""
    started = time.monotonic()
    while (gone := await world.removed()) < report.tasks:
        wanted = report.tasks * (report.kills + 1) // (kills + 1)
        if report.kills < kills and gone >= min(wanted, report.tasks - report.tenants):
            for cleaner in cleaners:
                await asyncio.to_thread(cleaner.kill)
                cleaner.start()
            report.kills += 1
            print(f"{gone:,} gone after {time.monotonic() - started:.0f} s: both killed", flush=True)
            if report.kills == kills:
                await world.database.execute(LET_GO)
        await asyncio.sleep(LOOK_SECONDS)  # the pause between two looks at other processes
    report.seconds = round(time.monotonic() - started, 1)


def main() -> None:
    """Runs it as it is told, and prints what it showed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--tenants", type=int, default=1_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--calm-seconds", type=float, default=60.0, help="how long live work is measured by itself")
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = {"max_connections": "200", "max_wal_size": "8GB"}
        with EmbeddedPostgres(Path(folder) / "postgres", durable=False, settings=settings) as server:
            sizes = {"tasks": told.tasks, "tenants": told.tenants, "kills": told.kills, "calm_seconds": told.calm_seconds}
            report = asyncio.run(run(server.dsn, Path(folder), **sizes))
    print(json.dumps(asdict(report), indent=2))
    if report.wrong:
        raise SystemExit("not every task has exactly one tombstone, or something else was touched")


if __name__ == "__main__":
    main()
