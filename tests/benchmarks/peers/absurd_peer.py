"""absurd: several workers in one process, each with a connection of its own, as a connection does one thing at a time.

python absurd_peer.py DSN install | drain JOBS

Settings: concurrency and poll_interval of https://github.com/earendil-works/absurd/blob/main/docs/sdks/python.md
"""

import asyncio
import json
import sys

import psycopg
import uvloop
from absurd_sdk import AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL
from stretch import Stretch

WORKERS = 4
CONCURRENCY = 50


async def main(dsn: str, what: str, jobs: int = 0) -> None:
    if what == "install":
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            await connection.execute(BUNDLED_SCHEMA_SQL)
            await connection.execute("SELECT absurd.create_queue('bench')")
        print(json.dumps({}))
        return
    stretch, apps = Stretch(jobs), [AsyncAbsurd(dsn, queue_name="bench") for _ in range(WORKERS)]
    for app in apps:

        @app.register_task("nothing")
        async def nothing(params: object, ctx: object) -> dict[str, list[object]]:
            if stretch.count():
                for each in apps:
                    each.stop_worker()
            return {"content": []}

    await asyncio.gather(*(spawn(app, jobs // WORKERS + (number < jobs % WORKERS)) for number, app in enumerate(apps)))
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute("VACUUM ANALYZE")
    await asyncio.gather(
        *(app.start_worker(worker_id=f"w{n}", concurrency=CONCURRENCY, poll_interval=0.01) for n, app in enumerate(apps))
    )
    stretch.tell()
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        left = await connection.execute("SELECT count(*) FROM absurd.t_bench WHERE state <> 'completed'")
        assert await left.fetchone() == (0,)


async def spawn(app: AsyncAbsurd, count: int) -> None:
    for _ in range(count):
        await app.spawn("nothing", {})


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])))
