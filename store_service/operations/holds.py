"""What must be kept."""

from store_service.db.holds import HoldRows
from store_service.model.refusals import Reason, Refusal
from store_service.model.retention import Hold


class Holds:
    """Holds of tasks and of their tombstones."""

    def __init__(self, rows: HoldRows) -> None:
        self._rows = rows

    async def place_hold(self, tenant_id: str, task_id: str, *, reason: str, principal: str) -> tuple[Hold, bool]:
        """Holds a task or its tombstone. Returns the hold, and whether it was there before."""
        outcome, hold, replayed = await self._rows.place_hold(tenant_id, task_id, reason, principal)
        if hold is None:
            raise Refusal(Reason(outcome))
        return hold, replayed

    async def release_hold(self, tenant_id: str, number: int, *, principal: str) -> Hold:
        """Ends a hold, once; by the same principal it may be repeated."""
        outcome, hold = await self._rows.release_hold(tenant_id, number, principal)
        if outcome != "OK" or hold is None:
            raise Refusal(Reason(outcome))
        return hold

    async def list_holds(
        self, tenant_id: str, *, after_number: int, limit: int, active: bool, task_id: str | None
    ) -> list[Hold]:
        """A page of holds, those that ended included unless only active ones are wanted."""
        return await self._rows.list_holds(tenant_id, after_number, limit, active=active, task_id=task_id)
