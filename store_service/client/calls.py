"""One call to the store: its deadline, its tries, its error."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

import grpc
import grpc.aio
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_before_delay, wait_random_exponential

from store_service.client.errors import StoreError, from_rpc_error

Request = TypeVar("Request")
Response = TypeVar("Response")

_SHORTEST_TRY_SECONDS: Final = 0.25
_JITTER: Final = wait_random_exponential(multiplier=0.05, max=2)


async def call_once(
    method: grpc.aio.UnaryUnaryMultiCallable[Request, Response], request: Request, *, timeout_seconds: float
) -> Response:
    """Calls once. Raises StoreError."""
    try:
        return await method(request, timeout=timeout_seconds)
    except grpc.RpcError as error:
        raise from_rpc_error(error) from None


async def call(
    method: grpc.aio.UnaryUnaryMultiCallable[Request, Response],
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
    deadline = time.monotonic() + timeout_seconds
    in_time = stop_before_delay(timeout_seconds if retry_seconds is None else min(timeout_seconds, retry_seconds))
    tries = AsyncRetrying(
        retry=retry_if_exception(_is_transient),
        wait=_wait_seconds,
        stop=lambda state: in_time(state) or (allowed_seconds is not None and allowed_seconds() <= 0),
        reraise=True,
    )
    async for attempt in tries:
        with attempt:
            remaining = deadline - time.monotonic()
            longest = min(remaining, max(_SHORTEST_TRY_SECONDS, remaining / 2))
            if allowed_seconds is not None:
                longest = min(longest, allowed_seconds())
            return await call_once(method, request, timeout_seconds=max(longest, 0.0))
    raise AssertionError("the last try returns or raises")


def _is_transient(error: BaseException) -> bool:
    return isinstance(error, StoreError) and error.is_transient


def _wait_seconds(state: RetryCallState) -> float:
    """A random time that grows with the number of tries, and no less than what the store asked for."""
    error = state.outcome.exception() if state.outcome is not None else None
    asked_ms = error.retry_after_ms if isinstance(error, StoreError) else None
    return max(_JITTER(state), (asked_ms or 0) / 1000)
