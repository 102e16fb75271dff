"""The table of the security checklist, and the tests that show it: `python -m tests.security.rows` prints both.

The rows are in `rows.yaml`. A test says which it shows: `@pytest.mark.row("T1")`.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.tables import Row, Table, marks, show, twice

TABLE = Path(__file__).with_name("rows.yaml")
LEVELS = ("MUST", "SHOULD", "OURS")
EXCUSES = ("because", "yet", "besides")
SIZES = {"A": 17, "H": 28, "T": 16, "G": 13, "P": 7, "S": 8}
"""How many rows each part of the checklist has."""


@dataclass(frozen=True, kw_only=True)
class Excuse:
    """Why a row, or a part of it, is shown by no test."""

    kind: str
    words: str


def read_rows(text: str) -> tuple[Table, Mapping[str, Excuse]]:
    """The rows, each with its excuse if it has one."""
    rows: dict[str, Row] = {}
    excuses: dict[str, Excuse] = {}
    faults: list[str] = []
    for row_id, entries in yaml.safe_load(text)["rows"].items():
        match entries:
            case [str(level), str(words)] if level in LEVELS:
                rows[row_id] = Row(id=row_id, level=level, words=words)
            case [str(level), str(words), {**excuse}] if level in LEVELS and len(excuse) == 1:
                excuses[row_id] = _excuse(excuse)
                because = None if excuses[row_id].kind == "besides" else excuses[row_id].words
                rows[row_id] = Row(id=row_id, level=level, words=words, because=because)
            case _:
                faults.append(f"{row_id} is not written as the others are")
    faults += [f"{row_id} has an excuse of no kind" for row_id, one in excuses.items() if one.kind not in EXCUSES]
    wanted = [f"{part}{number}" for part, size in SIZES.items() for number in range(1, size + 1)]
    faults += [f"{row_id} is missing" for row_id in wanted if row_id not in rows]
    faults += [f"{row_id} is not of the checklist" for row_id in rows if row_id not in wanted]
    return Table(rows, faults + twice(text, r"[A-Z]\d+")), excuses


def _excuse(written: Mapping[object, object]) -> Excuse:
    ((kind, words),) = written.items()
    return Excuse(kind=str(kind), words=str(words))


def main() -> int:
    """Prints every row with its tests."""
    table, excuses = read_rows(TABLE.read_text())
    show(table, marks(mark="row"), {row_id: f"{excuse.kind}: {excuse.words}" for row_id, excuse in excuses.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
