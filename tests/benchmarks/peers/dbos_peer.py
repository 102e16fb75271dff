"""dbos: async workflows on a queue that is looked at often, a pool for as many as run.

python dbos_peer.py DSN install | drain JOBS

Settings: polling_interval_sec and worker_concurrency of https://docs.dbos.dev/python/reference/queues, sys_db_pool_size of
https://docs.dbos.dev/python/reference/configuration
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable

import psycopg
from dbos import DBOS
from stretch import Stretch

QUEUE = "bench"
POLL_SECONDS = 0.01
AT_ONCE = 200
POOL = 30


async def main(dsn: str, what: str, jobs: int = 0) -> None:
    url = dsn.replace("postgresql://", "postgresql+psycopg://")
    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "sys_db_pool_size": POOL,
            "run_admin_server": False,
            "log_level": "ERROR",
        }
    )
    stretch, all_ran, loop = Stretch(jobs), asyncio.Event(), asyncio.get_running_loop()

    @DBOS.workflow()
    async def nothing() -> None:
        if stretch.count():
            loop.call_soon_threadsafe(all_ran.set)

    DBOS.launch()
    if what == "install":
        print(json.dumps({}))
    else:
        ids = await enqueue(nothing, jobs)
        # A queue that is registered only now lets all of them wait until here.
        await DBOS.register_queue_async(QUEUE, worker_concurrency=AT_ONCE, polling_interval_sec=POLL_SECONDS)
        await all_ran.wait()
        await until_kept(dsn, ids)
        stretch.tell()
    sys.stdout.flush()
    os._exit(0)  # its threads take long to end


async def enqueue(workflow: Callable[[], Awaitable[None]], jobs: int) -> list[str]:
    ids: list[str] = []

    async def lane(count: int) -> None:
        ids.extend([(await DBOS.enqueue_workflow_async(QUEUE, workflow)).workflow_id for _ in range(count)])

    await asyncio.gather(*(lane(jobs // POOL + (number < jobs % POOL)) for number in range(POOL)))
    return ids


async def until_kept(dsn: str, ids: list[str]) -> None:
    query = "SELECT count(*) FROM dbos.workflow_status WHERE workflow_uuid = ANY(%s) AND status = 'SUCCESS'"
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        while (await (await connection.execute(query, (ids,))).fetchone())[0] < len(ids):
            await asyncio.sleep(0.005)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])))
