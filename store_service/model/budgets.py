"""Budgets of tenants and what tasks hold of them, as values."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Self

from store_service.model.leases import Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetAmounts:
    """A quantity in each of the six dimensions; None where there is none."""

    tokens: int | None = None
    cost_micro_usd: int | None = None
    duration_us: int | None = None
    turns: int | None = None
    tool_calls: int | None = None
    delegations: int | None = None

    @classmethod
    def of(cls, vector: Sequence[int | None]) -> Self:
        """From the six in their order."""
        return cls(**dict(zip((field.name for field in fields(cls)), vector, strict=True)))

    @property
    def given(self) -> dict[str, int]:
        """The dimensions in which there is a quantity."""
        return {field.name: amount for field in fields(self) if (amount := getattr(self, field.name)) is not None}

    @property
    def vector(self) -> list[int | None]:
        """The six in their order."""
        return [getattr(self, field.name) for field in fields(self)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPolicy:
    """What a tenant's tasks may use in a window, and how long a lost task keeps what it holds."""

    limits: BudgetAmounts
    window_ms: int
    recovery_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A tenant's budget as it stands. What it has no policy for is None."""

    tenant_id: str
    policy: BudgetPolicy | None
    window_started_at: datetime | None
    committed: BudgetAmounts | None
    reserved: BudgetAmounts | None
    reservations: int
    last_cursor: int


@dataclass(frozen=True, slots=True)
class Reserve:
    """A wish to hold, of the tenant's budget, what lies between a task's use so far and its limits."""

    lease: Lease
    limits: BudgetAmounts
    usage: BudgetAmounts


@dataclass(frozen=True, slots=True)
class Reserved:
    """What a task holds, and whether it held a reservation before."""

    amount: BudgetAmounts
    adopted: bool


@dataclass(frozen=True, slots=True)
class Settle:
    """A wish to have a task's use in its whole life charged and the rest given back."""

    lease: Lease
    usage: BudgetAmounts


@dataclass(frozen=True, slots=True)
class Settled:
    """What was charged by a settlement and what was given back."""

    charged: BudgetAmounts
    released: BudgetAmounts


class BudgetFactKind(StrEnum):
    """What happened to a budget."""

    POLICY_CONFIGURED = "POLICY_CONFIGURED"
    POLICY_REMOVED = "POLICY_REMOVED"
    WINDOW_RESET = "WINDOW_RESET"
    RESERVED = "RESERVED"
    ADOPTED = "ADOPTED"
    ADMISSION_DENIED = "ADMISSION_DENIED"
    USAGE_EXCEEDED = "USAGE_EXCEEDED"
    SETTLED = "SETTLED"
    FORFEITED = "FORFEITED"


class ForfeitCause(StrEnum):
    """Why a reservation was forfeited."""

    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    RECOVERY_EXPIRED = "RECOVERY_EXPIRED"


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetFact:
    """One thing that happened to a budget, and the budget after it."""

    kind: BudgetFactKind
    cause: ForfeitCause | None
    at: datetime
    task_id: str | None
    worker_id: str | None
    token: int | None
    amount: BudgetAmounts | None
    charged: BudgetAmounts | None
    released: BudgetAmounts | None
    reservation_age_ms: int | None
    budget: Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class MeteredFact:
    """What the figures of a store count of a fact."""

    tenant_id: str
    cursor: int
    kind: BudgetFactKind
    cause: ForfeitCause | None
    amount: BudgetAmounts | None
    charged: BudgetAmounts | None
    released: BudgetAmounts | None
    reservation_age_ms: int | None
    limits: BudgetAmounts | None
    committed: BudgetAmounts | None
    reserved: BudgetAmounts | None
