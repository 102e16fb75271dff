"""Peers: each installed by the benchmark into an environment of its own, and run as a process on the same Postgres or Redis."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import which
from typing import Any, Final

import asyncpg

from tests.databases import database_at
from tests.pair import ROOT

FOLDER: Final = ROOT / ".tenure" / "peers"
PROGRAMS: Final = Path(__file__).parent / "peers"
_UV: Final = Path(sys.executable).with_name("uv")
_OPTIONS: Final = ("--quiet", "--compile-bytecode")  # else a peer is compiled at each start, which takes seconds
_INSTALL_SECONDS: Final = 600
_RUN_SECONDS: Final = 300

REQUIREMENTS: Final[Mapping[str, Sequence[str]]] = {
    "pgqueuer": ("pgqueuer[asyncpg]==1.6.0", "uvloop==0.23.0"),
    "procrastinate": ("procrastinate==3.10.0", "uvloop==0.23.0"),
    "dbos": ("dbos==3.4.0",),
    "absurd": ("absurd-sdk==0.5.1", "absurdctl==0.5.1", "uvloop==0.23.0"),
    "docket": ("pydocket==0.27.0", "uvloop==0.23.0"),
    "oban": ("oban==0.7.0", "uvloop==0.23.0"),
    "fastmcp": ("fastmcp[tasks]==4.1.4", "uvicorn==0.54.0", "uvloop==0.23.0", "httptools==0.9.0"),
    "plot": ("matplotlib==3.11.2",),
}
_PYTHON_AT_LEAST: Final[Mapping[str, tuple[int, int]]] = {"oban": (3, 12)}


class MissingPeerError(RuntimeError):
    """A peer, or what it needs, is not on this machine and could not be installed. The message says what to do."""


def python_of(peer: str) -> Path:
    """The interpreter of a peer's environment, which is made at the first use. Raises MissingPeerError."""
    folder = FOLDER / peer
    marker, wanted = folder / ".installed", "\n".join((*_OPTIONS, *REQUIREMENTS[peer]))
    python = folder / "bin" / "python"
    if not marker.exists() or marker.read_text() != wanted:
        base = _interpreter(peer)
        _install([_UV, "venv", "--quiet", "--clear", "--python", base, folder], peer)
        _install([_UV, "pip", "install", *_OPTIONS, "--python", python, *REQUIREMENTS[peer]], peer)
        marker.write_text(wanted)
    return python


async def run(peer: str, *arguments: str) -> dict[str, Any]:
    """Runs a peer's program to its end and returns what it measured: the JSON of its last line."""
    command: list[str | Path] = [await asyncio.to_thread(python_of, peer), PROGRAMS / f"{peer}_peer.py", *arguments]
    return await asyncio.to_thread(_run, peer, command)


async def fresh_database(dsn: str, name: str) -> str:
    """An empty database on the same Postgres."""
    admin = await asyncpg.connect(dsn)
    await admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    await admin.execute(f"CREATE DATABASE {name}")
    await admin.close()
    return database_at(dsn, name)


def redis_server() -> str:
    """The program of Redis. Raises MissingPeerError."""
    found = which("redis-server") or which("valkey-server")
    if found is None and os.geteuid() == 0 and which("apt-get"):
        install = "apt-get update -qq && apt-get install -yqq --no-install-recommends redis-server"
        subprocess.run(["sh", "-c", install], env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"},
                       capture_output=True, timeout=_INSTALL_SECONDS, check=False)  # fmt: skip
        found = which("redis-server")
    if found is None:
        raise MissingPeerError("there is no redis-server here: install Debian's package redis-server, or valkey")
    return found


def _run(peer: str, command: Sequence[str | Path]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_RUN_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"{peer} ended with {done.returncode}\n{done.stderr[-3000:]}")
    measured = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(measured, dict)
    return measured


def _install(command: Sequence[str | Path], peer: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise MissingPeerError(f"{peer} could not be installed within {_INSTALL_SECONDS} s") from None
    if done.returncode:
        raise MissingPeerError(f"{peer} could not be installed: {' '.join(done.stderr.split())[-300:]}")


def _interpreter(peer: str) -> str:
    """A Python that is new enough for a peer: this one, one on the path, or one of pyenv's."""
    least = _PYTHON_AT_LEAST.get(peer, (3, 11))
    if sys.version_info >= least:
        return sys.executable
    names = [f"python3.{minor}" for minor in range(14, least[1] - 1, -1)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for name in names:
        for candidate in [which(name), *map(str, sorted(pyenv.glob(f"*/bin/{name}"), reverse=True))]:
            if candidate and not subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode:
                return candidate
    raise MissingPeerError(f"{peer} needs Python {least[0]}.{least[1]} or later, and there is none here")
