"""Several pieces of work at once: bounded, in order, and all of them over when one has failed."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def side_by_side(branches: Sequence[Awaitable[T]], *, limit: int) -> list[T]:
    """The results in the order of the branches, at most `limit` of which run at once. They begin in their order.

    The first failure stops the others, waits until they have stopped, and is raised. Coroutines whose turn did not come
    are closed.
    """
    if limit < 1:
        raise ValueError("limit must be at least 1")
    results: dict[int, T] = {}
    to_come = iter(enumerate(branches))

    async def lane() -> None:
        for number, branch in to_come:
            results[number] = await branch

    lanes = [asyncio.create_task(lane()) for _ in range(min(limit, len(branches)))]
    try:
        if lanes:
            await asyncio.wait(lanes, return_when=asyncio.FIRST_EXCEPTION)
            _raise_failure(lanes)
    finally:
        for _, branch in to_come:
            if asyncio.iscoroutine(branch):
                branch.close()
        for each in lanes:
            each.cancel()
        if lanes:
            await asyncio.wait(lanes)
            for each in lanes:
                _ = each.cancelled() or each.exception()
    return [results[number] for number in range(len(branches))]


def _raise_failure(lanes: Sequence[asyncio.Task[Any]]) -> None:
    """Raises what ended a lane, an ordinary exception before what only stops the run."""
    ended = [each for each in lanes if each.done()]
    errors = [error for each in ended if not each.cancelled() and (error := each.exception()) is not None]
    for error in sorted(errors, key=lambda error: not isinstance(error, Exception)):
        raise error
    if any(each.cancelled() for each in ended):
        raise asyncio.CancelledError
