"""The operators' commands, as processes of their own, against a store that really listens."""

import asyncio
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Stubs
from tests.pair import ROOT


@dataclass
class Operator:
    """Somebody at a command line."""

    environment: dict[str, str]
    said: str = ""
    """What the last command said."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """The same, where it is JSON, a row each."""
    trouble: str = ""
    """What it said besides."""

    async def does(self, *arguments: object) -> int:
        """Runs `tenure-store`. Returns its exit code."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "store_service", *(str(each) for each in arguments), cwd=ROOT, env=self.environment,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        out, err = await process.communicate()
        self.said = out.decode()
        self.rows = [json.loads(line) for line in self.said.splitlines() if line.startswith("{")]
        self.trouble = err.decode()
        assert process.returncode is not None
        return process.returncode

    @property
    def row(self) -> dict[str, Any]:
        """The only row."""
        (row,) = self.rows
        return row


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """The folder of an archive."""
    folder = tmp_path / "archive"
    folder.mkdir()
    return folder


@pytest.fixture
def operator(store: Stubs, archive: Path) -> Operator:
    """An operator of the test's store, whose archive is a folder."""
    settings = {"TENURE_OPERATOR_STORE": store.address, "TENURE_STORE_ARCHIVE": str(archive), "USER": "ann", "LOGNAME": "ann"}
    return Operator({"PATH": "/usr/bin:/bin", **settings})
