"""Each row of the security checklist is shown by a test or says why not, and each mark names a row that is there."""

import pytest

from tests.security.rows import TABLE, read_rows
from tests.tables import collected_folders, compare, marks

WRITTEN = TABLE.read_text()
HERE = "tests/a/test_x.py::test_y"


def test_every_row_has_its_tests_or_its_reason_and_every_named_row_is_there() -> None:
    table, _ = read_rows(WRITTEN)
    assert compare(table, marks(mark="row"), collected_folders()) == []


def test_a_row_without_a_test_and_a_reason_that_is_over_are_told() -> None:
    table, excuses = read_rows(WRITTEN)
    over = next(row_id for row_id, excuse in excuses.items() if excuse.kind == "because")
    faults = compare(table, [(over, HERE)], ("tests/a/",))
    assert any(fault.startswith("A1 is held by no test") for fault in faults)
    assert any(fault.startswith(f"{over} is said to bind nothing here") for fault in faults)


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("  A2: [MUST,", "  X2: [MUST,", "A2 is missing"),
        ("  A2: [MUST,", "  X2: [MUST,", "X2 is not of the checklist"),
        ("  A2: [MUST,", "  A2: [MAY,", "A2 is not written"),
        ("  A2: [MUST,", "  A1: [MUST,", "A1 stands there twice"),
        ("besides:", "hope:", "A13 has an excuse of no kind"),
    ],
)
def test_a_row_that_is_written_otherwise_is_told(before: str, after: str, fault: str) -> None:
    table, _ = read_rows(WRITTEN.replace(before, after))
    assert any(told.startswith(fault) for told in table.faults)
