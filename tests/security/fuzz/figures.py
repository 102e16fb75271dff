"""What a run of the fuzzer counts, and what it holds: nothing breaks, and nothing is left behind."""

import asyncio
import gc
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TextIO

GROWTH_BYTES: Final = 64 * 1024 * 1024
"""How much more memory a run may end with than it began with, however long it is: caches that fill, and pages that the
allocator keeps."""
_SETTLE_SECONDS: Final = 30.0
_MOST_FAULTS: Final = 20


@dataclass(frozen=True)
class Held:
    """What the process holds."""

    memory_bytes: int
    descriptors: int
    tasks: int

    @classmethod
    def now(cls) -> "Held":
        """Looks."""
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(pages * os.sysconf("SC_PAGE_SIZE"), len(list(Path("/proc/self/fd").iterdir())), len(asyncio.all_tasks()))


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What came of a run."""

    what: str
    seed: int
    count: int
    seconds: float
    outcomes: Counter[str]
    faults: list[str]
    before: Held
    after: Held

    def __str__(self) -> str:
        mib = 1024 * 1024
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.most_common(12))
        return (
            f"{self.what}: {self.count} in {self.seconds:.0f} s ({self.count / self.seconds:.0f}/s), seed {self.seed}\n"
            f"  outcomes: {outcomes}\n"
            f"  memory {self.before.memory_bytes // mib} -> {self.after.memory_bytes // mib} MiB, descriptors "
            f"{self.before.descriptors} -> {self.after.descriptors}, tasks {self.before.tasks} -> {self.after.tasks}\n"
            f"  faults: {len(self.faults)}\n" + "".join(f"    {fault}\n" for fault in self.faults)
        )


@dataclass
class Run:
    """A run under way."""

    what: str
    count: int
    seed: int
    log: "ErrorLog"
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    _started: float = 0.0
    _before: Held = field(default_factory=lambda: Held(0, 0, 0))
    _told: int = 0

    @property
    def warmup(self) -> int:
        """How many are sent before anything is measured, until caches have filled."""
        return max(500, self.count // 10)

    def begin(self) -> None:
        """From here on it counts."""
        self.outcomes.clear()
        self._before, self._started = Held.now(), time.monotonic()

    def tell(self, outcome: str) -> None:
        """Counts an answer."""
        self.outcomes[outcome] += 1
        self._told += 1
        if self._told % 50_000 == 0:
            sys.stdout.write(f"  {self.what}: {self._told}\n")
            sys.stdout.flush()

    def fault(self, words: str, sent: bytes) -> None:
        """Notes what must not happen, and what was sent."""
        if len(self.faults) < _MOST_FAULTS:
            self.faults.append(f"{words} after {sent[:2000]!r}")

    async def end(self) -> Figures:
        """Waits until what was under way is over, and looks at what is left."""
        seconds, until = time.monotonic() - self._started, time.monotonic() + _SETTLE_SECONDS
        after = Held.now()
        while self._left(after) and time.monotonic() < until:
            await asyncio.sleep(0.1)
            after = Held.now()
        self.faults += [f"left behind: {one}" for one in self._left(after)]
        self.faults += [f"logged: {line}" for line in self.log.errors[:_MOST_FAULTS]]
        return Figures(
            what=self.what, seed=self.seed, count=self.outcomes.total(), seconds=seconds, outcomes=self.outcomes,
            faults=self.faults, before=self._before, after=after,
        )  # fmt: skip

    def _left(self, now: Held) -> list[str]:
        before = self._before
        limits = (
            ("bytes", now.memory_bytes, before.memory_bytes + GROWTH_BYTES),
            ("descriptors", now.descriptors, before.descriptors + 4),
            ("tasks", now.tasks, before.tasks + 4),
        )
        return [f"{value} {name}, where {most} may be" for name, value, most in limits if value > most]


class ErrorLog:
    """Stands for standard error: all lines are written as ever, those of errors are kept."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.lines = 0
        self.buffer = self
        self._stderr: TextIO = sys.stderr

    def write(self, data: str | bytes) -> int:
        """As of a stream."""
        text = data.decode(errors="replace") if isinstance(data, bytes) else data
        self.lines += text.count("\n")
        if '"level":"error"' in text and len(self.errors) < 1000:
            self.errors.append(text.strip()[:3000])
        return len(data)

    def flush(self) -> None:
        """As of a stream."""

    def isatty(self) -> bool:
        """As of a stream."""
        return False
