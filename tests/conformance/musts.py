"""The table of what binds a server, and the tests that hold it: `python -m tests.conformance.musts` prints both.

The rows are in `musts.yaml`. A test says which it holds: `@pytest.mark.must("T-01")`. The marks are read from the sources,
so that nothing has to be run to know them.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

TABLE = Path(__file__).with_name("musts.yaml")
ROOT = Path(__file__).parents[2]
LEVELS = frozenset(("MUST", "MUST NOT", "REQUIRED", "SHOULD", "SHOULD NOT", "states"))


@dataclass(frozen=True, kw_only=True)
class Row:
    """One sentence that binds a server."""

    id: str
    source: str
    level: str
    words: str
    because: str | None = None
    """Why it binds nothing here."""


@dataclass(frozen=True)
class Table:
    """All rows, and what is wrong with how they are written."""

    rows: Mapping[str, Row]
    faults: list[str] = field(default_factory=list)


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
    written = re.findall(r"^  ([A-Z]+-\d+):", text, re.MULTILINE)
    faults += [f"{row_id} stands there twice" for row_id in sorted({one for one in written if written.count(one) > 1})]
    return Table(rows, faults)


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


def marks(folder: Path, *, mark: str = "must") -> Iterator[tuple[str, str]]:
    """Each mark of this name in a folder of tests: the id of a row, and the id of the test that names it."""
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for decorator in node.decorator_list:
                    if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == f"pytest.mark.{mark}":
                        for argument in decorator.args:
                            yield ast.literal_eval(argument), f"{file.relative_to(ROOT)}::{node.name}"


def collected_folders() -> tuple[str, ...]:
    """The folders whose tests are run by `make test`."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    return tuple(f"{folder}/" for folder in options["testpaths"])


def compare(table: Table, marked: list[tuple[str, str]], folders: tuple[str, ...]) -> list[str]:
    """What does not fit together."""
    faults = list(table.faults)
    held = {row_id for row_id, _ in marked}
    for row in table.rows.values():
        if row.because is None and row.id not in held:
            faults.append(f"{row.id} is held by no test: {row.words}")
        if row.because is not None and row.id in held:
            faults.append(f"{row.id} is said to bind nothing here, but a test holds it")
    for row_id, test in marked:
        file, _, name = test.partition("::")
        if row_id not in table.rows:
            faults.append(f"{test} names {row_id}, which is no row")
        if not (file.startswith(folders) and Path(file).name.startswith("test_") and name.startswith("test_")):
            faults.append(f"{test} names {row_id}, but `make test` does not run it")
    return faults


def main() -> int:
    """Prints every row with its tests."""
    table, marked = read_table(TABLE.read_text()), list(marks(ROOT / "tests"))
    for row in table.rows.values():
        sys.stdout.write(f"{row.id} {row.level}: {row.words}\n    {row.source}\n")
        tests = sorted({test for row_id, test in marked if row_id == row.id})
        sys.stdout.write("".join(f"    {test}\n" for test in tests) or f"    binds nothing here: {row.because}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
