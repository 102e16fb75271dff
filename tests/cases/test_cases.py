"""Each trial from a public bug report is held by tests that are there, and each numbered test stands in its row."""

import pytest

from tests.cases.table import TABLE, compare, read_cases
from tests.tables import find_tests

WRITTEN = TABLE.read_text()
SMALL = "cases:\n  1: {seen: a/b#1, kind: One., tests: [tests/a/test_x.py::test_y]}\n"
THERE = ["tests/a/test_x.py::test_y"]
GAPS = (5, 6, 9, 16, 20, 33, 35, 40, 47, 49, 52, 60)


def test_every_trial_has_its_tests_and_every_named_test_is_there() -> None:
    cases = read_cases(WRITTEN)
    assert compare(cases, find_tests()) == []
    assert [*cases.rows] == [number for number in range(1, 67) if number not in GAPS]


@pytest.mark.parametrize(
    ("text", "there", "fault"),
    [
        (SMALL, [], "1 names tests/a/test_x.py::test_y, which `make test` does not run"),
        (SMALL.replace("[tests/a/test_x.py::test_y]", "[]"), THERE, "1 is held by no test"),
        (SMALL, [*THERE, "tests/cases/test_z.py::test_02_z"], "test_02_z is not in the row of its number"),
        (SMALL, [*THERE, "tests/cases/test_z.py::test_01_z"], "test_01_z is not in the row of its number"),
        (SMALL + "  1: {seen: a/b#1, kind: One., tests: [tests/a/test_x.py::test_y]}\n", THERE, "1 stands there twice"),
        (SMALL + "  2: {seen: nowhere, kind: Two., tests: []}\n", THERE, "2 is not written"),
        (SMALL + "  2: {seen: a/b#2, kind: Two., tests: [], yet: some day}\n", THERE, "2 is not written"),
        (SMALL + "  2: {seen: a/b#2, kind: Two., tests: [], because: x}\n", THERE, "2 is not written"),
        (SMALL + "  2: [a/b#2, Two.]\n", THERE, "2 is not written"),
    ],
)
def test_what_does_not_fit_together_is_told(text: str, there: list[str], fault: str) -> None:
    (told,) = compare(read_cases(text), there)
    assert fault in told


def test_a_row_without_tests_says_what_is_not_shown_yet() -> None:
    assert compare(read_cases(SMALL + "  2: {seen: a/b#2, kind: Two., tests: [], yet: 2026-11-30. Later.}\n"), THERE) == []
