"""Figures: what was measured, what it is held against, the target, and whether it was met."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self, TypeAlias


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
    """One figure over several rounds: ours divided by theirs, or ours alone where there is nothing to divide by."""

    id: str
    what: str
    against: str
    """Whom or what it is held against."""
    kind: Literal["peer", "limit", "itself"]
    """A peer; what the machine can do; or Tenure itself under other conditions."""
    target: Target | None
    unit: str = "/s"
    ours: Sequence[float] = ()
    theirs: Sequence[float] = ()
    cpu: dict[str, float] = field(default_factory=dict)
    """Microseconds of each process for one operation."""
    details: dict[str, Any] = field(default_factory=dict)
    """What goes beside it: latencies."""
    missing: str = ""
    """Why it could not be measured."""

    @property
    def rounds(self) -> list[float]:
        """The figure of each round."""
        return [mine / other for mine, other in zip(self.ours, self.theirs, strict=True)] if self.theirs else list(self.ours)

    @property
    def verdict(self) -> str:
        """met, not met, or nothing where there is no target."""
        if self.missing:
            return "not measured"
        if self.target is None:
            return ""
        return "met" if self.target.is_met(statistics.median(self.rounds)) else "NOT MET"

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Self:
        """One that was kept."""
        aim = kept["target"]
        target = aim and Target(aim["sense"], aim["value"], aim["unit"])
        same = {
            name: kept[name]
            for name in ("id", "what", "against", "kind", "unit", "ours", "theirs", "cpu", "details", "missing")
        }
        return cls(target=target, **same)

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        kept: dict[str, Any] = {
            "id": self.id, "what": self.what, "against": self.against, "kind": self.kind, "unit": self.unit,
            "target": self.target and {**asdict(self.target), "text": str(self.target)},
            "ours": list(self.ours), "theirs": list(self.theirs), "rounds": self.rounds, "verdict": self.verdict,
            "cpu": self.cpu, "details": self.details, "missing": self.missing,
        }  # fmt: skip
        if not self.missing:
            kept |= {"min": min(self.rounds), "median": statistics.median(self.rounds), "max": max(self.rounds)}
        return kept


@dataclass(frozen=True, slots=True)
class Point:
    """How it went with so many requests under way."""

    in_flight: int
    rate: float
    p50_ms: float
    p99_ms: float


@dataclass(slots=True)
class Curve:
    """Rates and latencies of several servers against what is under way."""

    what: str
    series: dict[str, list[Point]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "what": self.what,
            "series": {
                name: [[one.in_flight, one.rate, one.p50_ms, one.p99_ms] for one in points]
                for name, points in self.series.items()
            },
        }


Measured: TypeAlias = Figure | Curve

_HEAD = ("", "what", "against", "ours", "theirs", "min", "median", "max", "target", "")


def rows(figures: Sequence[Figure]) -> list[tuple[str, ...]]:
    """The table as people read it, its head first."""
    return [_HEAD, *(_row(one) for one in figures)]


def table(figures: Sequence[Figure]) -> str:
    """The table in columns; below it, why what is missing is missing."""
    lines = rows(figures)
    widths = [max(len(row[column]) for row in lines) for column in range(len(_HEAD))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in lines]
    return "\n".join([*text, *(f"{one.id} {one.against}: {one.missing}" for one in figures if one.missing)])


def markdown(figures: Sequence[Figure]) -> str:
    """The same for a README."""
    return _markdown(rows(figures))


def cpu_markdown(figures: Sequence[Figure]) -> str:
    """What each process took for one operation, for a README."""
    parts = [(one.id, one.what, one.against, shown(one.cpu)) for one in figures if one.cpu]
    return _markdown([("", "what", "against", "microseconds of CPU for one"), *parts])


def details(figure: Figure) -> str:
    """What goes beside a figure, a line each."""
    rounds = {f"ours {figure.unit}": list(figure.ours), f"{figure.against} {figure.unit}": list(figure.theirs)}
    return "\n".join(
        f"    {name}: {shown(value)}"
        for name, value in (rounds | {"CPU us of each": figure.cpu} | figure.details).items()
        if value
    )


def points(curve: Curve) -> str:
    """The points of a curve, a line for each server."""
    return "\n".join(
        f"    {name}: "
        + " / ".join(
            f"{one.in_flight}: {one.rate:,.0f} /s, p50 {shown(one.p50_ms)} ms, p99 {shown(one.p99_ms)} ms" for one in series
        )
        for name, series in curve.series.items()
    )


def parts(seconds: Mapping[str, Mapping[str, float]]) -> str:
    """How long each benchmark took, `all` of it, and how long its parts."""

    def told(of: Mapping[str, float]) -> str:
        some = ", ".join(f"{name} {one:.1f}" for name, one in of.items() if name != "all")
        return f"{of['all']:.1f} ({some})" if some else f"{of['all']:.1f}"

    return "; ".join(f"{name} {told(of)}" for name, of in seconds.items())


def percentile(values: Sequence[float], percent: int) -> float:
    """A percentile: a value that was measured."""
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


def shown(value: Any) -> str:
    """A value as people read it."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {shown(one)}" for key, one in value.items())
    if isinstance(value, list):
        return " / ".join(shown(one) for one in value)
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"


def _markdown(lines: Sequence[tuple[str, ...]]) -> str:
    head, *others = lines
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, tuple("---" for _ in head), *others))


def _row(one: Figure) -> tuple[str, ...]:
    target = str(one.target or "")
    if one.missing:
        return (one.id, one.what, one.against, "", "", "", "", "", target, one.verdict)
    ours, theirs = (shown(statistics.median(each)) + f" {one.unit}" if each else "" for each in (one.ours, one.theirs))
    least, median, most = (shown(float(value)) for value in (min(one.rounds), statistics.median(one.rounds), max(one.rounds)))
    return (one.id, one.what, one.against, ours, theirs, least, median, most, target, one.verdict)
