"""pgqueuer by its documentation: a pool, batches of 100, durable, its autovacuum settings.

python pgqueuer_peer.py DSN install | drain JOBS MANAGERS
"""

import asyncio
import json
import sys
import time

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

BATCH = 100


async def install(dsn: str) -> None:
    async with asyncpg.create_pool(dsn) as pool:
        queries = Queries(AsyncpgPoolDriver(pool))
        await queries.install()
        await queries.optimize_autovacuum()
    print(json.dumps({}))


async def drain(dsn: str, jobs: int, managers: int) -> None:
    async with asyncpg.create_pool(dsn, min_size=5, max_size=20) as pool:
        queries = Queries(AsyncpgPoolDriver(pool))
        for first in range(0, jobs, 1000):
            count = min(1000, jobs - first)
            await queries.enqueue(["nothing"] * count, [b"{}"] * count, [0] * count)
        done, began, ended = 0, 0.0, 0.0

        def work() -> PgQueuer:
            pgq = PgQueuer(AsyncpgPoolDriver(pool))

            @pgq.entrypoint("nothing")
            async def nothing(_: Job) -> None:
                nonlocal done, began, ended
                done += 1
                began = began or time.perf_counter()

            return pgq

        runs = [work().run(batch_size=BATCH, mode=QueueExecutionMode.drain) for _ in range(managers)]
        await asyncio.gather(*runs)
        ended = time.perf_counter()
        left = await pool.fetchval("SELECT count(*) FROM pgqueuer")
        assert (done, left) == (jobs, 0), (done, left)
    print(json.dumps({"seconds": ended - began}))


if __name__ == "__main__":
    match sys.argv[1:]:
        case [dsn, "install"]:
            uvloop.run(install(dsn))
        case [dsn, "drain", jobs, managers]:
            uvloop.run(drain(dsn, int(jobs), int(managers)))
