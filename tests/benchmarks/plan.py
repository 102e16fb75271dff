"""How long and how often a benchmark measures."""

import contextlib
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Plan:
    """Rounds, and the seconds of each part of a round."""

    rounds: int
    seconds: float
    is_quick: bool
    parts: dict[str, float] = field(default_factory=dict)
    """How many seconds each part of a benchmark took, in all its rounds."""

    @property
    def dear_rounds(self) -> int:
        """Rounds of what takes long: half as many where rounds are short."""
        return (self.rounds + 1) // 2 if self.is_quick else self.rounds

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What is done within it is a part of that name."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.parts[name] = self.parts.get(name, 0.0) + time.monotonic() - began

    def tasks(self, rate: float, *, least: int = 200, most: int = 20_000) -> int:
        """So many tasks as take about as long as a part of a round, at a rate that was measured before; 0 is none yet."""
        return min(max(int(rate * self.seconds), least), most)

    def size(self, full: int) -> int:
        """So many; a quarter of them where rounds are short."""
        return full // 4 if self.is_quick else full

    def tell(self, line: str) -> None:
        """Says what is going on."""
        print(line, file=sys.stderr, flush=True)

    def median_of(self, many: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """The median of each figure."""
        return {name: statistics.median(each[name] for each in many) for name in many[0]} if many else {}


FULL = Plan(rounds=5, seconds=3.0, is_quick=False)
QUICK = Plan(rounds=2, seconds=0.8, is_quick=True)
