"""What every call has in common: its refusal, its line in the log, its figures, its batch."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import cache, partial
from typing import Any, TypeVar

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc_status import rpc_status
from prometheus_client import CollectorRegistry, Counter, Histogram

from store_service.model.limits import BATCH_ITEMS, check_range
from store_service.model.refusals import Reason, Refusal, invalid
from store_service.rpc.handlers import Interceptor, Stream, Unary, wrap
from store_service.rpc.policy import Role
from store_service.rpc.rules import CHANGES, RULES
from store_service.rpc.status import to_status

Request = TypeVar("Request")
Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Calls(Interceptor):
    """Wraps every method: a Refusal becomes a status, and each call one log line and one measurement."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._count = Counter("tenure_store_calls", "Calls by method and outcome.", ["method", "outcome"], registry=registry)
        self._seconds = Histogram(
            "tenure_store_call_seconds", "Time of a call, waits included.", ["method"], registry=registry, buckets=_BUCKETS
        )

    def around(self, handler: Any, service: str, method: str, details: grpc.HandlerCallDetails) -> Any:
        """See `Interceptor`."""
        read = _reader(handler.request_deserializer)
        return wrap(handler, unary=partial(self._unary, method), stream=partial(self._stream, method), read=read)

    def _unary(self, method: str, inner: Unary) -> Unary:
        async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            started = time.perf_counter()
            outcome = "CANCELLED"
            try:
                answer = await inner(request, context)
                outcome = "OK"
                return answer
            except Exception as error:  # noqa: BLE001 (told without its text, and logged)
                outcome = error.reason.value if isinstance(error, Refusal) else "INTERNAL"
                await _abort(context, method, error)
            finally:
                self._tell(method, request, outcome, started)
                del request  # see `_abort`

        return call

    def _stream(self, method: str, inner: Stream) -> Stream:
        async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            started = time.perf_counter()
            outcome = "CANCELLED"
            try:
                async for answer in inner(request, context):
                    yield answer
                outcome = "OK"
            except Exception as error:  # noqa: BLE001 (told without its text, and logged)
                outcome = error.reason.value if isinstance(error, Refusal) else "INTERNAL"
                await _abort(context, method, error)
            finally:
                self._tell(method, request, outcome, started)
                del request  # see `_abort`

        return call

    def _tell(self, method: str, request: Any, outcome: str, started: float) -> None:
        seconds = time.perf_counter() - started
        self._count.labels(method, outcome).inc()
        self._seconds.labels(method).observe(seconds)
        log = structlog.get_logger()
        level = log.warning if outcome in ("INTERNAL", *_TROUBLE) else log.info
        level("call", method=method, outcome=outcome, ms=round(seconds * 1000, 2), **_ids(request))
        is_operators = structlog.contextvars.get_contextvars().get("role") == Role.OPERATOR
        if method in _AUDITED or (is_operators and method in CHANGES):  # the line has its `caller`, as every other
            log.info(
                "audit",
                action=method,
                outcome=outcome,
                actor="" if isinstance(request, Unreadable) else getattr(request, "actor", getattr(request, "principal", "")),
                **_ids(request),
            )


async def _abort(context: grpc.aio.ServicerContext[Any, Any], method: str, error: Exception) -> None:
    """Ends a call with a refusal's status; with nothing of another error, which is logged.

    It forgets where the error came from. gRPC keeps what a call was aborted with, and by it what it was raised in place of: all
    their frames know the call, and so themselves, and would keep its request until the next search for garbage.
    """
    if not isinstance(error, Refusal):
        structlog.get_logger().error("call_failed", method=method, exc_info=error)
    error.__traceback__ = error.__cause__ = error.__context__ = None
    if isinstance(error, Refusal):
        await context.abort_with_status(rpc_status.to_status(to_status(error)))
    await context.abort(grpc.StatusCode.INTERNAL, "an internal error; it was logged")


class Unreadable:
    """Stands for a request whose bytes are no message: whoever looks into it, once the caller is known, raises Refusal."""

    def __getattr__(self, name: str) -> Any:
        raise invalid("request", "is no message of this method")


@cache
def _reader(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read_or_not(data: bytes) -> Any:
        try:
            return read(data)
        except DecodeError:
            return Unreadable()

    return read_or_not


_AUDITED = frozenset(
    method for rules in RULES.values() for method, roles in rules.items() if roles == frozenset((Role.OPERATOR,))
)
"""What operators alone may do."""

_TROUBLE = tuple(reason.value for reason in (Reason.STORAGE_UNAVAILABLE, Reason.OUTCOME_UNKNOWN, Reason.OVERLOADED))


def _ids(request: Any) -> dict[str, Any]:
    """The ids that a request names, and how many items it has. Never a payload. A stream of requests names none."""
    if isinstance(request, Unreadable) or not hasattr(request, "DESCRIPTOR"):
        return {}
    fields = request.DESCRIPTOR.fields_by_name
    source = request.lease if "lease" in fields and request.DESCRIPTOR.name != "CompleteAndLeaseTasksRequest" else request
    names = ("request_id", "tenant_id", "task_id", "worker_id")
    ids: dict[str, Any] = {name: value for name in names if (value := getattr(source, name, ""))}
    if "items" in fields:
        ids["items"] = len(request.items)
    return ids


async def run_each(
    requests: Sequence[Request],
    read: Callable[[Request], Item],
    run: Callable[[Sequence[Item]], Awaitable[Sequence[Outcome | Refusal]]],
) -> list[Outcome | Refusal]:
    """Reads each request of a batch and runs those that are valid, together. Outcomes stand in the order of the requests."""
    check_range("items", len(requests), range(1, BATCH_ITEMS + 1))
    read_items: list[Item | Refusal] = []
    for request in requests:
        try:
            read_items.append(read(request))
        except Refusal as refusal:
            read_items.append(refusal.with_traceback(None))  # by which it would know itself, and keep the batch
    valid = [item for item in read_items if not isinstance(item, Refusal)]
    ran = iter(await run(valid) if valid else ())
    return [item if isinstance(item, Refusal) else next(ran) for item in read_items]
