"""Many callers, one statement: what arrives while a statement is under way travels together in the next one.

There is no timer, so a call that is alone is not held back. Each item has its own outcome, and an item that a statement
chokes on is found by halving and refused alone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from typing import Generic, TypeVar

import asyncpg
import structlog
from prometheus_client import CollectorRegistry, Histogram

from store_service.model.limits import ANSWER_BYTES, BATCH_ITEMS
from store_service.model.refusals import Reason, Refusal

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
Run = Callable[[Sequence[Item]], Awaitable[Sequence[Outcome | Refusal]]]


class BatchMetrics:
    """How large the batches are, by operation."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.items = Histogram(
            "tenure_store_batch_items", "Items in one statement.", ["operation"], registry=registry,
            buckets=(1, 2, 5, 10, 25, 50, 100, 250, 500),
        )  # fmt: skip


class Batcher(Generic[Item, Outcome]):
    """Gathers single calls of one operation into batches.

    `key` names what no two items of one statement may share; `size` is an item's bytes of payload. At most `parallel`
    statements are under way, each of at most 500 items and 4 MiB.
    """

    def __init__(
        self,
        name: str,
        run: Run[Item, Outcome],
        *,
        key: Callable[[Item], Hashable],
        metrics: BatchMetrics,
        size: Callable[[Item], int] = lambda _: 0,
        parallel: int = 2,
    ) -> None:
        self._name = name
        self._run = run
        self._key = key
        self._size = size
        self._parallel = parallel
        self._items = metrics.items.labels(name)
        self._waiting: list[tuple[Item, asyncio.Future[Outcome]]] = []
        self._running: set[asyncio.Task[None]] = set()

    async def submit(self, item: Item) -> Outcome:
        """Runs one item, with others where there are others. Raises its Refusal. A caller that is cancelled loses the
        answer, never the write."""
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        self._start()
        return await answer

    async def run(self, items: Sequence[Item]) -> list[Outcome | Refusal]:
        """Runs a caller's own batch: an outcome for each item, in their order."""
        outcomes: dict[int, Outcome | Refusal] = {}
        left = list(range(len(items)))
        while left:
            wave = list(self._wave([items[index] for index in left]))
            chosen = [left[position] for position in wave]
            outcomes.update(zip(chosen, await self._run_halving([items[index] for index in chosen]), strict=True))
            left = [index for index in left if index not in outcomes]
        return [outcomes[index] for index in range(len(items))]

    def _start(self) -> None:
        while self._waiting and len(self._running) < self._parallel:
            positions = set(self._wave([item for item, _ in self._waiting]))
            batch = [pair for position, pair in enumerate(self._waiting) if position in positions]
            self._waiting = [pair for position, pair in enumerate(self._waiting) if position not in positions]
            task = asyncio.create_task(self._answer(batch))
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._start()

    async def _answer(self, batch: Sequence[tuple[Item, "asyncio.Future[Outcome]"]]) -> None:
        try:
            outcomes = await self._run_halving([item for item, _ in batch])
        except BaseException as error:
            outcomes = [Refusal(Reason.OUTCOME_UNKNOWN)] * len(batch)
            if not isinstance(error, Exception):
                raise
        finally:
            for (_, answer), outcome in zip(batch, outcomes, strict=True):
                if answer.done():
                    continue
                if isinstance(outcome, Refusal):
                    answer.set_exception(outcome)
                else:
                    answer.set_result(outcome)

    async def _run_halving(self, items: Sequence[Item]) -> list[Outcome | Refusal]:
        self._items.observe(len(items))
        try:
            return list(await self._run(items))
        except Refusal as refusal:
            return [refusal] * len(items)
        except asyncpg.PostgresError:  # whatever it choked on, it was rolled back: find the item
            if len(items) == 1:
                structlog.get_logger().exception("statement_failed", operation=self._name)
                return [Refusal(Reason.STORAGE_UNAVAILABLE)]
        except Exception:  # noqa: BLE001 (it may have been applied: it is not run again)
            structlog.get_logger().exception("statement_lost", operation=self._name)
            return [Refusal(Reason.OUTCOME_UNKNOWN)] * len(items)
        middle = len(items) // 2
        return [*await self._run_halving(items[:middle]), *await self._run_halving(items[middle:])]

    def _wave(self, items: Sequence[Item]) -> Iterator[int]:
        """The positions of items that may travel together: distinct keys, bounded count and bytes, first come first."""
        if (
            len(items) <= BATCH_ITEMS
            and len(set(map(self._key, items))) == len(items)
            and sum(map(self._size, items)) <= ANSWER_BYTES
        ):
            yield from range(len(items))
            return
        keys: set[Hashable] = set()
        size = 0
        for position, item in enumerate(items):
            key = self._key(item)
            size += self._size(item)
            if key in keys:
                size -= self._size(item)
                continue
            if keys and (len(keys) == BATCH_ITEMS or size > ANSWER_BYTES):
                return
            keys.add(key)
            yield position
