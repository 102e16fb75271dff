"""The table of trials from public bug reports, and what does not fit between it and the tests."""

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from tests.tables import twice

TABLE: Final = Path(__file__).with_name("cases.yaml")
_SEEN: Final = re.compile(r"[\w.-]+/[\w.-]+#\d+")
_DATED: Final = re.compile(r"20\d\d-\d\d-\d\d\. .+")
_NUMBERED: Final = re.compile(r"tests/(?:cases|interleaving)/.*::test_(\d\d)_")
_KEYS: Final = frozenset(("seen", "kind", "tests", "yet", "ours"))


@dataclass(frozen=True, kw_only=True)
class Case:
    """One trial."""

    number: int
    kind: str
    seen: str
    tests: tuple[str, ...]
    yet: str | None = None
    """What no test shows yet."""
    ours: str | None = None
    """What is right here, where that was decided otherwise."""


@dataclass(frozen=True)
class Cases:
    """All trials, and what is wrong with how they are written."""

    rows: Mapping[int, Case]
    faults: list[str] = field(default_factory=list)


def read_cases(text: str) -> Cases:
    """Reads the table."""
    rows: dict[int, Case] = {}
    faults: list[str] = []
    for number, entry in yaml.safe_load(text)["cases"].items():
        if isinstance(entry, dict) and _is_well_written(entry):
            rows[number] = Case(number=number, **{**entry, "tests": tuple(entry["tests"])})
        else:
            faults.append(f"{number} is not written as the others are")
    return Cases(rows, faults + twice(text, r"\d+"))


def _is_well_written(entry: Mapping[str, Any]) -> bool:
    match entry:
        case {"seen": str(seen), "kind": str(), "tests": list(tests)} if _SEEN.fullmatch(seen) and set(entry) <= _KEYS:
            return (
                all(isinstance(test, str) for test in tests) and _DATED.fullmatch(entry.get("yet", "2026-11-30. x")) is not None
            )
        case _:
            return False


def compare(cases: Cases, there: Iterable[str]) -> list[str]:
    """What does not fit together."""
    faults, there = list(cases.faults), set(there)
    for case in cases.rows.values():
        if not case.tests and case.yet is None:
            faults.append(f"{case.number} is held by no test: {case.kind}")
        faults += [f"{case.number} names {test}, which `make test` does not run" for test in case.tests if test not in there]
    for test in sorted(there):
        if found := _NUMBERED.search(test):
            named = cases.rows.get(int(found[1]))
            if named is None or test not in named.tests:
                faults.append(f"{test} is not in the row of its number")
    return faults


def main() -> int:
    """Prints every trial with its tests."""
    for case in read_cases(TABLE.read_text()).rows.values():
        sys.stdout.write(f"{case.number} {case.kind} ({case.seen})\n" + "".join(f"    {test}\n" for test in case.tests))
        sys.stdout.write("".join(f"    {name}: {text}\n" for name, text in (("ours", case.ours), ("yet", case.yet)) if text))
    return 0
