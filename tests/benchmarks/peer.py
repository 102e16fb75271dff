"""Peers: each installed by the benchmark into an environment of its own, and run as a process on the same Postgres."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import asyncpg

from tests.databases import database_at
from tests.pair import ROOT

FOLDER: Final = ROOT / ".tenure" / "bench" / "peers"
_UV: Final = Path(sys.executable).with_name("uv")
_INSTALL_SECONDS: Final = 600
_RUN_SECONDS: Final = 300

REQUIREMENTS: Final[Mapping[str, Sequence[str]]] = {
    "pgqueuer": ("pgqueuer[asyncpg]==1.6.0", "uvloop"),
}


def python_of(peer: str) -> Path:
    """The interpreter of a peer's environment, which is made at the first use."""
    folder = FOLDER / peer
    marker, wanted = folder / ".installed", "\n".join(REQUIREMENTS[peer])
    python = folder / "bin" / "python"
    if not marker.exists() or marker.read_text() != wanted:
        subprocess.run([_UV, "venv", "--quiet", "--clear", "--python", sys.executable, folder], check=True)
        install: list[str | Path] = [_UV, "pip", "install", "--quiet", "--python", python, *REQUIREMENTS[peer]]
        subprocess.run(install, check=True, timeout=_INSTALL_SECONDS)
        marker.write_text(wanted)
    return python


def run(peer: str, *arguments: str, program: str | None = None) -> dict[str, Any]:
    """Runs a peer's program to its end and returns what it measured: the JSON of its last line."""
    path = Path(__file__).parent / "peers" / f"{program or peer}_peer.py"
    done = subprocess.run(
        [python_of(peer), path, *arguments], capture_output=True, text=True, timeout=_RUN_SECONDS, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{peer} ended with {done.returncode}\n{done.stderr[-3000:]}")
    measured = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(measured, dict)
    return measured


async def fresh_database(dsn: str, name: str) -> str:
    """An empty database on the same Postgres."""
    admin = await asyncpg.connect(dsn)
    await admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    await admin.execute(f"CREATE DATABASE {name}")
    await admin.close()
    return database_at(dsn, name)
