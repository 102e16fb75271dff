"""pgqueuer: a pool, batches of 100, durable, its autovacuum settings.

python pgqueuer_peer.py DSN install | drain JOBS | enqueue SECONDS IN_FLIGHT BATCH | starts SECONDS

Settings: https://pgqueuer.readthedocs.io/en/latest/guides/performance-tuning/
"""

import asyncio
import json
import sys
import time
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode
from stretch import Stretch

BATCH = 100


async def install(pool: asyncpg.Pool) -> None:
    queries = Queries(AsyncpgPoolDriver(pool))
    await queries.install()
    await queries.optimize_autovacuum()
    print(json.dumps({}))


async def drain(pool: asyncpg.Pool, count: float) -> None:
    jobs = int(count)
    queries, stretch = Queries(AsyncpgPoolDriver(pool)), Stretch(jobs)
    for first in range(0, jobs, 1000):
        count = min(1000, jobs - first)
        await queries.enqueue(["nothing"] * count, [b"{}"] * count, [0] * count)
    pgq = PgQueuer(AsyncpgPoolDriver(pool))

    @pgq.entrypoint("nothing")
    async def nothing(_: Job) -> None:
        stretch.count()

    await pgq.run(batch_size=BATCH, mode=QueueExecutionMode.drain)
    stretch.tell()
    assert await pool.fetchval("SELECT count(*) FROM pgqueuer") == 0


async def enqueue(pool: asyncpg.Pool, seconds: float, in_flight: float, batch: float) -> None:
    queries, size, made, began = Queries(AsyncpgPoolDriver(pool)), int(batch), 0, time.perf_counter()

    async def lane() -> None:
        nonlocal made
        while time.perf_counter() - began < seconds:
            if size == 1:
                await queries.enqueue("later", b"{}", 0)
            else:
                await queries.enqueue(["later"] * size, [b"{}"] * size, [0] * size)
            made += size

    await asyncio.gather(*(lane() for _ in range(int(in_flight))))
    rate = made / (time.perf_counter() - began)
    assert await pool.fetchval("SELECT count(*) FROM pgqueuer") == made
    await pool.execute("TRUNCATE pgqueuer, pgqueuer_log")
    print(json.dumps({"rate": rate}))


async def starts(pool: asyncpg.Pool, seconds: float) -> None:
    """Each is enqueued a little while after the one before has started; the first one warms up."""
    queries, pgq, delays = Queries(AsyncpgPoolDriver(pool)), PgQueuer(AsyncpgPoolDriver(pool)), []
    started = asyncio.Event()

    @pgq.entrypoint("start")
    async def start(job: Job) -> None:
        delays.append((time.perf_counter() - float(job.payload)) * 1000)
        started.set()

    running = asyncio.create_task(pgq.run(batch_size=BATCH, dequeue_timeout=timedelta(seconds=30)))
    await asyncio.sleep(1)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        started.clear()
        await queries.enqueue("start", str(time.perf_counter()).encode(), 0)
        await started.wait()
        await asyncio.sleep(0.01)
    pgq.shutdown.set()
    await running
    print(json.dumps({"delays_ms": delays[1:]}))


async def main(dsn: str, what: str, *numbers: float) -> None:
    async with asyncpg.create_pool(dsn, min_size=5, max_size=20) as pool:
        await {"install": install, "drain": drain, "enqueue": enqueue, "starts": starts}[what](pool, *numbers)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], *map(float, sys.argv[3:])))
