"""Budgets: amounts in six dimensions, what a task holds, and the ledger of a tenant with its facts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.model.contract.checks import MS, Answer, check, lean

Amounts = Mapping[str, int]

DIMENSIONS: Final = ("tokens", "cost_micro_usd", "duration_us", "turns", "tool_calls", "delegations")
MOST: Final = 10**15
WINDOWS: Final = ("POLICY_CONFIGURED", "POLICY_REMOVED", "WINDOW_RESET")
"""Facts that start a window."""


def check_amounts(amounts: Amounts) -> None:
    """Each within its bounds."""
    check(all(0 <= value <= MOST for value in amounts.values()))


def plus(one: Amounts, other: Amounts) -> Amounts:
    """In the dimensions of the first; what the other lacks is 0."""
    return {name: value + other.get(name, 0) for name, value in one.items()}


def minus(one: Amounts, other: Amounts) -> Amounts:
    """In the dimensions of the first; what the other lacks is 0."""
    return {name: value - other.get(name, 0) for name, value in one.items()}


def is_negative(amounts: Amounts) -> bool:
    """In one dimension at least."""
    return any(value < 0 for value in amounts.values())


@dataclass(slots=True)
class Reservation:
    """What a task holds, from `baseline` on, or the last that it held and how that ended."""

    worker_id: str
    token: int
    baseline: Amounts
    amount: Amounts
    reserved_at: int
    recovery_ms: int
    ended: str | None = None
    charged: Amounts = field(default_factory=dict)
    settlement: object = None


@dataclass(slots=True)
class Budget:
    """A tenant's ledger; without limits once it was taken away."""

    tenant_id: str
    limits: Amounts | None = None
    window_ms: int = 0
    recovery_ms: int = 0
    window_started_at: int = 0
    committed: Amounts = field(default_factory=dict)
    reserved: Amounts = field(default_factory=dict)
    reservations: int = 0
    facts: list[Answer] = field(default_factory=list)
    window_fact: int = 0
    exported: int = 0
    metered: int = 0
    compacted: int = 0

    def shown(self) -> Answer:
        """As it stands."""
        answer = lean(tenant_id=self.tenant_id, reservations=self.reservations, last_cursor=len(self.facts))
        if self.limits is not None:
            policy = lean(limits=self.limits, window_ms=self.window_ms, recovery_ms=self.recovery_ms)
            answer |= {"policy": policy, "committed": self.committed, "reserved": self.reserved}
            answer["window_started_at"] = self.window_started_at
        return answer

    def start_window(self, now: int) -> None:
        """Nothing is committed."""
        self.window_started_at, self.committed = now, minus(self.limits or {}, self.limits or {})

    def tell(
        self, kind: str, now: int, *, task_id: str = "", held: Reservation | None = None, amount: Amounts | None = None,
        charged: Amounts | None = None, released: Amounts | None = None, cause: str = "",
    ) -> None:  # fmt: skip
        """Moves amounts and writes the fact of it."""
        if kind == "RESERVED":
            self.reserved, self.reservations = plus(self.reserved, amount or {}), self.reservations + 1
        if kind in ("SETTLED", "USAGE_EXCEEDED", "FORFEITED"):
            self.reservations -= 1
        if kind in WINDOWS:
            self.window_fact = len(self.facts) + 1
        self.committed = plus(self.committed, charged or {})
        self.reserved = minus(minus(self.reserved, charged or {}), released or {})
        fact = lean(
            cursor=len(self.facts) + 1, kind=kind, forfeit_cause=cause, at=now, task_id=task_id,
            worker_id=held and held.worker_id, token=held and held.token, amount=amount, charged=charged, released=released,
            reservation_age_ms=(now - held.reserved_at) // MS if held else 0,
        )  # fmt: skip
        self.facts.append(fact)
        fact["budget"] = self.shown()


def replay(facts: list[Answer]) -> Answer:
    """What facts alone say of a ledger: the amounts that are committed and reserved."""
    committed: Amounts = {}
    reserved: Amounts = {}
    for fact in facts:
        if fact["kind"] in WINDOWS:
            limits: Amounts = fact["budget"].get("policy", {}).get("limits", {})
            committed = dict.fromkeys(limits, 0)
            reserved = dict.fromkeys(limits, 0)
        if fact["kind"] == "RESERVED":
            reserved = plus(reserved, fact["amount"])
        committed = plus(committed, fact.get("charged", {}))
        reserved = minus(minus(reserved, fact.get("charged", {})), fact.get("released", {}))
    return {"committed": committed, "reserved": reserved}
