"""oban: one queue with a large limit, jobs inserted at once.

python oban_peer.py DSN install | drain JOBS

Settings: the limit of a queue and the pool, https://oban.pro/docs/py
"""

import asyncio
import json
import sys

import uvloop
from oban import Oban, worker
from oban.schema import install
from stretch import Stretch

LIMIT = 200
STRETCH = Stretch(0)
ALL_RAN = asyncio.Event()


@worker(queue="bench")
class Nothing:
    async def process(self, job: object) -> None:
        if STRETCH.count():
            ALL_RAN.set()


async def main(dsn: str, what: str, jobs: int = 0) -> None:
    pool = await Oban.create_pool(dsn, min_size=4, max_size=20)
    if what == "install":
        await install(pool)
        print(json.dumps({}))
    else:
        STRETCH.jobs = jobs
        await drain(pool, jobs)
    await pool.close()


async def drain(pool: object, jobs: int) -> None:
    client = Oban(pool=pool, name="client")
    for first in range(0, jobs, 1000):
        await client.enqueue_many(Nothing.new({}) for _ in range(min(1000, jobs - first)))
    async with pool.connection() as connection:
        await connection.set_autocommit(True)
        await connection.execute("VACUUM ANALYZE oban_jobs")
        await connection.set_autocommit(False)
    async with Oban(pool=pool, queues={"bench": LIMIT}):
        await ALL_RAN.wait()
        async with pool.connection() as connection:
            while (await (await connection.execute("SELECT count(*) FROM oban_jobs WHERE state <> 'completed'")).fetchone())[0]:
                await asyncio.sleep(0.005)
        STRETCH.tell()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])))
