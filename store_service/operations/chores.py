"""What time does to tasks. Any claim may call it; a loop calls it about once a second."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from store_service.db.chores import ChoreRows
from store_service.db.leaving import to_its_end
from store_service.db.wakeups import Wakeups
from store_service.model.moves import UNFINISHED, MoveState
from store_service.model.refusals import Refusal
from store_service.operations.budget_figures import METER_SECONDS, BudgetFigures
from store_service.operations.due_mark import DueMark
from store_service.operations.explanations import RECORD_SECONDS, Registrations

PROMOTE_BATCH: Final = 500
PROMOTE_SECONDS: Final = 0.8  # a worker is to hear within a second that time ended its task
PING_SECONDS: Final = 1.0
GROWTH_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 4.0
TIDY_SECONDS: Final = 60.0
TIMELINE_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 10.0
LOOK_LANES: Final = 1_000
LOOK_TENANTS: Final = 1_000
LOOK_TASKS: Final = 1_000
LOOK_MOVES: Final = 1_000
TIDY_BATCH: Final = 1_000
CLAIM_MEMORY_MS: Final = 3_600_000
_VISIBLE: Final = frozenset({"CANCELLED", "FAILED", "LEASE_EXPIRED", "CANCEL_REQUESTED", "WOKEN"})


class Chores:
    """The loops that tidy. Nothing is wrong while they stand still; it is only later."""

    def __init__(
        self,
        rows: ChoreRows,
        wakeups: Wakeups,
        figures: BudgetFigures,
        registrations: Registrations,
        *,
        snapshot_seconds: Callable[[], Awaitable[float]],
        cancel_grace_ms: int,
        max_crashes: int,
        registry: CollectorRegistry,
    ) -> None:
        self._rows = rows
        self._figures = figures
        self._registrations = registrations
        self._wakeups = wakeups
        self._snapshot_seconds = snapshot_seconds
        self._cancel_grace_ms = cancel_grace_ms
        self._max_crashes = max_crashes
        self._due = Counter("tenure_store_due", "What fell due, by what became of it.", ["event"], registry=registry)
        self._tasks = Gauge(
            "tenure_store_tasks", "Unfinished tasks of all tenants, by where they stand.", ["state"], registry=registry
        )
        self._oldest = Gauge(
            "tenure_store_oldest_ready_seconds", "Since when the oldest task could have been taken.", registry=registry
        )
        self._other_timeline = Gauge(
            "tenure_store_other_timeline", "Whether the database failed over since its epoch was raised.", registry=registry
        )
        self._removable = Gauge(
            "tenure_store_removable_tasks", "Tasks to be removed, of each tenant at most 1,000.", registry=registry
        )
        self._removable_for = Gauge(
            "tenure_store_removable_age_seconds", "Since when the oldest one is to be removed.", registry=registry
        )
        self._snapshot = Gauge(
            "tenure_store_oldest_snapshot_seconds", "How long the oldest transaction holds back vacuum.", registry=registry
        )
        self._purges = Gauge("tenure_store_purges_waiting", "Purges that wait for a decision.", registry=registry)
        self._moves = Gauge(
            "tenure_store_moves", "Tenants whose move has not come to its end, by how far it is.", ["state"], registry=registry
        )
        self._broken_off = Gauge("tenure_store_moves_broken_off", "Of these moves, those that nobody is at.", registry=registry)
        self._frozen_for = Gauge(
            "tenure_store_frozen_seconds", "How long the tenant that is frozen for longest is refused.", registry=registry
        )
        self._promoting = asyncio.Lock()
        self._due_mark = DueMark()
        self._next_promotion: asyncio.Task[int] | None = None
        self.promoted = 0
        """How many tasks were brought along so far."""
        self._loops: list[asyncio.Task[None]] = []
        self._answered_at = -ANSWER_SECONDS

    def is_database_there(self) -> bool:
        """Whether a database that takes writes answered within the last 4 s. Asks nobody; may be asked from any thread."""
        return time.monotonic() - self._answered_at < ANSWER_SECONDS

    async def promote_due(self) -> int:
        """Brings along leases that ran out, rests that are over, deadlines, forced cancels, abandoned tasks.

        Returns how many tasks it looked at. It never waits for a lock and never decides from an earlier look. There is one at
        a time within this process, as a second one would pass over what the first one holds; whoever comes meanwhile shares
        the next.
        """
        if self._next_promotion is None:
            self._next_promotion = asyncio.create_task(self._promote_due(), name="promote due")
        return await to_its_end(self._next_promotion)

    def start(self) -> None:
        """Starts the loops."""
        self._loops = [
            asyncio.create_task(_repeat(PING_SECONDS, self._ping), name="ping"),
            asyncio.create_task(_repeat(PROMOTE_SECONDS, self._promote_all), name="promote"),
            asyncio.create_task(_repeat(GROWTH_SECONDS, self._rows.analyze_outgrown), name="growth"),
            asyncio.create_task(_repeat(TIDY_SECONDS, self._tidy), name="tidy"),
            asyncio.create_task(_repeat(LOOK_SECONDS, self.look_at_queue), name="look"),
            asyncio.create_task(_repeat(LOOK_SECONDS, self.look_at_moves), name="moves"),
            asyncio.create_task(_repeat(TIMELINE_SECONDS, self.look_at_timeline), name="timeline"),
            asyncio.create_task(_repeat(TIDY_SECONDS, self.look_at_what_is_over), name="over"),
            asyncio.create_task(_repeat(TIDY_SECONDS, self.look_at_snapshots), name="snapshots"),
            asyncio.create_task(_repeat(METER_SECONDS, self._figures.record_facts), name="meter"),
            asyncio.create_task(_repeat(RECORD_SECONDS, self._registrations.record), name="record"),
        ]

    async def stop(self) -> None:
        """Stops the loops."""
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)

    async def _ping(self) -> None:
        async with asyncio.timeout(PING_SECONDS):
            await self._rows.ping()
        self._answered_at = time.monotonic()

    async def _promote_due(self) -> int:
        async with self._promoting:
            self._next_promotion = None
            since, due_from = self._due_mark.since(began := time.monotonic()), None
            try:
                rows, due_from = await self._rows.promote_due(
                    PROMOTE_BATCH, grace_ms=self._cancel_grace_ms, max_crashes=self._max_crashes, since=since
                )
            finally:
                self._due_mark.looked(since, due_from, began=began, ended=time.monotonic())
        self.promoted += len(rows)
        if rows:
            self._wakeups.wake_lanes(rows[0]["opened"])
            self._wakeups.wake_tasks(str(row["task_id"]) for row in rows if row["event"] in _VISIBLE)
            self._wakeups.wake_workers(row["worker_id"] for row in rows if row["event"] in _VISIBLE)
        for row in rows:
            self._due.labels(row["event"]).inc()
        return len(rows)

    async def _promote_all(self) -> None:
        while await self.promote_due() == PROMOTE_BATCH:
            pass

    async def look_at_queue(self) -> None:
        """Takes a sample of how much work there is. Every store sees the same."""
        row = await self._rows.queue_figures(LOOK_LANES)
        for state, count in (("ready", row["ready"]), ("leased", row["leased"]), ("other", row["other"])):
            self._tasks.labels(state).set(count)
        self._oldest.set(row["oldest_ready_ms"] / 1000)

    async def look_at_timeline(self) -> None:
        """Says, again and again, that the database is another than it was. Serves on: what is there is right, and what is lost
        can only be told by whoever knows how it failed over."""
        is_other = await self._rows.has_other_timeline()
        self._other_timeline.set(is_other)
        if is_other:
            structlog.get_logger().error("timeline_changed", then="tenure-store epoch bump, or keep if surely nothing was lost")

    async def look_at_moves(self) -> None:
        """Takes a sample of the tenants that move to another cell, or come from one. Every store sees the same."""
        moves = await self._rows.moves_under_way(LOOK_MOVES)
        for state in UNFINISHED:
            self._moves.labels(state.lower()).set(sum(one.state is state for one in moves))
        self._broken_off.set(sum(not one.is_attended for one in moves))
        self._frozen_for.set(max((one.seconds for one in moves if one.state is MoveState.FROZEN), default=0))

    async def look_at_what_is_over(self) -> None:
        """Takes a sample of what is to be removed or decided. Every store sees the same."""
        removable, oldest_ms, after = 0, 0, ""
        while True:
            row = await self._rows.removal_figures(after, LOOK_TENANTS, LOOK_TASKS)
            removable, oldest_ms = removable + row["removable"], max(oldest_ms, row["oldest_ms"])
            if row["next_tenant"] is None:
                break
            after = row["next_tenant"]
        self._removable.set(removable)
        self._removable_for.set(oldest_ms / 1000)
        self._purges.set(await self._rows.purges_waiting())

    async def look_at_snapshots(self) -> None:
        """Tells of transactions that stay open: what is updated meanwhile is not cleared away, and claims become slow."""
        self._snapshot.set(await self._snapshot_seconds())

    async def _tidy(self) -> None:
        await self._rows.forget_claims(CLAIM_MEMORY_MS, TIDY_BATCH)
        await self._registrations.forget()


async def _repeat(pause_seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    """Does the work again and again. A loop that tidies outlives every fault."""
    while True:
        try:
            await work()
        except (Refusal, TimeoutError) as error:
            structlog.get_logger().warning("chore_refused", chore=work.__name__, reason=str(error))
        except Exception:  # noqa: BLE001 (logged; the next round may do better)
            structlog.get_logger().exception("chore_failed", chore=work.__name__)
        await asyncio.sleep(pause_seconds)
