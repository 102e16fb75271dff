"""What waits to travel with others, tenant by tenant: which of it travels together next. So callers gather their calls, and
stores their statements."""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from itertools import chain
from typing import Generic, TypeVar

One = TypeVar("One")


class Turns(Generic[One]):
    """Those that wait. No two with one `key` travel together, and at most `most_items`, and `most_bytes` by `size`; one alone
    always does."""

    def __init__(
        self,
        *,
        tenant: Callable[[One], str],
        size: Callable[[One], int],
        most_items: int,
        most_bytes: int,
        key: Callable[[One], Hashable] = id,
    ) -> None:
        self._tenant = tenant
        self._size = size
        self._most_items = most_items
        self._most_bytes = most_bytes
        self._key = key
        self._queues: OrderedDict[str, dict[One, None]] = OrderedDict()
        self.count = 0

    def __iter__(self) -> Iterator[One]:
        return chain.from_iterable(self._queues.values())

    def add(self, one: One) -> None:
        """It waits behind its tenant's others."""
        self._queues.setdefault(self._tenant(one), {})[one] = None
        self.count += 1

    def remove(self, one: One) -> None:
        """It waits no more, if it did."""
        tenant = self._tenant(one)
        queue = self._queues.get(tenant)
        if queue is None or one not in queue:
            return
        del queue[one]
        self.count -= 1
        if not queue:
            del self._queues[tenant]

    def take(self, held_back: set[str]) -> list[One]:
        """Those that travel together next, of which none waits any more: one of each tenant in turn, none of those that are
        held back. A tenant that had a turn is behind the others the next time."""
        if not held_back and self._fit():
            taken = list(self)
            self._queues.clear()
            self.count = 0
            return taken
        taken = self._choose(held_back)
        for one in taken:
            self.remove(one)
        return taken

    def _fit(self) -> bool:
        return (
            self.count <= self._most_items
            and len(set(map(self._key, self))) == self.count
            and sum(map(self._size, self)) <= self._most_bytes
        )

    def _choose(self, held_back: set[str]) -> list[One]:
        turns = deque((tenant, iter(queue)) for tenant, queue in self._queues.items() if tenant not in held_back)
        taken: list[One] = []
        keys: set[Hashable] = set()
        size = 0
        while turns and len(taken) < self._most_items:
            tenant, queue = turns.popleft()
            one = next((one for one in queue if self._key(one) not in keys), None)
            if one is None:
                continue
            size += self._size(one)
            if taken and size > self._most_bytes:
                break
            keys.add(self._key(one))
            taken.append(one)
            turns.append((tenant, queue))
            self._queues.move_to_end(tenant)
        return taken
