"""A worker process for trials: `python -m tests.cases.worker STORE NAME LEASE_SECONDS CONCURRENCY`.

Its work does as its arguments say: `hang` on the first attempt, `die` with its process on each, or `spread` over processes.
"""

import asyncio
import multiprocessing
import os
import subprocess
import sys
from typing import Any

from store_service.client import Context, SyncContext, Worker
from store_service.telemetry import configure_logs

TRUE = ["/bin/true"]


async def work(ctx: Context, args: dict[str, Any]) -> str:
    """Tells that it began, and does as it is told."""
    await ctx.progress(1)
    if args.get("do") == "die":
        os._exit(137)
    if args.get("do") == "hang" and ctx.attempt == 1:
        await asyncio.Event().wait()
    return str(ctx.attempt)


def spread(_ctx: SyncContext, args: dict[str, Any]) -> list[int]:
    """Starts so many processes, one after the other, beside the threads of gRPC."""
    codes = {subprocess.run(TRUE, check=False).returncode for _ in range(args["processes"])}
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return [*codes, *pool.map(abs, [-1, -2])]


def main() -> None:
    """Works until SIGTERM."""
    store, name, lease_seconds, concurrency = sys.argv[1:]
    configure_logs(level="warning")
    worker = Worker(store, name=name, lease_seconds=float(lease_seconds), concurrency=int(concurrency), drain_seconds=0)
    worker.workflow("work")(work)
    worker.workflow("spread")(spread)
    worker.run()


if __name__ == "__main__":
    main()
