"""Many callers, one statement: what arrives while a statement is under way travels together in the next one.

There is no timer, so a call that is alone is not held back. When more wait than one statement takes, tenants take turns. Each
item has its own outcome, and an item that a statement chokes on is found by halving and refused alone. A tenant whose rows
others hold for long keeps only its own items waiting: a statement of several tenants waits for a lock for a moment, then its
tenants are parted.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

import asyncpg
import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram

from store_service.db.fault_points import reaching_batch
from store_service.db.leaving import to_its_end
from store_service.db.pool import Locked, Moved
from store_service.db.traces import Traces
from store_service.fault_points import FaultPoints
from store_service.model.limits import ANSWER_BYTES, BATCH_ITEMS
from store_service.model.refusals import Reason, Refusal
from store_service.turns import Turns

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
Run = Callable[[Sequence[Item]], Awaitable[Sequence[Outcome | Refusal]]]

SLOW_SECONDS: Final = 0.1
"""A statement that takes longer no longer keeps others waiting than those of its own tenants."""
PART_SECONDS: Final = 1.0
"""How long the answer to a caller's own batch waits for one tenant of several."""
MOST_WAITING: Final = 10_000
"""Calls of one operation whose statement has not begun. What comes then is refused."""


class BatchMetrics:
    """How large the batches are, by operation, how long calls wait for theirs, and what is refused; with traces, whose they
    are; and, in tests, the points that each reaches. Without `batching` each single call has a statement of its own."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        batching: bool = True,
        points: FaultPoints | None = None,
        traces: Traces | None = None,
    ) -> None:
        self.batching = batching
        self.points = points
        self.traces = traces
        self.items = Histogram(
            "tenure_store_batch_items", "Items in one statement.", ["operation"], registry=registry,
            buckets=(1, 2, 5, 10, 25, 50, 100, 250, 500),
        )  # fmt: skip
        self.wait_seconds = Histogram(
            "tenure_store_batch_wait_seconds", "Longest time that a call waited for its statement to begin.", ["operation"],
            registry=registry, buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5),
        )  # fmt: skip
        self.refused = Counter(
            "tenure_store_refused_items", "Items that were refused, alone or in a batch.", ["operation", "reason"],
            registry=registry,
        )  # fmt: skip


@dataclass(eq=False, slots=True)
class _Call(Generic[Item, Outcome]):
    """One that waits."""

    item: Item
    tenant_id: str
    answer: "asyncio.Future[Outcome]"
    asked_at: float
    asker: Any


@dataclass(eq=False, slots=True)
class _Statement:
    """One that is under way."""

    tenants: frozenset[str]
    is_slow: bool


class Batcher(Generic[Item, Outcome]):
    """Gathers single calls of one operation into batches.

    `tenant` tells whose an item is; `key` names what no two items of one statement may share; `size` is an item's bytes of
    payload; `moved` is how items are refused whose tenant moves to another cell. At most `parallel` statements are under way,
    besides slow ones, of which a tenant has one; each of at most 500 items and 4 MiB. What waits for no rows, as it reads, is
    slow for other reasons, and counts. At most 10,000 calls wait.
    """

    def __init__(
        self,
        name: str,
        run: Run[Item, Outcome],
        *,
        tenant: Callable[[Item], str],
        key: Callable[[Item], Hashable],
        metrics: BatchMetrics,
        size: Callable[[Item], int] = lambda _: 0,
        parallel: int = 2,
        waits_for_rows: bool = True,
        moved: Reason = Reason.TENANT_MOVED,
    ) -> None:
        self._name = name
        self._run: Run[Item, Outcome] = reaching_batch(metrics.points, name, run)
        self._tenant = tenant
        self._key = key
        self._size = size
        self._parallel = parallel
        self._waits_for_rows = waits_for_rows
        self._moved = moved
        self._batching = metrics.batching
        self._items = metrics.items.labels(name)
        self._wait_seconds = metrics.wait_seconds.labels(name)
        self._refused = metrics.refused
        self._traces = metrics.traces
        self._waiting: Turns[_Call[Item, Outcome]] = Turns(
            tenant=attrgetter("tenant_id"), key=lambda call: key(call.item), size=lambda call: size(call.item),
            most_items=BATCH_ITEMS, most_bytes=ANSWER_BYTES,
        )  # fmt: skip
        self._running: dict[asyncio.Task[None], _Statement] = {}
        self._left_behind: set[asyncio.Task[list[Outcome | Refusal]]] = set()

    async def submit(self, item: Item) -> Outcome:
        """Runs one item, with others where there are others. Raises its Refusal. A caller that is cancelled, as at its
        deadline, is taken out while it waits; later it loses the answer, never the write."""
        if self._waiting.count >= MOST_WAITING:
            raise Refusal(Reason.OVERLOADED)
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        asker = self._traces.asker() if self._traces is not None else None
        call = _Call(item, self._tenant(item), answer, time.monotonic(), asker)
        if self._batching:
            self._waiting.add(call)
            self._start()
        else:
            self._launch([call], is_slow=True)  # which keeps no other waiting
        try:
            return await answer
        finally:
            self._waiting.remove(call)
            del call, answer  # a refusal knows this frame by its traceback: it would know itself, and keep the item

    async def run(self, items: Sequence[Item]) -> list[Outcome | Refusal]:
        """Runs a caller's own batch: an outcome for each item, in their order. All of it is run although its caller leaves."""
        outcomes = await to_its_end(self._run_waves(items))
        for outcome in outcomes:
            if isinstance(outcome, Refusal):
                self._refused.labels(self._name, outcome.reason).inc()
        return outcomes

    async def _run_waves(self, items: Sequence[Item]) -> list[Outcome | Refusal]:
        outcomes: dict[int, Outcome | Refusal] = {}
        left = list(range(len(items)))
        while left:
            wave = self._wave([items[index] for index in left])
            chosen = [left[position] for position in wave]
            outcomes.update(zip(chosen, await self._run_parting([items[index] for index in chosen]), strict=True))
            left = [index for index in left if index not in outcomes]
        return [outcomes[index] for index in range(len(items))]

    def _start(self) -> None:
        while self._waiting.count and sum(not one.is_slow for one in self._running.values()) < self._parallel:
            held_back = {
                tenant for one in self._running.values() if one.is_slow and self._waits_for_rows for tenant in one.tenants
            }
            batch = self._waiting.take(held_back)
            if not batch:
                return
            self._wait_seconds.observe(time.monotonic() - min(call.asked_at for call in batch))
            self._launch(batch, is_slow=False)

    def _launch(self, batch: Sequence[_Call[Item, Outcome]], *, is_slow: bool) -> None:
        statement = _Statement(frozenset(call.tenant_id for call in batch), is_slow)
        task = asyncio.create_task(self._answer(batch, statement))
        self._running[task] = statement
        task.add_done_callback(self._ended)

    def _be_slow(self, statement: _Statement) -> None:
        statement.is_slow = self._waits_for_rows
        self._start()

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._start()

    async def _answer(self, batch: Sequence[_Call[Item, Outcome]], statement: _Statement) -> None:
        slow = asyncio.get_running_loop().call_later(SLOW_SECONDS, self._be_slow, statement)
        outcomes: Sequence[Outcome | Refusal] = [Refusal(Reason.OUTCOME_UNKNOWN)] * len(batch)
        try:
            outcomes = await self._run_for(batch)
        except Locked:
            for part in self._part([call.item for call in batch]):
                self._launch([batch[position] for position in part], is_slow=True)
            batch = outcomes = ()
        finally:
            slow.cancel()
            for call, outcome in zip(batch, outcomes, strict=True):
                if call.answer.done():
                    continue
                if isinstance(outcome, Refusal):
                    self._refused.labels(self._name, outcome.reason).inc()
                    call.answer.set_exception(outcome)
                else:
                    call.answer.set_result(outcome)

    async def _run_for(self, batch: Sequence[_Call[Item, Outcome]]) -> list[Outcome | Refusal]:
        items = [call.item for call in batch]
        if self._traces is None:
            return await self._run_halving(items)
        with self._traces.together(self._name, [call.asker for call in batch]):
            return await self._run_halving(items)

    async def _run_parting(self, items: Sequence[Item], *, is_part: bool = False) -> list[Outcome | Refusal]:
        """A caller's own batch. The answer does not wait for a tenant whose rows others hold: what became of its items is to be
        learned by asking again."""
        if not is_part or len(self._part(items)) > 1:
            try:
                return await self._run_halving(items)
            except Locked:
                parts = self._part(items)
                ran = await asyncio.gather(*(self._run_parting([items[at] for at in part], is_part=True) for part in parts))
                outcomes = dict(
                    zip((at for part in parts for at in part), (one for ran_one in ran for one in ran_one), strict=True)
                )
                return [outcomes[at] for at in range(len(items))]
        task = asyncio.create_task(self._run_halving(items))
        self._left_behind.add(task)
        task.add_done_callback(self._left_behind.discard)
        await asyncio.wait({task}, timeout=PART_SECONDS)
        return task.result() if task.done() else [Refusal(Reason.OUTCOME_UNKNOWN)] * len(items)

    def _part(self, items: Sequence[Item]) -> list[list[int]]:
        """The positions of the items of each half of the tenants; all of them where there is one tenant."""
        tenants = list(dict.fromkeys(map(self._tenant, items)))
        first = set(tenants[: (len(tenants) + 1) // 2])
        halves: tuple[list[int], list[int]] = ([], [])
        for position, item in enumerate(items):
            halves[self._tenant(item) not in first].append(position)
        return [half for half in halves if half]

    async def _run_halving(self, items: Sequence[Item]) -> list[Outcome | Refusal]:
        self._items.observe(len(items))
        try:
            return list(await self._run(items))
        except Locked as refusal:  # of one tenant it has waited as long as may be
            if len({self._tenant(item) for item in items}) > 1:
                raise
            return [refusal] * len(items)
        except Moved as refusal:  # the others go on without them
            left = [item for item in items if self._tenant(item) not in refusal.tenants]
            ran = iter(await self._run_halving(left) if 0 < len(left) < len(items) else [refusal] * len(left))
            return [Refusal(self._moved) if self._tenant(item) in refusal.tenants else next(ran) for item in items]
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

    def _wave(self, items: Sequence[Item]) -> list[int]:
        """The positions of those of a caller's own items that may travel together, first come first."""
        positions: dict[Hashable, int] = {}
        size = 0
        for position, item in enumerate(items):
            key = self._key(item)
            if key in positions:
                continue
            size += self._size(item)
            if positions and (len(positions) == BATCH_ITEMS or size > ANSWER_BYTES):
                break
            positions[key] = position
        return list(positions.values())
