"""Failed tasks are sent back to work."""

import hashlib

from store_service.db.redrives import RedriveRows
from store_service.db.wakeups import Wakeups, tells
from store_service.model.redrives import Redrive, Redriven, RedriveOutcome
from store_service.model.refusals import Reason, Refusal


class Redrives:
    """Redrives, and those who wait for their tasks."""

    def __init__(self, rows: RedriveRows, wakeups: Wakeups) -> None:
        self._rows = rows
        self._wakeups = wakeups

    @tells
    async def redrive_tasks(self, item: Redrive) -> Redriven:
        """Sends failed tasks back to work, or tells which it would."""
        row = await self._rows.redrive_tasks(item, hashlib.sha256(repr(item).encode()).digest())
        if row["outcome"] != "OK":
            raise Refusal(Reason(row["outcome"]))
        tasks = tuple(zip(map(str, row["task_ids"]), map(RedriveOutcome, row["outcomes"]), strict=True))
        self._wakeups.wake_lanes(row["opened"])
        if not item.dry_run:
            self._wakeups.wake_tasks(task_id for task_id, outcome in tasks if outcome is RedriveOutcome.REDRIVEN)
        return Redriven(tasks, replayed=row["replayed"])
