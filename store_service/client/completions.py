"""Completions that wait for the next call for work, which takes them along."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc
from taskstore.v1 import leases_pb2

from store_service.client.batches import MOST_BYTES
from store_service.client.errors import LeaseLost, StoreError
from store_service.client.held import HeldLease


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """The completion of one task. `answered` is called once: with None when it is written, else with the reason why it is not
    known to be; then it is to be written alone."""

    held: HeldLease
    request: leases_pb2.CompleteTaskRequest
    answered: Callable[[StoreError | None], None]
    asker: Any = None
    """The span of its run, where there are traces."""


_NOT_NOW: Final = "no call for work takes completions along now"


class Completions:
    """Those that wait. While no call would take them along soon, it gives them back at once."""

    def __init__(self, came: Callable[[], None]) -> None:
        self._came = came
        self._waiting: deque[Completion] = deque()
        self._is_open = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, completion: Completion) -> None:
        """Keeps it for the next call, and says that there is one."""
        self._waiting.append(completion)
        if self._is_open:
            self._came()
        else:
            self.close()

    def open(self) -> None:
        """From now on a call will take along what comes."""
        self._is_open = True

    def close(self) -> None:
        """From now on none will: gives back what waits."""
        self._is_open = False
        waiting, self._waiting = self._waiting, deque()
        for completion in waiting:
            completion.answered(StoreError(_NOT_NOW, code=grpc.StatusCode.UNAVAILABLE))

    def take(self, most: int) -> list[Completion]:
        """The oldest, as many as may travel together, of those whose lease still holds."""
        taken: list[Completion] = []
        size_bytes = 0
        while self._waiting and len(taken) < most:
            size_bytes += len(self._waiting[0].request.result.data)
            if taken and size_bytes > MOST_BYTES:
                break
            completion = self._waiting.popleft()
            if completion.held.remaining_seconds() > 0:
                taken.append(completion)
            else:
                completion.answered(LeaseLost("the lease was lost before this call", reason="LEASE_LOST"))
        return taken
