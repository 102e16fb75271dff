"""What happens to budgets as figures, without a word on whose. Source: store contract, sections 12 and 17."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from store_service.db.budgets import BudgetRows
from store_service.model.budgets import BudgetFactKind, MeteredFact

METER_SECONDS: Final = 5.0
_TENANTS: Final = 50
_FACTS: Final = 100
_HOLD_MS: Final = 30_000
_SHARES: Final = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0)
_AGES: Final = (1, 10, 60, 300, 1_800, 3_600, 21_600, 86_400)


class BudgetFigures:
    """Counts each fact once, by one of the stores: it is read by its cursor, and the cursor moves on after it was counted. So a
    store that dies in between has it counted again by another, and never not at all."""

    def __init__(self, rows: BudgetRows, *, registry: CollectorRegistry) -> None:
        self._rows = rows
        self._facts = Counter("tenure_store_budget_facts", "What happened to budgets.", ["kind", "cause"], registry=registry)
        self._amounts = Counter(
            "tenure_store_budget_amounts", "How much of budgets was reserved, denied, charged, released, or used past what was "
            "reserved.", ["what", "dimension"], registry=registry,
        )  # fmt: skip
        self._used = Histogram(
            "tenure_store_budget_utilisation", "The part of a budget that is committed or reserved, at each thing that happens "
            "to it.", ["dimension"], registry=registry, buckets=_SHARES,
        )  # fmt: skip
        self._ages = Histogram(
            "tenure_store_budget_reservation_age_seconds", "How long a reservation lasted that ended.",
            registry=registry, buckets=_AGES,
        )  # fmt: skip

    async def record_facts(self) -> None:
        """Counts what no store has counted."""
        counted: dict[str, int] = {}
        while facts := await self._rows.meter_budget_facts(counted, tenants=_TENANTS, facts=_FACTS, hold_ms=_HOLD_MS):
            for fact in facts:
                self._record(fact)
            counted = {fact.tenant_id: fact.cursor for fact in facts}

    def _record(self, fact: MeteredFact) -> None:
        self._facts.labels(fact.kind, fact.cause or "").inc()
        amounts = {"charged": fact.charged, "released": fact.released}
        match fact.kind:
            case BudgetFactKind.RESERVED:
                amounts["reserved"] = fact.amount
            case BudgetFactKind.ADMISSION_DENIED:
                amounts["denied"] = fact.amount
            case BudgetFactKind.USAGE_EXCEEDED:
                amounts["exceeding"] = fact.amount
        for what, amount in amounts.items():
            for dimension, quantity in amount.given.items() if amount else ():
                self._amounts.labels(what, dimension).inc(quantity)
        if fact.limits and fact.committed and fact.reserved:
            committed, reserved = fact.committed.given, fact.reserved.given
            for dimension, limit in fact.limits.given.items():
                if limit:
                    self._used.labels(dimension).observe((committed[dimension] + reserved[dimension]) / limit)
        if fact.kind in (BudgetFactKind.SETTLED, BudgetFactKind.USAGE_EXCEEDED, BudgetFactKind.FORFEITED):
            self._ages.observe((fact.reservation_age_ms or 0) / 1_000)
