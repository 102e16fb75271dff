"""What goes on although whoever waits for it has left."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


async def to_its_end(work: Awaitable[T]) -> T:
    """Waits for work that runs to its end, also when the waiting is cancelled. How it ended is then told to nobody: asyncio
    would log a refusal that no caller is left to hear."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(_look)
    return await asyncio.shield(task)


def _look(task: "asyncio.Future[Any]") -> None:
    if not task.cancelled():
        task.exception()
