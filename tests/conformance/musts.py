"""The table of what binds a server, and the tests that hold it: `python -m tests.conformance.musts` prints both.

The rows are in `musts.yaml`. A test says which it holds: `@pytest.mark.must("T-01")`.
"""

import sys
from pathlib import Path

import yaml

from tests.tables import Row, Table, marks, show, twice

TABLE = Path(__file__).with_name("musts.yaml")
LEVELS = frozenset(("MUST", "MUST NOT", "REQUIRED", "SHOULD", "SHOULD NOT", "states"))


def read_table(text: str) -> Table:
    """Reads the table."""
    data = yaml.safe_load(text)
    rows: dict[str, Row] = {}
    faults: list[str] = []
    for row_id, entries in data["rows"].items():
        row = _read_row(row_id, data["sources"].get(row_id.partition("-")[0]), entries)
        if row is None:
            faults.append(f"{row_id} is not written as the others are")
        else:
            rows[row_id] = row
    return Table(rows, faults + twice(text, r"[A-Z]+-\d+"))


def _read_row(row_id: str, source: object, entries: object) -> Row | None:
    """A row; None for what is none. A comma outside of quotes makes an entry more."""
    because: str | None = None
    match source, entries:
        case [repository, file], [str(anchor), str(level), str(words)]:
            pass
        case [repository, file], [str(anchor), str(level), str(words), {"because": str(because)}]:
            pass
        case _:
            return None
    if level not in LEVELS:
        return None
    return Row(id=row_id, source=f"{repository} {file}#{anchor}", level=level, words=words, because=because)


def main() -> int:
    """Prints every row with its tests."""
    table = read_table(TABLE.read_text())
    unbound = {row.id: f"binds nothing here: {row.because}" for row in table.rows.values() if row.because}
    show(table, marks(mark="must"), unbound)
    return 0


if __name__ == "__main__":
    sys.exit(main())
