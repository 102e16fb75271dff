"""What goes wrong around the processes: connections that others hold, clocks, a full disk, code that never yields, restarts."""

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import Final

import asyncpg

from tests.pair import Process
from tests.robustness.clients.state import Shared
from tests.robustness.world import BRIDGES, STORES, WORKERS, World

POOL: Final = "hog connections"
CODE: Final = "code that never yields"
DISK: Final = "full disk"
ROLL: Final = "rolling restart"
BOUNCER: Final = "restart pgbouncer"
CLOCKS: Final = {
    "clock +1 h": "+3600", "clock -1 h": "-3600", "clock -1 day": "-86400", "clock 2040": "@2040-01-01 00:00:00",
}  # fmt: skip
"""The clock of a process that is started anew, as libfaketime is told it."""
_SLOTS: Final = 120
_PATIENCE_SECONDS: Final = 120.0
_TERMINATE: Final = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tenure-store'"


def find_clock_library() -> str | None:
    """Where libfaketime is, if it is installed."""
    return next((str(path) for path in sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)


def clock_environment(kind: str) -> dict[str, str]:
    """What makes the clock of a process another; its monotonic one goes on as it is, as it does when somebody sets the other.

    Raises RuntimeError where libfaketime is not installed."""
    if (library := find_clock_library()) is None:
        raise RuntimeError("libfaketime is not installed: make robustness-tools")
    return {"LD_PRELOAD": library, "FAKETIME": CLOCKS[kind], "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


class Surroundings:
    """Does them, one method each. Raises RuntimeError for what this machine cannot do."""

    def __init__(self, world: World, shared: Shared) -> None:
        self._world = world
        self._shared = shared
        self._bouncing = asyncio.Lock()

    async def hog_connections(self, seconds: float) -> None:
        """Holds every connection that Postgres gives but one, also those that the stores had: they fight for that one."""
        dsn = self._world.postgres.dsn()
        held: list[asyncpg.Connection] = []
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        try:
            while loop.time() < until:
                if held:
                    with contextlib.suppress(asyncpg.PostgresError, OSError, asyncpg.InterfaceError):
                        await held[0].execute(_TERMINATE)
                while len(held) < _SLOTS:
                    try:
                        held.append(await asyncpg.connect(dsn, timeout=5))
                    except asyncpg.TooManyConnectionsError:
                        break
                if len(held) > 1:
                    await held.pop().close(timeout=5)
                await asyncio.sleep(0.5)
        finally:
            for connection in held:
                connection.terminate()

    async def never_yield(self) -> None:
        """Lets the next task that is made be one whose code keeps its thread for three leases."""
        self._shared.wanted.append("stubborn")
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while self._shared.wanted:
                await asyncio.sleep(0.1)

    async def shift_clock(self, name: str, kind: str, seconds: float) -> None:
        """Starts a process anew under another clock, and once more under its own."""
        part = self._world.parts[name]
        part.clock = clock_environment(kind)
        try:
            self._world.terminate(part)
            await asyncio.sleep(seconds)
        finally:
            part.clock = {}
            self._world.terminate(part)

    async def restart_pgbouncer(self, seconds: float) -> None:
        """Ends it with all its connections, half of the times with SIGKILL, and starts it again after a while."""
        bouncer = self._world.pgbouncer
        assert bouncer is not None
        async with self._bouncing:
            await asyncio.to_thread(bouncer.stop, signal.SIGKILL if seconds < 1.5 else signal.SIGTERM)
            await asyncio.sleep(seconds)
            await bouncer.start()

    async def fill_disk(self, seconds: float) -> None:
        """Leaves no room where the database lies, for a while; Postgres is started again if that ended it."""
        disk = self._world.disk
        if disk is None:
            raise RuntimeError("nothing can be mounted here: it takes root")
        disk.fill()
        try:
            await asyncio.sleep(seconds)
        finally:
            disk.free()
            if not self._world.postgres.is_running:
                await self._world.postgres.start()
            await self._world.postgres.answers()

    async def roll(self) -> None:
        """Ends every process gently, one after the other, each when the one before is back; while the schema is migrated."""
        migrating = asyncio.create_task(self._migrate())
        for name in (*STORES, *BRIDGES, *WORKERS):
            part = self._world.parts[name]
            starts = part.starts
            self._world.terminate(part)
            async with asyncio.timeout(_PATIENCE_SECONDS):
                while part.starts == starts or not part.is_running:
                    await asyncio.sleep(0.05)
                if part.admin_port:
                    assert part.process is not None
                    with contextlib.suppress(Exception):  # something else may hit it meanwhile
                        await asyncio.to_thread(part.process.wait_ready, part.admin_port)
        await migrating

    async def _migrate(self) -> None:
        """As an upgrade does before it; tried again where something else hits the database meanwhile."""
        environment = {"TENURE_STORE_DSN": self._world.postgres.dsn()}
        log = self._world.folder / "migrate.log"
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while True:
                migrate = Process("migrate", ["-m", "store_service", "migrate"], environment=environment, log=log)
                if not await asyncio.to_thread(migrate.wait_end):
                    return
                await asyncio.sleep(1)
