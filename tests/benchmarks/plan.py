"""How long and how often a benchmark measures."""

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """Rounds, and the seconds of each part of a round."""

    rounds: int
    seconds: float
    is_quick: bool

    def tasks(self, rate: float, *, least: int = 200, most: int = 20_000) -> int:
        """So many tasks as take about as long as a part of a round, at a rate that was measured before; 0 is none yet."""
        return min(max(int(rate * self.seconds), least), most)

    def tell(self, line: str) -> None:
        """Says what is going on."""
        print(line, file=sys.stderr, flush=True)

    def median_of(self, many: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """The median of each figure."""
        return {name: statistics.median(each[name] for each in many) for name in many[0]} if many else {}


FULL = Plan(rounds=5, seconds=3.0, is_quick=False)
QUICK = Plan(rounds=2, seconds=0.8, is_quick=True)
