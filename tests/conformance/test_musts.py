"""Each sentence that binds a server has a test that holds it, and each test that names one names one that is there."""

import pytest

from tests.conformance.musts import TABLE, read_table
from tests.tables import collected_folders, compare, marks

WRITTEN = (
    "sources:\n  A: [owner/name, file.md]\nrows:\n  A-1: [top, MUST, One.]\n  A-2: [top, SHOULD, Two., because: Not here.]\n"
)
HERE = "tests/a/test_x.py::test_y"


def test_every_row_has_its_tests_and_every_named_row_is_there() -> None:
    assert compare(read_table(TABLE.read_text()), marks(mark="must"), collected_folders()) == []


@pytest.mark.parametrize(
    ("marked", "fault"),
    [
        ([], "A-1 is held by no test"),
        ([("A-1", HERE), ("A-2", HERE)], "A-2 is said to bind nothing here"),
        ([("A-1", HERE), ("A-3", HERE)], "names A-3, which is no row"),
        ([("A-1", "tests/a/conftest.py::test_y")], "does not run it"),
        ([("A-1", "tests/a/test_x.py::helper")], "does not run it"),
        ([("A-1", "tests/b/test_x.py::test_y")], "does not run it"),
    ],
)
def test_what_does_not_fit_together_is_told(marked: list[tuple[str, str]], fault: str) -> None:
    (told,) = compare(read_table(WRITTEN), marked, ("tests/a/",))
    assert fault in told


def test_what_fits_together_is_told_as_such() -> None:
    assert compare(read_table(WRITTEN), [("A-1", HERE)], ("tests/a/",)) == []


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("A-1: [top, MUST, Again.]", "A-1 stands there twice"),
        ("B-1: [top, MUST, Of no source.]", "B-1 is not written"),
        ("A-3: [top, MAY, Of no level.]", "A-3 is not written"),
        ("A-3: [top, MUST]", "A-3 is not written"),
        ("A-3: [top, MUST, One, two.]", "A-3 is not written"),
    ],
)
def test_a_row_that_is_written_otherwise_is_told(row: str, fault: str) -> None:
    table = read_table(f"{WRITTEN}  {row}\n")
    assert any(fault in told for told in table.faults)
