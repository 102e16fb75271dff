"""docket: one worker, many tasks at once, nothing kept of a task that ended.

python docket_peer.py REDIS install | drain JOBS

Settings: concurrency, max_connections and execution_ttl of https://github.com/chrisguidry/docket/blob/main/docs/production.md
"""

import json
import logging
import sys
from datetime import timedelta

import uvloop
from docket import Docket, Worker
from stretch import Stretch

CONCURRENCY = 200


async def main(url: str, what: str, jobs: int = 0) -> None:
    logging.disable(logging.WARNING)
    stretch = Stretch(jobs)

    async def nothing() -> None:
        stretch.count()

    if what == "install":
        print(json.dumps({}))
        return
    connection = f"{url}?max_connections={2 * CONCURRENCY}"
    async with Docket(name="bench", url=connection, execution_ttl=timedelta(0)) as docket:
        docket.register(nothing)
        await docket.add_many([docket.call(nothing)() for _ in range(jobs)])
        async with Worker(docket, concurrency=CONCURRENCY, schedule_automatic_tasks=False) as worker:
            await worker.run_until_finished()
        stretch.tell()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])))
