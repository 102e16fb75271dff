"""The Postgres of a run: it crashes, recovers, has a replica, and hands over to it."""

import asyncio
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

import asyncpg

from store_service import launcher
from store_service.embedded import EmbeddedPostgres, _binaries

_SETTINGS: Final = {
    "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "dynamic_shared_memory_type": "mmap", "timezone": "UTC",
    "max_connections": "120", "shared_buffers": "128MB", "autovacuum_naptime": "5s", "fsync": "on", "wal_level": "replica",
    "max_wal_senders": "8", "hot_standby": "on", "wal_keep_size": "256MB", "checkpoint_timeout": "5min", "max_wal_size": "2GB",
    "log_min_messages": "warning", "log_checkpoints": "off",
}  # fmt: skip
_PATIENCE_SECONDS: Final = 90.0


class Server:
    """One cluster in one folder, on one port."""

    def __init__(self, folder: Path, *, port: int, password: str) -> None:
        self.folder = folder
        self.port = port
        self.password = password
        self._process: subprocess.Popen[bytes] | None = None

    def dsn(self, port: int | None = None) -> str:
        """Its address, or that of a proxy before it."""
        return f"postgresql://tenure:{self.password}@127.0.0.1:{port or self.port}/tenure"

    @property
    def is_running(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.poll() is None

    def spawn(self) -> None:
        """Starts its process and waits for nothing."""
        options = [word for name, value in {**_SETTINGS, "port": str(self.port)}.items() for word in ("-c", f"{name}={value}")]
        command = [*launcher.command_line(self.folder), str(_binaries() / "postgres"), "-D", str(self.folder), *options]
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )  # fmt: skip

    async def start(self) -> None:
        """Starts it and waits until it answers."""
        self.spawn()
        await self.answers()

    async def answers(self) -> None:
        """Waits until it answers. Raises TimeoutError."""
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while True:
                try:
                    connection = await asyncpg.connect(self.dsn(), timeout=5)
                except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    if not self.is_running:
                        await self._again()
                    await asyncio.sleep(0.05)
                else:
                    await connection.close()
                    return

    async def _again(self) -> None:
        """The children of a postmaster that was lost may hold its memory for a moment."""
        await asyncio.sleep(0.2)
        self.spawn()

    async def stop(self, *, immediate: bool) -> None:
        """Ends it; `immediate` is a crash: no checkpoint, and the next start recovers."""
        if self._process is not None:
            number = signal.SIGQUIT if immediate else signal.SIGINT
            until = time.monotonic() + _PATIENCE_SECONDS
            while self._process.poll() is None and time.monotonic() < until:
                self._process.send_signal(number)
                for _ in range(40):
                    if self._process.poll() is not None:
                        break
                    await asyncio.sleep(0.05)
            self._process = None

    async def wait_for_replica(self) -> None:
        """From now on each commit waits for the replica, which is there."""
        admin = await asyncpg.connect(self.dsn())
        await admin.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        await admin.execute("SELECT pg_reload_conf()")
        await _until(admin, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'")
        await admin.close()

    async def is_replayed(self) -> None:
        """Waits until the replica has all that there is."""
        admin = await asyncpg.connect(self.dsn())
        await _until(admin, "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_flush_lsn()")
        await admin.close()

    def promote(self) -> None:
        """Makes a replica the primary."""
        _run(self.folder, "pg_ctl", "promote", "-D", str(self.folder), "-w", "-t", "60")


async def make_primary(folder: Path, port: int) -> Server:
    """A new cluster, as the embedded one makes it, open to replicas."""
    made = EmbeddedPostgres(folder / "first", durable=False)
    await asyncio.to_thread(made.start)
    await asyncio.to_thread(made.stop)
    data = folder / "first" / "data"
    with (data / "pg_hba.conf").open("a") as access:
        access.write("host replication all 127.0.0.1/32 scram-sha-256\n")
    server = Server(data, port=port, password=(folder / "first" / "password").read_text())
    await server.start()
    return server


async def make_replica(primary: Server, folder: Path, port: int, *, through: int | None = None) -> Server:
    """A streaming replica of a server that runs, in a folder that is made; `through` a proxy before it."""
    replica = await base_backup(primary, folder, port, "-R", through=through)
    await replica.start()
    return replica


async def base_backup(primary: Server, folder: Path, port: int, *options: str, through: int | None = None) -> Server:
    """A copy of a server that runs, which is not started."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700)
    owner = primary.folder.stat()
    os.chown(folder, owner.st_uid, owner.st_gid)
    name = f"{primary.dsn(through)}?application_name=replica"
    await asyncio.to_thread(
        _run, folder, "pg_basebackup", "-D", str(folder), "-d", name, "-X", "stream", "-c", "fast", "--no-sync", *options
    )
    return Server(folder, port=port, password=primary.password)


async def _until(connection: asyncpg.Connection, query: str) -> None:
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while not await connection.fetchval(query):
            await asyncio.sleep(0.05)


def _run(data: Path, program: str, *arguments: str) -> None:
    command = [*launcher.command_line(data), str(_binaries() / program), *arguments]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False, text=True)
    if done.returncode:
        raise RuntimeError(f"{program} ended with {done.returncode}: {done.stderr[-2000:]}")
