"""Whatever a README shows is run by a test, or a reason says why not; and what the table names is there."""

import re
from functools import cache
from typing import Any

import yaml

from tests.readmes.blocks import ROOT, Block, blocks

TABLE: dict[str, list[dict[str, Any]]] = yaml.safe_load((ROOT / "tests" / "readmes" / "table.yaml").read_text())


def rows_of(block: Block) -> list[str]:
    """The rows that name a block."""
    return [row["has"] for row in TABLE.get(block.file, ()) if row["has"] in block.text]


def test_every_block_has_one_row_and_every_row_one_block() -> None:
    found = blocks()
    assert len(found) > 30
    assert [(block.file, block.text.splitlines()[0], rows_of(block)) for block in found if len(rows_of(block)) != 1] == []
    named = [(block.file, row) for block in found for row in rows_of(block)]
    assert sorted(named) == sorted((file, row["has"]) for file, rows in TABLE.items() for row in rows)


def test_every_test_that_is_named_is_there() -> None:
    wanted = [row["test"] for rows in TABLE.values() for row in rows]
    assert [one for one in wanted if one.partition("::")[2] not in names_in(one.partition("::")[0])] == []


@cache
def names_in(file: str) -> frozenset[str]:
    """The tests of a file."""
    return frozenset(re.findall(r"^(?:async )?def (test_\w+)\(", (ROOT / file).read_text(), re.MULTILINE))
