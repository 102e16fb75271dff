"""Servers of the embedded Postgres, and processes that own one."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from store_service.embedded import EmbeddedPostgres

REPOSITORY = Path(__file__).parents[2]
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="2026-11-29: reads /proc; capabilities are Linux's")
# Runs a server until killed, or until its standard input ends; never stops it. Says its pid
# and dsn.
OWNER = """
import sys
from pathlib import Path
from store_service.embedded import EmbeddedPostgres
server = EmbeddedPostgres(Path(sys.argv[1]), durable=False)
server.start()
pid = (server.folder / "data" / "postmaster.pid").read_text().split()[0]
print(pid, server.dsn, flush=True)
sys.stdin.read()
"""


def query(dsn: str, sql: str) -> Any:
    async def run() -> Any:
        connection = await asyncpg.connect(dsn)
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()

    return asyncio.run(run())


def owner_of(
    folder: Path,
    python: str = sys.executable,
    repository: Path = REPOSITORY,
    user: int | None = None,
) -> subprocess.Popen[str]:
    """A process of its own that runs a server in `folder` and says its pid and dsn."""
    return subprocess.Popen(
        [python, "-c", OWNER, folder],
        cwd=repository,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def postmaster(server: EmbeddedPostgres) -> int:
    return int((server.folder / "data" / "postmaster.pid").read_text().split()[0])


def wait_until(condition: Callable[[], bool], *, at_most_seconds: float = 10.0) -> None:
    deadline = time.monotonic() + at_most_seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
