"""Calls that wait for their statement, by tenant: which of them travel together next."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from store_service.model.limits import ANSWER_BYTES, BATCH_ITEMS

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


@dataclass(eq=False, slots=True)
class Call(Generic[Item, Outcome]):
    """One that waits."""

    item: Item
    tenant_id: str
    answer: "asyncio.Future[Outcome]"
    asked_at: float
    asker: Any


class Turns(Generic[Item, Outcome]):
    """What waits, and what may travel together: no two items with one `key`, at most 500, and 4 MiB by `size`."""

    def __init__(self, key: Callable[[Item], Hashable], size: Callable[[Item], int]) -> None:
        self._key = key
        self._size = size
        self._queues: OrderedDict[str, dict[Call[Item, Outcome], None]] = OrderedDict()
        self.count = 0

    def add(self, call: Call[Item, Outcome]) -> None:
        """It waits behind its tenant's other calls."""
        self._queues.setdefault(call.tenant_id, {})[call] = None
        self.count += 1

    def remove(self, call: Call[Item, Outcome]) -> None:
        """It waits no more, if it did."""
        queue = self._queues.get(call.tenant_id)
        if queue is None or call not in queue:
            return
        del queue[call]
        self.count -= 1
        if not queue:
            del self._queues[call.tenant_id]

    def take(self, held_back: set[str]) -> list[Call[Item, Outcome]]:
        """Those that travel together next, of which none waits any more: one of each tenant in turn, none of those that are
        held back. A tenant that had a turn is behind the others the next time."""
        calls = [call for queue in self._queues.values() for call in queue] if self.count <= BATCH_ITEMS else []
        if held_back or not calls or not self._fit([call.item for call in calls]):
            calls = self._take_in_turn(held_back)
        for call in calls:
            self.remove(call)
        return calls

    def wave(self, items: Sequence[Item]) -> Iterator[int]:
        """The positions of those of a caller's own items that may travel together, first come first."""
        if self._fit(items):
            yield from range(len(items))
            return
        keys: set[Hashable] = set()
        size = 0
        for position, item in enumerate(items):
            if self._key(item) in keys:
                continue
            size += self._size(item)
            if keys and (len(keys) == BATCH_ITEMS or size > ANSWER_BYTES):
                return
            keys.add(self._key(item))
            yield position

    def _take_in_turn(self, held_back: set[str]) -> list[Call[Item, Outcome]]:
        turns = deque((tenant, iter(queue)) for tenant, queue in self._queues.items() if tenant not in held_back)
        taken: list[Call[Item, Outcome]] = []
        keys: set[Hashable] = set()
        size = 0
        while turns and len(taken) < BATCH_ITEMS:
            tenant, queue = turns.popleft()
            call = next((one for one in queue if self._key(one.item) not in keys), None)
            if call is None:
                continue
            size += self._size(call.item)
            if taken and size > ANSWER_BYTES:
                break
            keys.add(self._key(call.item))
            taken.append(call)
            turns.append((tenant, queue))
            self._queues.move_to_end(tenant)
        return taken

    def _fit(self, items: Sequence[Item]) -> bool:
        return (
            len(items) <= BATCH_ITEMS
            and len(set(map(self._key, items))) == len(items)
            and sum(map(self._size, items)) <= ANSWER_BYTES
        )
