"""Each seeded bug still fits the text that it is put into. `make robustness-mutants` shows that each is found."""

from pathlib import Path

import asyncpg
import pytest

from tests.robustness.defects import DEFECTS


@pytest.mark.parametrize("name", DEFECTS)
async def test_a_seeded_bug_can_be_put_in(database: asyncpg.Connection, tmp_path: Path, name: str) -> None:
    await DEFECTS[name].put_into(database)
    DEFECTS[name].copy_code(tmp_path)
