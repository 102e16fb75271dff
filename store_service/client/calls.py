"""One call to the store: its deadline, its tries, its error."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

import grpc
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential

from store_service.client.errors import StoreError, from_rpc_error, given_up

Request = TypeVar("Request")
Response = TypeVar("Response")
Sent_contra = TypeVar("Sent_contra", contravariant=True)
Received_co = TypeVar("Received_co", covariant=True)


class Method(Protocol[Sent_contra, Received_co]):
    """A method of the store: of a stub, or one that gathers calls."""

    def __call__(self, request: Sent_contra, /, *, timeout: float) -> Awaitable[Received_co]:
        """Asks once."""


_SHORTEST_TRY_SECONDS: Final = 0.25
_JITTER: Final = wait_random_exponential(multiplier=0.05, max=2)


async def call_once(method: Method[Request, Response], request: Request, *, timeout_seconds: float) -> Response:
    """Calls once. Raises StoreError."""
    try:
        return await method(request, timeout=timeout_seconds)
    except grpc.RpcError as error:
        raise from_rpc_error(error) from None
    except grpc.aio.UsageError:
        raise given_up() from None
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        raise StoreError("the connection was closed under the call", code=grpc.StatusCode.UNAVAILABLE) from None


def is_cancelled() -> bool:
    """Whether it is this very task that somebody cancels."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def call(
    method: Method[Request, Response],
    request: Request,
    *,
    timeout_seconds: float,
    retry_seconds: float | None = None,
    allowed_seconds: Callable[[], float] | None = None,
) -> Response:
    """Calls, and repeats the very same request after a transient failure, all within `timeout_seconds`.

    One try takes at most half of what remains, so that an answer that was lost on its way leaves room for another. None
    is begun later than `retry_seconds` after the first, if that is given. `allowed_seconds` is asked before each try how
    long the caller may go on; none is begun once it says 0.
    Raises StoreError.
    """
    started = time.monotonic()
    try:
        return await call_once(method, request, timeout_seconds=_longest_try(timeout_seconds, allowed_seconds))
    except StoreError as error:
        first = error
    if not first.is_transient:
        raise first from None
    deadline = started + timeout_seconds

    async def attempt() -> Response:
        longest = _longest_try(deadline - time.monotonic(), allowed_seconds)
        return await call_once(method, request, timeout_seconds=longest)

    until = deadline if retry_seconds is None else min(deadline, started + retry_seconds)
    return await _repeat(attempt, first, until, allowed_seconds)


def _longest_try(remaining_seconds: float, allowed_seconds: Callable[[], float] | None) -> float:
    longest = min(remaining_seconds, max(_SHORTEST_TRY_SECONDS, remaining_seconds / 2))
    if allowed_seconds is not None:
        longest = min(longest, allowed_seconds())
    return max(longest, 0.0)


async def _repeat(
    attempt: Callable[[], Awaitable[Response]],
    first: StoreError,
    until: float,
    allowed_seconds: Callable[[], float] | None,
) -> Response:
    """Tries again after a `first` failure, beginning none after `until`. Apart from the first try, which costs a tenth."""
    failed: list[StoreError] = [first]

    async def next_attempt() -> Response:
        if failed:
            raise failed.pop()
        return await attempt()

    def is_over(state: RetryCallState) -> bool:
        return time.monotonic() + state.upcoming_sleep >= until or (allowed_seconds is not None and allowed_seconds() <= 0)

    tries = AsyncRetrying(
        retry=retry_if_exception(_is_transient),
        wait=_wait_seconds,
        stop=is_over,
        reraise=True,
    )
    return await tries(next_attempt)


def _is_transient(error: BaseException) -> bool:
    return isinstance(error, StoreError) and error.is_transient


def _wait_seconds(state: RetryCallState) -> float:
    """A random time that grows with the number of tries, and no less than what the store asked for."""
    error = state.outcome.exception() if state.outcome is not None else None
    asked_ms = error.retry_after_ms if isinstance(error, StoreError) else None
    return max(_JITTER(state), (asked_ms or 0) / 1000)
