"""Figures: what was measured, the target, and whether it was met."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Target:
    """What a median must be."""

    sense: Literal["at least", "at most"]
    value: float
    unit: str = ""

    def is_met(self, median: float) -> bool:
        """Whether this median is enough."""
        return median >= self.value if self.sense == "at least" else median <= self.value

    def __str__(self) -> str:
        return f"{self.sense} {self.value:g}{self.unit}"


@dataclass(slots=True)
class Figure:
    """One figure over several rounds."""

    id: str
    what: str
    target: Target | None
    rounds: Sequence[float]
    details: dict[str, Any] = field(default_factory=dict)
    """What goes beside it: rates, latencies, CPU for each operation."""

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds)

    @property
    def verdict(self) -> str:
        """met, not met, or nothing where there is no target."""
        if self.target is None:
            return ""
        return "met" if self.target.is_met(self.median) else "NOT MET"

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "id": self.id, "what": self.what, "target": str(self.target) if self.target else None, "rounds": list(self.rounds),
            "min": min(self.rounds), "median": self.median, "max": max(self.rounds), "verdict": self.verdict,
            "details": self.details,
        }  # fmt: skip


def table(figures: Sequence[Figure]) -> str:
    """The figures as people read them."""
    rows = [("", "ratio", "min", "median", "max", "target", "")]
    for one in figures:
        least, median, most = (f"{value:.3g}" for value in (min(one.rounds), one.median, max(one.rounds)))
        rows.append((one.id, one.what, least, median, most, str(one.target or ""), one.verdict))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def details(figure: Figure) -> str:
    """What goes beside a figure, a line each."""
    return "\n".join(f"    {name}: {_shown(value)}" for name, value in figure.details.items())


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(one)}" for key, one in value.items())
    if isinstance(value, list):
        return " / ".join(_shown(one) for one in value)
    return (
        f"{value:,.4g}"
        if isinstance(value, float) and abs(value) < 1000
        else f"{value:,.0f}"
        if isinstance(value, float)
        else str(value)
    )
