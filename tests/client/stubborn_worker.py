"""A worker process for tests, whose code does not stop when asked: `python -m tests.client.stubborn_worker STORE`."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from store_service.client import Context, SyncContext, Worker
from tests.tied import TIED

LEASE_SECONDS: Final = 5
LONG_LEASE_SECONDS: Final = 60
"""Of the workflow `async`."""


@contextmanager
def process(store: str) -> Iterator[subprocess.Popen[str]]:
    """This worker, as a process."""
    running = subprocess.Popen(
        [*TIED, sys.executable, "-m", __name__, store],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


def stubborn(ctx: SyncContext, args: dict[str, Any]) -> None:
    """Never returns."""
    secret = "hunter2"
    ctx.progress(1)
    while secret:
        pass


async def stubborn_async(ctx: Context, args: dict[str, Any]) -> None:
    """Never returns, and does not let itself be cancelled."""
    await ctx.progress(1)
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


async def stubborn_pool(ctx: Context, args: dict[str, Any]) -> None:
    """Waits for a thread of the event loop's own pool, which never returns."""
    await ctx.progress(1)
    await asyncio.to_thread(threading.Event().wait)


if __name__ == "__main__":
    worker = Worker(sys.argv[1], drain_seconds=600, lease_seconds=LEASE_SECONDS)
    worker.workflow("sync")(stubborn)
    worker.workflow("async", lease_seconds=LONG_LEASE_SECONDS)(stubborn_async)
    worker.workflow("pool")(stubborn_pool)
    worker.run()
