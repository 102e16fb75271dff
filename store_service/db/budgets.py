"""Rows of budgets. Source of the texts: `budgets.sql`."""

from collections.abc import Mapping, Sequence

import asyncpg

from store_service.db.leases import fence
from store_service.db.pool import Database
from store_service.db.queries import Queries
from store_service.model.budgets import (
    Budget,
    BudgetAmounts,
    BudgetFact,
    BudgetFactKind,
    BudgetPolicy,
    ForfeitCause,
    MeteredFact,
    Reserve,
    Settle,
)


class BudgetRows:
    """The statements on budgets."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = Queries("budgets.sql")

    async def set_budget_policy(self, tenant_id: str, policy: BudgetPolicy | None) -> tuple[str, Budget | None]:
        """Sets the policy, or takes it away; returns the outcome, and with OK the budget as it is then."""
        rows = await self._database.write(
            self._queries["set_budget_policy"],
            tenant_id,
            policy and policy.limits.vector,
            policy and policy.window_ms,
            policy and policy.recovery_ms,
        )
        (row,) = rows
        return row["outcome"], _budget(row) if row["outcome"] == "OK" else None

    async def get_budget(self, tenant_id: str) -> Budget | None:
        """The budget, if there is one."""
        rows = await self._database.read(self._queries["get_budget"], tenant_id)
        return _budget(rows[0]) if rows else None

    async def reserve_budget(self, item: Reserve) -> asyncpg.Record:
        """A row: outcome, amount, adopted."""
        rows = await self._database.write(
            self._queries["reserve_budget"], *fence(item.lease), item.limits.vector, item.usage.vector
        )
        return rows[0]

    async def settle_budget(self, item: Settle, digest: bytes) -> asyncpg.Record:
        """With the digest by which a repetition is known. A row: outcome, charged, released."""
        rows = await self._database.write(self._queries["settle_budget"], *fence(item.lease), item.usage.vector, digest)
        return rows[0]

    async def list_budget_facts(self, tenant_id: str, after_cursor: int, limit: int) -> tuple[list[BudgetFact], int]:
        """A page of facts, by rising cursor, and up to which they are gone."""
        rows = await self._database.read(self._queries["list_budget_facts"], tenant_id, after_cursor, limit)
        facts = [
            BudgetFact(
                kind=BudgetFactKind(row["kind"]),
                cause=row["cause"] and ForfeitCause(row["cause"]),
                at=row["at"],
                task_id=row["task_id"] and str(row["task_id"]),
                worker_id=row["worker_id"],
                token=row["token"],
                amount=_amounts(row["amount"]),
                charged=_amounts(row["charged"]),
                released=_amounts(row["released"]),
                reservation_age_ms=row["reservation_age_ms"],
                budget=_budget(row),
            )
            for row in rows
            if row["cursor"] is not None
        ]
        return facts, rows[0]["compacted"]

    async def confirm_budget_export(self, tenant_id: str, through_cursor: int) -> int | None:
        """Notes that facts are kept elsewhere; returns up to which, None where there are not so many."""
        rows = await self._database.write(self._queries["confirm_budget_export"], tenant_id, through_cursor)
        exported: int | None = rows[0]["exported"]
        return exported

    async def compact_budget_facts(self, tenant_id: str, older_than_ms: int, limit: int) -> tuple[int, int]:
        """Forgets facts that may be forgotten; returns how many, and up to which all are gone."""
        rows = await self._database.write(self._queries["compact_budget_facts"], tenant_id, older_than_ms, limit)
        return rows[0]["compacted"], rows[0]["through"]

    async def meter_budget_facts(
        self, counted: Mapping[str, int], *, tenants: int, facts: int, hold_ms: int
    ) -> list[MeteredFact]:
        """Notes up to which cursors tenants' facts were counted, and returns what to count next, held for so long."""
        columns = list(counted), list(counted.values())
        rows = await self._database.write(self._queries["meter_budget_facts"], *columns, tenants, facts, hold_ms)
        return [
            MeteredFact(
                tenant_id=row["tenant_id"],
                cursor=row["cursor"],
                kind=BudgetFactKind(row["kind"]),
                cause=row["cause"] and ForfeitCause(row["cause"]),
                amount=_amounts(row["amount"]),
                charged=_amounts(row["charged"]),
                released=_amounts(row["released"]),
                reservation_age_ms=row["reservation_age_ms"],
                limits=_amounts(row["limits"]),
                committed=_amounts(row["committed"]),
                reserved=_amounts(row["reserved"]),
            )
            for row in rows
        ]


def _budget(row: asyncpg.Record) -> Budget:
    limits = _amounts(row["limits"])
    policy = None
    if limits is not None:
        policy = BudgetPolicy(limits=limits, window_ms=row["window_ms"], recovery_ms=row["recovery_ms"])
    return Budget(
        tenant_id=row["tenant_id"],
        policy=policy,
        window_started_at=row["window_started_at"] if policy else None,
        committed=_amounts(row["committed"]),
        reserved=_amounts(row["reserved"]),
        reservations=row["reservations"],
        last_cursor=row["cursor"],
    )


def _amounts(vector: Sequence[int | None] | None) -> BudgetAmounts | None:
    return None if vector is None else BudgetAmounts.of(vector)
