"""Each edge of trust has its row in SECURITY.md, and what the row names is there. Security checklist S8."""

import re

import pytest

from tests.pair import ROOT
from tests.security.rows import TABLE, read_rows
from tests.tables import marks

LINES = [line for line in (ROOT / "SECURITY.md").read_text().splitlines() if line.startswith("| ")][2:]
EDGES = [[cell.strip() for cell in line.strip("|").split("|")] for line in LINES]
WANTED = (
    *("client → bridge", "web page → bridge", "proxy → bridge", "token issuer → bridge", "bridge → store", "worker → store"),
    *("operator → store", "store → Postgres", "user code in workers", "logs and metrics", "supply chain"),
)


@pytest.mark.row("S8")
def test_each_edge_names_rows_that_are_shown_and_tests_that_show_one_of_them() -> None:
    rows = read_rows(TABLE.read_text())[0].rows
    shown = marks(mark="row")
    assert tuple(edge[0] for edge in EDGES) == WANTED
    for edge, could, against, named, files in EDGES:
        assert all((could, against)), edge
        row_ids, paths = named.split(), files.split()
        assert all((row_ids, paths)), edge
        for row_id in row_ids:
            assert rows[row_id].because is None, f"{edge} names {row_id}, which no test shows"
        for path in paths:
            assert (ROOT / path).is_file(), path
            marked = {row_id for row_id, test in shown if test.startswith(f"{path}::")}
            assert marked.intersection(row_ids), f"{edge}: {path} shows none of {row_ids}"


def test_every_link_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "SECURITY.md").read_text())
    assert links
    assert all((ROOT / link).exists() for link in links)
