"""Runs that all end at the same moment."""

import asyncio
from typing import Any

from store_service.client import Context, Worker
from tests.client.fake_store import FakeStore, new_worker


class Gate:
    """A workflow function whose runs all end at the same moment."""

    def __init__(self) -> None:
        self.running = 0
        self.opened = asyncio.Event()

    async def __call__(self, ctx: Context, args: Any) -> str:
        self.running += 1
        await self.opened.wait()
        return "done"

    async def until_running(self, count: int, *, seconds: float) -> None:
        """Waits until so many runs have begun."""
        async with asyncio.timeout(seconds):
            while self.running < count:
                await asyncio.sleep(0.01)


def gated(fake: FakeStore, **settings: Any) -> tuple[Worker, Gate]:
    """A worker of such runs, whose leases are not lost for want of time."""
    worker, gate = new_worker(fake, **{"lease_seconds": 60.0, **settings}), Gate()
    worker.workflow("report")(gate.__call__)
    return worker, gate
