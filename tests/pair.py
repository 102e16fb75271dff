"""Tenure as separate processes on loopback, in one folder: Postgres, store, bridge and workers.

The demo, `make up`, `make conformance` and the tests that kill processes all start it from here.
"""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from prometheus_client.parser import text_string_to_metric_families

from store_service.embedded import EmbeddedPostgres
from tests.tied import TIED

ROOT = Path(__file__).parents[1]
START_SECONDS = 120.0
STOP_SECONDS = 120.0
_PORTS = range(20_000, 30_000)  # below those handed out to outgoing connections


class PairError(RuntimeError):
    """A process did not do as it should. The message ends with what it logged last."""


class Process:
    """One process that is ours, with its log. It ends with ours, and with this object."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        program: Path = Path(sys.executable),
        folder: Path = ROOT,
    ) -> None:
        self.name = name
        self._log = log
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("TENURE_")}
        self._starter = ThreadPoolExecutor(1, f"starter of {name}")  # a thread that lives as long as this object
        with log.open("ab") as output:
            self._popen = self._starter.submit(
                subprocess.Popen,
                [*TIED, program, *arguments],
                cwd=folder,
                env={**inherited, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            ).result()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._popen.pid

    def wait_ready(self, admin_port: int) -> None:
        """Waits until `/readyz` says so."""
        self.wait_answer(f"http://127.0.0.1:{admin_port}/readyz")

    def wait_answer(self, url: str) -> None:
        """Waits until it answers there, and well."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            if self._popen.poll() is not None:
                raise PairError(f"{self.name} ended with {self._popen.returncode}\n{self.tail()}")
            try:
                with urllib.request.urlopen(url, timeout=2):
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.05)
        raise PairError(f"{self.name} was not ready after {START_SECONDS:g} s\n{self.tail()}")

    def catches(self, number: signal.Signals) -> bool:
        """Whether it does something of its own when it gets the signal."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except FileNotFoundError:  # it has ended
            return False
        caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
        return bool(int(caught, 16) >> (number - 1) & 1)

    def send(self, number: signal.Signals) -> None:
        """Sends it a signal, if it lives."""
        if self._popen.poll() is None:
            self._popen.send_signal(number)

    def kill(self) -> None:
        """Ends it at once, and waits until it is gone."""
        self.send(signal.SIGKILL)
        self._popen.wait()

    def wait_end(self) -> int:
        """Waits until it has ended by itself. Returns its exit code."""
        return self._popen.wait(START_SECONDS)

    def stop(self) -> int:
        """Asks it to end, as an operator does, and waits. Returns its exit code."""
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        try:
            return self._popen.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise PairError(f"{self.name} did not end within {STOP_SECONDS:g} s\n{self.tail()}") from None

    def tail(self, lines: int = 20) -> str:
        """What it logged last."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])


class Pair:
    """Everything of Tenure, each part a process of its own. Use it as a context."""

    def __init__(
        self,
        folder: Path,
        *,
        routes: Path,
        durable: bool = True,
        mcp_port: int = 0,
        bridge_settings: Mapping[str, str] | None = None,
        store_settings: Mapping[str, str] | None = None,
        worker_settings: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.routes = routes
        self._bridge_settings = dict(bridge_settings or {})
        self._store_settings = dict(store_settings or {})
        self._worker_settings = dict(worker_settings or {})
        folder.mkdir(parents=True, exist_ok=True)
        self.postgres = EmbeddedPostgres(folder / "postgres", durable=durable)
        self._store_port, self._store_admin_port, self._bridge_admin_port, free = free_ports(4)
        self._mcp_port = mcp_port or free
        self.processes: list[Process] = []
        self.store: Process
        self.bridge: Process

    @property
    def store_address(self) -> str:
        """Where the store answers."""
        return f"127.0.0.1:{self._store_port}"

    @property
    def url(self) -> str:
        """Where MCP is spoken."""
        return f"http://127.0.0.1:{self._mcp_port}/mcp"

    @property
    def admin_ports(self) -> tuple[int, int]:
        """Where store and bridge answer probes."""
        return self._store_admin_port, self._bridge_admin_port

    def figures(self) -> str:
        """All that store and bridge have counted, as they tell it."""
        return "".join(map(metrics_at, self.admin_ports))

    def figure(self, sample: str, **labels: str) -> float:
        """What the bridge has counted under a name, over all samples that have these labels."""
        families = list(text_string_to_metric_families(metrics_at(self._bridge_admin_port)))
        samples = [one for family in families for one in family.samples if one.name == sample]
        return sum(one.value for one in samples if labels.items() <= one.labels.items())

    def start(self) -> None:
        """Starts Postgres, brings the schema up to date, starts the store and the bridge."""
        self.postgres.start()
        migrate = self._start("migrate", ["-m", "store_service", "migrate"], self._store_environment())
        if (code := migrate.wait_end()) != 0:
            raise PairError(f"migrate ended with {code}\n{migrate.tail()}")
        self.start_store()
        self.start_bridge()

    def start_store(self) -> None:
        """Starts a store, at the address of the one before."""
        self.store = self._start("store", ["-m", "store_service", "serve"], self._store_environment())
        self.store.wait_ready(self._store_admin_port)

    def start_bridge(self) -> None:
        """Starts a bridge, at the address of the one before."""
        environment = {
            "TENURE_BRIDGE_PORT": str(self._mcp_port),
            "TENURE_BRIDGE_ADMIN_PORT": str(self._bridge_admin_port),
            "TENURE_BRIDGE_ROUTES": str(self.routes),
            "TENURE_BRIDGE_STORE": self.store_address,
            **self._bridge_settings,
        }
        self.bridge = self._start("bridge", ["-m", "mcp_bridge", "serve"], environment)
        self.bridge.wait_ready(self._bridge_admin_port)

    def start_worker(self, name: str, module: str, *arguments: str) -> Process:
        """Starts a worker: `python -m MODULE STORE NAME [ARGUMENT ...]`."""
        return self._start(name, ["-m", module, self.store_address, name, *arguments], self._worker_settings)

    def stop(self) -> None:
        """Ends every process that this started, workers first, Postgres last."""
        for process in reversed(self.processes):
            process.stop()
        self.processes.clear()
        self.postgres.stop()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _start(self, name: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Process:
        process = Process(name, arguments, environment=environment, log=self.folder / f"{name}.log")
        self.processes.append(process)
        return process

    def _store_environment(self) -> dict[str, str]:
        return {
            "TENURE_STORE_DSN": self.postgres.dsn,
            "TENURE_STORE_PORT": str(self._store_port),
            "TENURE_STORE_ADMIN_PORT": str(self._store_admin_port),
            **self._store_settings,
        }


def metrics_at(admin_port: int) -> str:
    """All that a store, a bridge or a worker has counted, as it tells it."""
    status, text = told_at(admin_port, "/metrics", within_seconds=30)
    assert status == 200, text
    return text


def told_at(port: int, path: str, *, within_seconds: float = 10) -> tuple[int, str]:
    """Status and text of what a process of ours answers a GET with, as probes ask."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=within_seconds) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on."""
    found: list[int] = []
    start = secrets.randbelow(len(_PORTS))  # whoever runs beside us begins elsewhere
    for offset in range(len(_PORTS)):
        port = _PORTS[(start + offset) % len(_PORTS)]
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise PairError("no free ports on loopback")
