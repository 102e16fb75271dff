"""procrastinate: one worker, many jobs at once, a pool as large.

python procrastinate_peer.py DSN install | drain JOBS

Settings: https://procrastinate.readthedocs.io/en/stable/howto/production/concurrency.html and .../howto/basics/batch_defer.html
"""

import json
import logging
import sys

import uvloop
from procrastinate import App, PsycopgConnector
from stretch import Stretch

CONCURRENCY = 30


async def main(dsn: str, what: str, jobs: int = 0) -> None:
    logging.disable(logging.WARNING)
    app, stretch = App(connector=PsycopgConnector(conninfo=dsn, min_size=4, max_size=CONCURRENCY)), Stretch(jobs)

    @app.task(queue="bench")
    async def nothing() -> None:
        stretch.count()

    async with app.open_async():
        if what == "install":
            await app.schema_manager.apply_schema_async()
            print(json.dumps({}))
            return
        await nothing.batch_defer_async(*({} for _ in range(jobs)))
        await app.run_worker_async(queues=["bench"], concurrency=CONCURRENCY, wait=False, install_signal_handlers=False)
        stretch.tell()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])))
