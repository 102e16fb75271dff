"""A PgBouncer in transaction mode before a Postgres of a test's or a run's own."""

import asyncio
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from store_service import launcher

PROGRAM: Final = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
MISSING: Final = "pgbouncer is not installed: make robustness-tools"
_PATIENCE_SECONDS: Final = 30.0
_SETTINGS: Final = """\
[databases]
* = host=127.0.0.1 port={upstream}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 1000
server_login_retry = 1
query_wait_timeout = 10
"""


class PgBouncer:
    """One process, which ends with ours. Whoever it lets in may go to any database."""

    def __init__(self, folder: Path, dsn: str, *, port: int, upstream: int = 0, size: int = 5) -> None:
        """`dsn` names who may connect, and where to, unless it is to be the port `upstream`."""
        address = urlsplit(dsn)
        self.port = port
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        users = folder / "users.txt"
        users.write_text(f'"{address.username}" "{address.password}"\n')
        self._settings = folder / "pgbouncer.ini"
        self._settings.write_text(_SETTINGS.format(upstream=upstream or address.port, port=port, users=users, size=size))

    @property
    def pid(self) -> int:
        """Its process's id."""
        assert self._process is not None
        return self._process.pid

    def dsn(self, dsn: str) -> str:
        """The address of a database of the same Postgres, through it."""
        address = urlsplit(dsn)
        return urlunsplit(address._replace(netloc=f"{address.username}:{address.password}@127.0.0.1:{self.port}"))

    async def start(self) -> None:
        """Starts it and waits until it listens."""
        assert PROGRAM is not None, MISSING
        launcher.hand_over(self._folder)  # it will not run as root either
        command = [*launcher.command_line(self._folder), PROGRAM, "-q", str(self._settings)]
        with (self._folder / "pgbouncer.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )  # fmt: skip
        until = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                if self._process.poll() is not None or time.monotonic() > until:
                    self.stop(signal.SIGKILL)
                    said = (self._folder / "pgbouncer.log").read_text()[-1000:]
                    raise RuntimeError(f"PgBouncer does not listen: {said}") from None
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends it at once, with all its connections."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            try:
                process.wait(_PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise

    async def restart(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends it and starts it again, at the same address. Not beside another: the process of one would be lost."""
        await asyncio.to_thread(self.stop, number)
        await self.start()
