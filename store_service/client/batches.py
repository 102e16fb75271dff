"""Many callers, one call: what is asked for while a call is under way travels together in the next one.

There is no timer that holds anything back: who is alone goes out at once, in a call of its own.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import grpc
from google.protobuf.message import Message
from google.rpc import status_pb2
from prometheus_client import CollectorRegistry, Histogram

from store_service.client.calls import Method, call_once
from store_service.client.errors import StoreError, from_status, given_up, same_error
from store_service.turns import Turns

if TYPE_CHECKING:
    from store_service.telemetry.traces import Traces

MOST_ITEMS: Final = 500
MOST_BYTES: Final = 4 * 1024 * 1024
MOST_WAITING: Final = 10_000
MOST_CALLS: Final = 8
"""Calls of one method that are under way, slow ones included."""
MOST_SLOW_CALLS: Final = 2
"""Slow calls with nothing but one tenant's items: more of them wait, so that others find a call."""
SLOW_SECONDS: Final = 0.1
"""A call that takes longer no longer keeps others waiting: its items may wait for a tenant that others need not."""

_HALVED: Final = (grpc.StatusCode.INTERNAL, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNIMPLEMENTED)
"""What a whole batch may be refused with because of one item, of its size, or of a store that is older than its client."""

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response")


class BatchMetrics:
    """How large the batches are and how long items wait for theirs, by method; and with traces, whose they are."""

    def __init__(self, registry: CollectorRegistry, traces: "Traces | None" = None) -> None:
        self.traces = traces
        self.items = Histogram(
            "tenure_client_batch_items", "Items in one call.", ["method"], registry=registry,
            buckets=(1, 2, 5, 10, 25, 50, 100, 250, 500),
        )  # fmt: skip
        self.wait_seconds = Histogram(
            "tenure_client_batch_wait_seconds", "Longest time that an item waited for its call to set out.", ["method"],
            registry=registry, buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5),
        )  # fmt: skip


class Outcome(Protocol):
    """What a batch answers one item with."""

    @property
    def refused(self) -> status_pb2.Status:
        """Why it was refused."""

    def HasField(self, field_name: Any, /) -> bool:  # noqa: N802 (of protobuf)
        """Whether it was."""


@dataclass(slots=True, eq=False)
class _Item(Generic[Request, Response]):
    """One caller's request, and where its answer goes."""

    request: Request
    tenant_id: str
    size_bytes: int
    answer: "asyncio.Future[Response]"
    asked_at: float
    ends_at: float
    asker: Any = None
    """The span that it is asked for within."""
    call: "_Call | None" = None


@dataclass(slots=True, eq=False)
class _Call:
    """A call under way; `interested` callers still wait for it."""

    interested: int
    only_tenant: str | None
    """Whose all of its items are. Those of several tenants are parted by the store."""
    task: "asyncio.Task[None] | None" = None
    is_slow: bool = False


@dataclass(frozen=True)
class Together(Generic[Request, Response]):
    """How several requests travel in one call."""

    method: Method[Any, Any]
    wrap: Callable[[Sequence[Request]], Message]
    unwrap: Callable[[Any], Response]
    """From an item that was not refused."""
    tenant_of: Callable[[Request], str]


class Batcher(Generic[Request, Response]):
    """Gathers single calls of one method; each item keeps its own outcome, deadline and cancellation.

    At most `parallel` calls are under way, besides slow ones, of which a tenant has two of its own, each of at most 500 items
    and 4 MiB; when more wait, tenants take turns. Beside another, one sets out once half as many wait for it, as a call costs
    what dozens of items do. A batch that fails as a whole, not in transit, is halved until the item that it fails for is alone.
    """

    def __init__(
        self,
        name: str,
        alone: Method[Request, Response],
        together: Together[Request, Response],
        metrics: BatchMetrics,
        *,
        parallel: int = 2,
    ) -> None:
        self._name = name
        self._traces = metrics.traces
        self._alone = alone
        self._together = together
        self._parallel = parallel
        self._items = metrics.items.labels(name)
        self._wait_seconds = metrics.wait_seconds.labels(name)
        self._waiting: Turns[_Item[Request, Response]] = Turns(
            tenant=attrgetter("tenant_id"), size=attrgetter("size_bytes"), most_items=MOST_ITEMS, most_bytes=MOST_BYTES
        )
        self._calls: set[_Call] = set()
        self._unanswered: dict[_Item[Request, Response], None] = {}
        self._expiry: asyncio.TimerHandle | None = None
        self._expires_at = math.inf
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_sending_soon = False
        self._is_closed = False

    async def __call__(self, request: Request, /, *, timeout: float) -> Response:  # noqa: ASYNC109 (as a method of gRPC)
        """Asks once, with others where there are others. Raises StoreError, DEADLINE_EXCEEDED after `timeout` seconds.

        A caller that is cancelled is taken out while it waits; later it loses the answer, and the call ends when nobody
        waits for it any more.
        """
        if self._is_closed:
            raise given_up()
        if self._waiting.count >= MOST_WAITING:
            raise StoreError("too many calls wait here", reason="OVERLOADED", code=grpc.StatusCode.RESOURCE_EXHAUSTED)
        loop = self._loop = self._loop or asyncio.get_running_loop()  # which costs a system call
        now = time.monotonic()
        answer: asyncio.Future[Response] = loop.create_future()
        tenant_id = self._together.tenant_of(request)
        item = _Item(request, tenant_id, request.ByteSize(), answer, asked_at=now, ends_at=now + timeout)
        if self._traces is not None:
            item.asker = self._traces.asker()
        self._waiting.add(item)
        self._unanswered[item] = None
        if item.ends_at < self._expires_at:
            self._expire_at(loop, item.ends_at)
        if not self._is_sending_soon:  # in this very turn of the event loop, after whoever else asks in it
            self._is_sending_soon = True
            loop.call_soon(self._send)
        try:
            return await answer
        finally:
            del self._unanswered[item]
            self._leave(item)
            del item, answer  # an error knows this frame by its traceback: it would know itself, and keep the request

    def close(self) -> None:
        """Ends what waits and what is under way with an error."""
        self._is_closed = True
        if self._expiry is not None:
            self._expiry.cancel()
        for item in self._waiting:
            _answer(item, given_up())
        for call in self._calls:
            if call.task is not None:
                call.task.cancel()

    def _leave(self, item: _Item[Request, Response]) -> None:
        call = item.call
        if call is None:
            self._waiting.remove(item)
            return
        call.interested -= 1
        if not call.interested and call.task is not None:
            call.task.cancel()  # nothing, if it is done

    def _expire_at(self, loop: asyncio.AbstractEventLoop, ends_at: float) -> None:
        """One timer for all: a timer for each would cost more than its item."""
        if self._expiry is not None:
            self._expiry.cancel()
        self._expires_at = ends_at
        self._expiry = loop.call_later(max(0.0, ends_at - time.monotonic()), self._expire, loop)

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        now = time.monotonic()
        left = math.inf
        for item in self._unanswered:
            if item.ends_at <= now:
                _answer(item, StoreError("the store did not answer in time", code=grpc.StatusCode.DEADLINE_EXCEEDED))
            else:
                left = min(left, item.ends_at)
        self._expiry, self._expires_at = None, math.inf
        if left < math.inf:
            self._expire_at(loop, left)

    def _send(self) -> None:
        self._is_sending_soon = False
        while self._waiting.count and self._may_send() and not self._is_closed:
            items = self._waiting.take(self._held_back())
            if not items:
                return
            tenants = {item.tenant_id for item in items}
            call = _Call(len(items), tenants.pop() if len(tenants) == 1 else None)
            for item in items:
                item.call = call
            self._calls.add(call)
            call.task = asyncio.create_task(self._run(call, items))

    def _held_back(self) -> set[str]:
        slow = Counter(call.only_tenant for call in self._calls if call.is_slow and call.only_tenant is not None)
        return {tenant_id for tenant_id, count in slow.items() if count >= MOST_SLOW_CALLS}

    def _may_send(self) -> bool:
        sizes = [call.interested for call in self._calls if not call.is_slow]
        is_worth_it = not sizes or 2 * self._waiting.count >= max(sizes)
        return is_worth_it and len(sizes) < self._parallel and len(self._calls) < MOST_CALLS

    async def _run(self, call: _Call, items: Sequence[_Item[Request, Response]]) -> None:
        loop = asyncio.get_running_loop()
        slow = loop.call_later(SLOW_SECONDS, self._be_slow, call)
        self._items.observe(len(items))
        self._wait_seconds.observe(time.monotonic() - min(item.asked_at for item in items))
        try:
            await self._ask_for(items)
        finally:
            slow.cancel()
            self._calls.discard(call)
            for item in items:
                if not item.answer.done():  # closed, or a defect of ours: nobody waits in vain
                    _answer(item, given_up())
            self._send()

    def _be_slow(self, call: _Call) -> None:
        call.is_slow = True
        self._send()

    async def _ask_for(self, items: Sequence[_Item[Request, Response]]) -> None:
        if self._traces is None:
            await self._ask(items)
            return
        with self._traces.together(self._name, [item.asker for item in items]):
            await self._ask(items)

    async def _ask(self, items: Sequence[_Item[Request, Response]]) -> None:
        timeout = max(0.0, max(item.ends_at for item in items) - time.monotonic())
        try:
            if len(items) == 1:
                _answer(items[0], await call_once(self._alone, items[0].request, timeout_seconds=timeout))
                return
            request = self._together.wrap([item.request for item in items])
            answered = await call_once(self._together.method, request, timeout_seconds=timeout)
        except StoreError as error:
            if len(items) > 1 and error.code in _HALVED and not error.is_transient:
                middle = len(items) // 2
                await self._ask(items[:middle])
                await self._ask(items[middle:])
                return
            for item in items:
                _answer(item, same_error(error))
            return
        outcomes: Sequence[Outcome] = answered.items
        full = []
        for item, outcome in zip(items, outcomes, strict=True):
            if not outcome.HasField("refused"):
                _answer(item, self._together.unwrap(outcome))
            elif (refusal := from_status(outcome.refused)).reason != "BATCH_FULL":
                _answer(item, refusal)
            elif not item.answer.done():
                full.append(item)
        if full:  # others' payloads filled the answer; the first of a batch always fits
            await self._ask(full)


def _answer(item: _Item[Any, Response], answer: Response | StoreError) -> None:
    if item.answer.done():
        return
    if isinstance(answer, StoreError):
        item.answer.set_exception(answer)
    else:
        item.answer.set_result(answer)
