"""Tables of what tests show, held to the tests both ways: sentences of MCP, the security checklist, trials from bug reports.

The tests and their marks are read from the sources, so that nothing has to be run to know them.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.pair import ROOT

Marked = Sequence[tuple[str, str]]
"""The id of a row, and the id of a test that names it."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One thing that tests show."""

    id: str
    level: str
    words: str
    source: str = ""
    because: str | None = None
    """Why it binds nothing here."""


@dataclass(frozen=True)
class Table:
    """All rows, and what is wrong with how they are written."""

    rows: Mapping[str, Row]
    faults: list[str] = field(default_factory=list)


def twice(text: str, row_id: str) -> list[str]:
    """Of the rows in a file, whose ids look like this, those that stand there twice: who reads YAML sees only the last."""
    written = re.findall(rf"^  ({row_id}):", text, re.MULTILINE)
    return [f"{one} stands there twice" for one in sorted({one for one in written if written.count(one) > 1})]


def marks(*, mark: str) -> list[tuple[str, str]]:
    """Each mark of this name: the id of a row, and the id of the test that names it."""
    return [
        (ast.literal_eval(argument), test)
        for test, node in _functions(ROOT / "tests", "*.py")
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == f"pytest.mark.{mark}"
        for argument in decorator.args
    ]


def find_tests() -> set[str]:
    """The ids of all tests that `make test` runs."""
    return {
        test
        for folder in collected_folders()
        for test, node in _functions(ROOT / folder, "test_*.py")
        if node.name.startswith("test_")
    }


def collected_folders() -> tuple[str, ...]:
    """The folders whose tests are run by `make test`."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    return tuple(f"{folder}/" for folder in options["testpaths"])


def compare(table: Table, marked: Marked, folders: tuple[str, ...]) -> list[str]:
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


def show(table: Table, marked: Marked, notes: Mapping[str, str]) -> None:
    """Prints every row with its tests, and what is noted of it."""
    for row in table.rows.values():
        tests = sorted({test for row_id, test in marked if row_id == row.id})
        below = [line for line in (row.source, *tests, notes.get(row.id)) if line]
        sys.stdout.write(f"{row.id} {row.level}: {row.words}\n" + "".join(f"    {line}\n" for line in below))


def _functions(folder: Path, pattern: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function in a folder of tests, by the id that it has, or would have, as a test."""
    for file in sorted(folder.rglob(pattern)):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{file.relative_to(ROOT)}::{node.name}", node
