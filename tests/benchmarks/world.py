"""Tenure as it is deployed, with its usual settings, and whatever stands beside it."""

import asyncio
import base64
import contextlib
import os
import shutil
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Final

import asyncpg

from mcp_bridge.development import Trial, issue_token
from tests.benchmarks import peer
from tests.benchmarks.api import OWNER, TENANT
from tests.benchmarks.machine import Usage, usage
from tests.benchmarks.profile import Profile
from tests.pair import ROOT, Pair, Process, free_ports

AT_ONCE: Final = 500
"""Tasks that a worker runs at once, unless another number is named."""


class World:
    """One pair with a database of its own, and other processes beside it."""

    def __init__(
        self, pair: Pair, folder: Path, *, token: str, access: Mapping[str, str], profile: Profile | None = None
    ) -> None:
        self.pair = pair
        self.token = token
        """With which its bridges let in."""
        self._access = access
        self.folder = folder
        self._profile = profile
        if profile is not None:
            profile.watch(pair.bridge)
            profile.watch(pair.store)
        self._others: list[Process] = []

    def token_of(self, tenant: str) -> str:
        """With which they let in one of another tenant."""
        return _token(self.folder, tenant, self._access["TENURE_BRIDGE_PUBLIC_URL"])

    @property
    def dsn(self) -> str:
        """Where Postgres is."""
        return self.pair.postgres.dsn

    def start(
        self, name: str, *arguments: str, environment: Mapping[str, str] | None = None, program: Path | str = sys.executable
    ) -> Process:
        """Starts a program beside the pair, a Python of ours unless another is named."""
        process = Process(
            name, arguments, environment=environment or {}, log=self.folder / f"{name}.log", program=Path(program)
        )
        self._others.append(process)
        return process

    def start_worker(self, name: str = "worker", *, store: str | None = None, at_once: int = AT_ONCE) -> Process:
        """Starts a worker that has nothing to do for its tasks."""
        address = store or self.pair.store_address
        process = self.start(name, "-m", "tests.benchmarks.programs.worker", address, name, str(at_once))
        if self._profile is not None:
            self._profile.watch(process)
        return process

    async def start_store(self, name: str, dsn: str) -> tuple[str, Process]:
        """Starts another store, its schema brought up to date. Returns its address."""
        port, admin_port = free_ports(2)
        settings = {
            "TENURE_STORE_DSN": dsn, "TENURE_STORE_PORT": str(port), "TENURE_STORE_ADMIN_PORT": str(admin_port),
        }  # fmt: skip
        migrate = self.start(f"{name}-migrate", "-m", "store_service", "migrate", environment=settings)
        assert await asyncio.to_thread(migrate.wait_end) == 0, migrate.tail()
        process = self.start(name, "-m", "store_service", "serve", environment=settings)
        await asyncio.to_thread(process.wait_ready, admin_port)
        return f"127.0.0.1:{port}", process

    async def start_bridge(self, name: str, store: str) -> tuple[str, Process]:
        """Starts another bridge, before this store. Returns its URL."""
        port, admin_port = free_ports(2)
        settings = {
            "TENURE_BRIDGE_PORT": str(port), "TENURE_BRIDGE_ADMIN_PORT": str(admin_port), "TENURE_BRIDGE_STORE": store,
            "TENURE_BRIDGE_ROUTES": str(self.pair.routes), **self._access,
        }  # fmt: skip
        process = self.start(name, "-m", "mcp_bridge", "serve", environment=settings)
        await asyncio.to_thread(process.wait_ready, admin_port)
        return f"http://127.0.0.1:{port}/mcp", process

    async def start_redis(self) -> tuple[str, Process]:
        """Starts a Redis that appends what it is told to a file, each second. Returns its URL. Raises MissingPeerError."""
        program = await asyncio.to_thread(peer.redis_server)
        (port,) = free_ports(1)
        folder = self.folder / f"redis-{port}"
        folder.mkdir()
        process = self.start(
            f"redis-{port}", "--port", str(port), "--bind", "127.0.0.1", "--appendonly", "yes", "--appendfsync", "everysec",
            "--save", "", "--dir", str(folder), program=program,
        )  # fmt: skip
        await until_listening(port)
        return f"redis://127.0.0.1:{port}/0", process

    def stop(self, process: Process) -> None:
        """Ends a program."""
        self._others.remove(process)
        process.stop()

    def kill(self, process: Process) -> None:
        """Ends a program that is not ours, which may take its time to stop."""
        self._others.remove(process)
        process.kill()

    def stop_others(self) -> None:
        """Ends every program that is beside the pair."""
        if self._profile is not None:
            self._profile.stop()
        for process in reversed(self._others):
            process.stop()
        self._others.clear()

    async def postmaster(self) -> int:
        """The process id of Postgres."""
        connection = await asyncpg.connect(self.dsn)
        backend = await connection.fetchval("SELECT pg_backend_pid()")
        parent = int(Path(f"/proc/{backend}/stat").read_text().rpartition(")")[2].split()[1])
        await connection.close()
        return parent

    async def meter(self, **others: Process) -> "Meter":
        """Tells what each part of the pair takes, and these processes."""
        return Meter({**await self.parts(), **{name: process.pid for name, process in others.items()}})

    async def parts(self) -> dict[str, int]:
        """The process ids of the pair's parts."""
        return {"bridge": self.pair.bridge.pid, "store": self.pair.store.pid, "postgres": await self.postmaster()}


class Meter:
    """CPU of some processes between two looks."""

    def __init__(self, processes: dict[str, int]) -> None:
        self._processes = processes
        self._before: Usage = usage(processes)

    def start(self) -> None:
        """The first look."""
        self._before = usage(self._processes)

    def stop(self, operations: int) -> dict[str, float]:
        """Microseconds of CPU for each operation since the first look."""
        return usage(self._processes).since(self._before, operations)


@contextlib.contextmanager
def open_world(profile: Profile | None = None) -> Iterator[World]:
    """A pair in an empty folder, with a Postgres that does not forget, and a bridge that asks everybody who he is."""
    folder = ROOT / ".tenure" / "bench" / "world"
    shutil.rmtree(folder, ignore_errors=True)
    *_, port = free_ports(5)  # the pair takes the first ones
    url = f"http://127.0.0.1:{port}"
    token = _token(folder, TENANT, url)
    access = {
        "TENURE_BRIDGE_ISSUERS": str(folder / "issuer" / "issuers.yaml"), "TENURE_BRIDGE_PUBLIC_URL": url,
        "TENURE_BRIDGE_STATE_KEYS": base64.b64encode(os.urandom(32)).decode(),
    }  # fmt: skip
    routes = Path(__file__).parent / "routes.yaml"
    with Pair(folder, routes=routes, durable=True, mcp_port=port, bridge_settings=access) as pair:
        world = World(pair, folder, token=token, access=access, profile=profile)
        try:
            yield world
        finally:
            world.stop_others()


def _token(folder: Path, tenant: str, url: str) -> str:
    trial = Trial(tenant=tenant, subject=OWNER.subject, scopes=(), groups=(), audience=f"{url}/mcp", minutes=600)
    return issue_token(folder / "issuer", trial)


@contextlib.asynccontextmanager
async def echo(world: World, size: int) -> AsyncIterator[tuple[str, Process]]:
    """The bare aiohttp server, answering so many bytes."""
    (port,) = free_ports(1)
    process = world.start(f"echo-{size}", "-m", "tests.benchmarks.programs.echo", str(port), str(size))
    await until_listening(port)
    yield f"http://127.0.0.1:{port}/mcp", process
    world.stop(process)


async def until_listening(port: int, *, seconds: float = 60) -> None:
    """Waits until somebody listens on a port of loopback."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return
