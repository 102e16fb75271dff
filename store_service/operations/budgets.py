"""What a tenant's tasks may use, and what becomes of what they hold of it."""

import hashlib

from store_service.db.budgets import BudgetRows
from store_service.model.budgets import Budget, BudgetAmounts, BudgetFact, BudgetPolicy, Reserve, Reserved, Settle, Settled
from store_service.model.refusals import Reason, Refusal, invalid


class Budgets:
    """Policies, reservations, settlements and their facts. What time and cancels do to reservations is in `promote_due` and
    `cancel_tasks`, which know it from the task's row."""

    def __init__(self, rows: BudgetRows) -> None:
        self._rows = rows

    async def set_budget_policy(self, tenant_id: str, policy: BudgetPolicy) -> Budget:
        """Sets a tenant's budget and starts a new window; never while anything is reserved."""
        return await self._change_policy(tenant_id, policy)

    async def remove_budget_policy(self, tenant_id: str) -> None:
        """Takes a tenant's budget away; never while anything is reserved."""
        await self._change_policy(tenant_id, None)

    async def get_budget(self, tenant_id: str) -> Budget:
        """A tenant's budget as it stands."""
        budget = await self._rows.get_budget(tenant_id)
        if budget is None:
            raise Refusal(Reason.BUDGET_NOT_CONFIGURED)
        return budget

    async def list_budget_facts(self, tenant_id: str, *, after_cursor: int, limit: int) -> tuple[list[BudgetFact], int]:
        """A page of facts, and up to which they are gone."""
        return await self._rows.list_budget_facts(tenant_id, after_cursor, limit)

    async def confirm_budget_export(self, tenant_id: str, through_cursor: int) -> int:
        """Notes that facts are kept elsewhere; never goes back. Returns up to which."""
        exported = await self._rows.confirm_budget_export(tenant_id, through_cursor)
        if exported is None:
            raise invalid("through_cursor", "must not be past the tenant's last fact")
        return exported

    async def compact_budget_facts(self, tenant_id: str, *, older_than_ms: int, limit: int) -> tuple[int, int]:
        """Forgets facts that are kept elsewhere, old enough, and of a window that is over. Returns how many, and up to which
        all are gone."""
        return await self._rows.compact_budget_facts(tenant_id, older_than_ms, limit)

    async def reserve_budget(self, item: Reserve) -> Reserved:
        """Holds what the task may still use, or takes over what it holds already."""
        row = await self._rows.reserve_budget(item)
        match row["outcome"]:
            case "OK":
                return Reserved(BudgetAmounts.of(row["amount"]), row["adopted"])
            case "UNBOUNDED":
                raise invalid("limits", "must be given in each dimension that the tenant's budget bounds")
            case reason:
                raise Refusal(Reason(reason))

    async def settle_budget(self, item: Settle) -> Settled:
        """Charges what the task has used and gives the rest back. The same settlement is answered again."""
        row = await self._rows.settle_budget(item, _digest(item))
        if row["outcome"] != "OK":
            raise Refusal(Reason(row["outcome"]))
        return Settled(BudgetAmounts.of(row["charged"]), BudgetAmounts.of(row["released"]))

    async def _change_policy(self, tenant_id: str, policy: BudgetPolicy | None) -> Budget:
        outcome, budget = await self._rows.set_budget_policy(tenant_id, policy)
        if outcome == "BUDGET_RESERVED":
            raise Refusal(Reason.BUDGET_RESERVED, "tasks hold reservations; change the budget when none does")
        if budget is None:
            raise Refusal(Reason(outcome))
        return budget


def _digest(item: Settle) -> bytes:
    return hashlib.sha256(repr((item.lease.worker_id, item.usage)).encode()).digest()
