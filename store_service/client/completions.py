"""Completions: they wait for the next call for work, which takes them along, or go at once where they are many."""

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import grpc
from taskstore.v1 import leases_pb2, leases_pb2_grpc

from store_service.client.batches import MOST_BYTES, MOST_ITEMS, BatchMetrics
from store_service.client.calls import Method, call_once
from store_service.client.errors import LeaseLost, StoreError, from_status
from store_service.client.held import HeldLease

Request = TypeVar("Request")


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """The completion of one task. `answered` is called once: with None when it is written, else with the reason why it is not
    known to be; then it is to be written alone."""

    held: HeldLease
    request: leases_pb2.CompleteTaskRequest
    answered: Callable[[StoreError | None], None]
    asker: Any = None
    """The span of its run, where there are traces."""


class Written(Protocol):
    """What answers completions, in their order."""

    @property
    def items(self) -> Sequence[leases_pb2.CompleteTasksResponse.Item]:
        """Of each, whether it was written."""


Answer = TypeVar("Answer", bound=Written)

MANY: Final = 200
"""So many go at once: beside them a call costs little."""
MOST_APART: Final = 250
"""In one call, so that those of one call are free for new work while the next are written."""
_ANSWER_SECONDS: Final = 5.0
_NOT_NOW: Final = "no call for work takes completions along now"


class Completions:
    """Those that wait. While no call would take them along soon, it gives them back at once.

    Many are written at once, by calls of their own: so the store has them, and the next work, under way at a time.
    """

    def __init__(
        self, stub: "leases_pb2_grpc.LeaseServiceAsyncStub", *, came: Callable[[], None], batches: BatchMetrics | None
    ) -> None:
        self._stub = stub
        self._came = came
        self._batches = batches
        self._waiting: deque[Completion] = deque()
        self._is_open = False
        self._is_settling_soon = False
        self._calls: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, completion: Completion) -> None:
        """Keeps it for the next call, and says that there is one."""
        self._waiting.append(completion)
        if self._is_open:
            self._came()
        if not self._is_settling_soon:  # after whoever else ends in this turn of the event loop
            self._is_settling_soon = True
            asyncio.get_running_loop().call_soon(self._settle)

    def open(self) -> None:
        """From now on a call will take along what comes."""
        self._is_open = True

    def close(self) -> None:
        """From now on none will: gives back what waits."""
        self._is_open = False
        waiting, self._waiting = self._waiting, deque()
        for completion in waiting:
            completion.answered(StoreError(_NOT_NOW, code=grpc.StatusCode.UNAVAILABLE))

    def give_up(self) -> None:
        """Gives back what waits, and what is under way by itself."""
        self.close()
        for call in self._calls:
            call.cancel()

    def take(self, most: int) -> list[Completion]:
        """The oldest, as many as may travel together, of those whose lease still holds."""
        taken: list[Completion] = []
        size_bytes = 0
        while self._waiting and len(taken) < min(most, MOST_ITEMS):
            size_bytes += len(self._waiting[0].request.result.data)
            if taken and size_bytes > MOST_BYTES:
                break
            completion = self._waiting.popleft()
            if completion.held.remaining_seconds() > 0:
                taken.append(completion)
            else:
                completion.answered(LeaseLost("the lease was lost before this call", reason="LEASE_LOST"))
        return taken

    async def write(
        self, name: str, method: Method[Request, Answer], request: Request, completions: Sequence[Completion]
    ) -> Answer:
        """Makes the call that writes these, and tells each what came of it. Raises StoreError."""
        traces = None
        if self._batches is not None:
            self._batches.items.labels(name).observe(len(completions))
            traces = self._batches.traces
        longest = min(_ANSWER_SECONDS, *(one.held.remaining_seconds() / 2 for one in completions))
        answers: Sequence[StoreError | None] = [StoreError("the call was given up")] * len(completions)
        try:
            askers = [one.asker for one in completions]
            with traces.together(name, askers) if traces is not None else contextlib.nullcontext():
                response = await call_once(method, request, timeout_seconds=longest)
            answers = [from_status(item.refused) if item.HasField("refused") else None for item in response.items]
        finally:
            for one, answer in zip(completions, answers, strict=True):
                one.answered(answer)
        return response

    def _settle(self) -> None:
        self._is_settling_soon = False
        count = len(self._waiting)
        each = math.ceil(count / math.ceil(count / MOST_APART)) if count >= MANY else 0
        while each and (apart := self.take(each)):
            call = asyncio.create_task(self._write_apart(apart))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
        if not self._is_open:
            self.close()

    async def _write_apart(self, completions: Sequence[Completion]) -> None:
        request = leases_pb2.CompleteTasksRequest(items=[one.request for one in completions])
        with contextlib.suppress(StoreError):  # each was told, and goes on alone
            await self.write("CompleteTask", self._stub.CompleteTasks, request, completions)
