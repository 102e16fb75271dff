"""What time does to tasks. Any claim may call it; a loop calls it once a second."""

import asyncio
import contextlib
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, Counter

from store_service.db.chores import ChoreRows
from store_service.db.wakeups import Wakeups
from store_service.model.refusals import Refusal

PROMOTE_BATCH: Final = 500
PROMOTE_SECONDS: Final = 1.0
TIDY_SECONDS: Final = 60.0
CLAIM_MEMORY_MS: Final = 3_600_000
_VISIBLE: Final = frozenset({"CANCELLED", "FAILED", "LEASE_EXPIRED", "CANCEL_REQUESTED"})


class Chores:
    """The loops that tidy. Nothing is wrong while they stand still; it is only later."""

    def __init__(
        self, rows: ChoreRows, wakeups: Wakeups, *, cancel_grace_ms: int, max_crashes: int, registry: CollectorRegistry
    ) -> None:
        self._rows = rows
        self._wakeups = wakeups
        self._cancel_grace_ms = cancel_grace_ms
        self._max_crashes = max_crashes
        self._due = Counter("tenure_store_due", "What fell due, by what became of it.", ["event"], registry=registry)
        self._loop: asyncio.Task[None] | None = None
        self.last_answer: float | None = None
        """When the database last answered, on the loop's clock; None before the first answer and after a failure."""

    async def promote_due(self) -> int:
        """Brings along leases that ran out, rests that are over, deadlines, forced cancels, abandoned tasks.

        Returns how many tasks it looked at. It never waits for a lock and never decides from an earlier look.
        """
        rows = await self._rows.promote_due(PROMOTE_BATCH, grace_ms=self._cancel_grace_ms, max_crashes=self._max_crashes)
        if rows:
            self._wakeups.wake_lanes(rows[0]["opened"])
            self._wakeups.wake_tasks(row["task_id"] for row in rows if row["event"] in _VISIBLE)
        for row in rows:
            self._due.labels(row["event"]).inc()
        return len(rows)

    def start(self) -> None:
        """Starts the loop."""
        self._loop = asyncio.create_task(self._run(), name="chores")

    async def stop(self) -> None:
        """Stops the loop."""
        if self._loop is not None:
            self._loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loop

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        tidied = clock()
        while True:
            try:
                while await self.promote_due() == PROMOTE_BATCH:
                    pass
                if clock() - tidied > TIDY_SECONDS:
                    tidied = clock()
                    await self._rows.forget_claims(CLAIM_MEMORY_MS, 1_000)
                self.last_answer = clock()
            except Refusal as refusal:
                self.last_answer = None
                structlog.get_logger().warning("chores_refused", reason=refusal.reason)
            except Exception:  # noqa: BLE001 (a loop that tidies outlives every fault)
                self.last_answer = None
                structlog.get_logger().exception("chores_failed")
            await asyncio.sleep(PROMOTE_SECONDS)
