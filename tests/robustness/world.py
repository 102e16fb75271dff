"""Tenure as a run has it: a Postgres, two stores, two bridges, three workers, and between any two of them a proxy."""

import asyncio
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import asyncpg
from taskstore.v1 import budgets_pb2, budgets_pb2_grpc, tenants_pb2, tenants_pb2_grpc, types_pb2

from store_service.client.channel import open_channel
from store_service.fault_points import EXIT_CODE
from tests.pair import ROOT, PairError, Process, free_ports
from tests.pgbouncer import PgBouncer
from tests.robustness.disk import SmallDisk
from tests.robustness.ledger import Ledger
from tests.robustness.points import Armoury
from tests.robustness.postgres import Server, make_primary
from tests.robustness.proxy import Proxy

if TYPE_CHECKING:
    from tests.robustness.defects import Defect

HERE: Final = Path(__file__).parent
STORES: Final = ("store-1", "store-2")
BRIDGES: Final = ("bridge-1", "bridge-2")
WORKERS: Final = ("worker-1", "worker-2", "worker-3")
LEASE_SECONDS: Final = 3
_LOOK_SECONDS: Final = 0.1
_READY_SECONDS: Final = 180.0
_DISK_MIB: Final = 8_192


@dataclass
class Part:
    """A process that is started again whenever it has ended, as Kubernetes does; unless it is held down."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    admin_port: int = 0
    process: Process | None = None
    starts: int = 0
    is_held_down: bool = False
    is_paused: bool = False
    expected_ends: int = 0
    clock: Mapping[str, str] = field(default_factory=dict)
    """What makes its clock another, from its next start on."""
    unexpected_ends: list[str] = field(default_factory=list)

    @property
    def is_running(self) -> bool:
        """Whether its process is there."""
        return self.process is not None and self.process._popen.poll() is None

    @property
    def pid(self) -> int:
        """Its process's id; it runs."""
        assert self.process is not None
        return self.process.pid


class World:
    """Everything of one run, in one folder. Use it as an async context."""

    def __init__(
        self, folder: Path, *, workers: Sequence[str] = WORKERS, small_disk: bool = False, drain_seconds: int = 3,
        pgbouncer: bool = False, defect: "Defect | None" = None,
    ) -> None:  # fmt: skip
        self.folder = folder
        folder.mkdir(parents=True)
        (folder / "archive").mkdir()
        self.armoury = Armoury(folder / "faults")
        self._defect = defect
        self._code = ROOT if defect is None else defect.copy_code(folder / "code")
        self.disk = SmallDisk.mount(folder / "postgres", _DISK_MIB) if small_disk else None
        self._workers = workers
        self._drain_seconds = drain_seconds
        ports = iter(free_ports(50))
        self.postgres_port = next(ports)
        self.replica_ports = [next(ports) for _ in range(12)]
        self.ledger_port = next(ports)
        self.postgres: Server
        self.parts: dict[str, Part] = {}
        self.proxies: dict[str, Proxy] = {}
        self._supervisor: asyncio.Task[None] | None = None
        store_ports = [next(ports) for _ in STORES]
        for number, name in enumerate(STORES):
            self.proxies[f"{name}>postgres"] = Proxy(f"{name}>postgres", listen=next(ports), upstream=self.postgres_port)
            for side in ("workers", "bridges", "clients"):
                proxy = f"{side}>{name}"
                self.proxies[proxy] = Proxy(proxy, listen=next(ports), upstream=store_ports[number])
        self.pgbouncer: PgBouncer | None = None
        if pgbouncer:
            self.proxies["pgbouncer>postgres"] = Proxy("pgbouncer>postgres", listen=next(ports), upstream=self.postgres_port)
            self._pgbouncer_port = next(ports)
            for name in STORES:
                proxy = f"{name}>pgbouncer"
                self.proxies[proxy] = Proxy(proxy, listen=next(ports), upstream=self._pgbouncer_port)
        self._is_pooled = pgbouncer
        self._store_ports = store_ports
        self._admin_ports = [next(ports) for _ in STORES]
        self.bridge_ports = [next(ports) for _ in BRIDGES]
        self._bridge_admin_ports = [next(ports) for _ in BRIDGES]
        self.ledger = Ledger(folder / "effects.jsonl", self.ledger_port)

    def ports(self, side: str) -> list[int]:
        """Where one side reaches the stores."""
        return [self.proxies[f"{side}>{name}"].listen for name in STORES]

    def address(self, side: str) -> str:
        """The same as one address of gRPC, balanced."""
        return "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in self.ports(side))

    async def __aenter__(self) -> Self:
        try:
            await self._start_all()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def _start_all(self) -> None:
        self.postgres = await make_primary(self.folder / "postgres", self.postgres_port)
        environment = {"TENURE_STORE_DSN": self.postgres.dsn()}
        migrate = Process(
            "migrate", ["-m", "store_service", "migrate"], environment=environment, log=self.folder / "migrate.log"
        )
        if code := await asyncio.to_thread(migrate.wait_end):
            raise RuntimeError(f"migrate ended with {code}: {migrate.tail()}")
        connection = await asyncpg.connect(self.postgres.dsn())
        await connection.execute((HERE / "audit.sql").read_text())
        if self._defect is not None:
            await self._defect.put_into(connection)
        await connection.close()
        for proxy in self.proxies.values():
            await proxy.start()
        await self.ledger.start()
        if self._is_pooled:
            upstream = self.proxies["pgbouncer>postgres"].listen
            self.pgbouncer = PgBouncer(
                self.folder / "pgbouncer", self.postgres.dsn(), port=self._pgbouncer_port, upstream=upstream, size=8
            )  # fmt: skip
            await self.pgbouncer.start()
        self._describe()
        for part in self.parts.values():
            self.start(part)
        self._supervisor = asyncio.create_task(self._supervise())
        for part in self.parts.values():
            await self.until_ready(part)
        await self._configure()

    async def __aexit__(self, *_: object) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()
        ends = [asyncio.to_thread(self._end, part) for part in reversed(list(self.parts.values()))]
        await asyncio.gather(*ends, return_exceptions=True)
        for proxy in self.proxies.values():
            await proxy.stop()
        await self.ledger.stop()
        if self.pgbouncer is not None:
            await asyncio.to_thread(self.pgbouncer.stop)
        if hasattr(self, "postgres"):
            await self.postgres.stop(immediate=False)
        if self.disk is not None:
            self.disk.unmount()

    def start(self, part: Part) -> None:
        """Starts a process anew."""
        part.starts += 1
        arguments = [each.replace("{start}", str(part.starts)) for each in part.arguments]
        log = self.folder / f"{part.name}.log"
        environment = {**part.environment, **part.clock}
        part.process = Process(part.name, arguments, environment=environment, log=log, folder=self._code)

    def kill(self, part: Part) -> None:
        """Ends it at once; the supervisor starts it again."""
        if part.is_running:
            part.expected_ends += 1
            part.is_paused = False
            os.kill(part.pid, signal.SIGKILL)

    def terminate(self, part: Part) -> None:
        """Asks it to end; the supervisor starts it again."""
        if part.is_running:
            part.expected_ends += 1
            os.kill(part.pid, signal.SIGTERM)

    async def until_ready(self, part: Part) -> None:
        """Waits until it answers, or at least has an ear for SIGTERM: that may take a while, and a second start."""
        until = time.monotonic() + _READY_SECONDS
        while True:
            assert part.process is not None
            try:
                if part.admin_port:
                    await asyncio.to_thread(part.process.wait_ready, part.admin_port)
                elif not part.process.catches(signal.SIGTERM):
                    raise PairError(f"{part.name} has not begun")
                break
            except PairError:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(_LOOK_SECONDS)

    def pause(self, part: Part) -> None:
        """Stops it where it stands."""
        if part.is_running:
            part.is_paused = True
            os.kill(part.pid, signal.SIGSTOP)

    def resume(self, part: Part) -> None:
        """Lets it go on."""
        if part.is_running and part.is_paused:
            part.is_paused = False
            os.kill(part.pid, signal.SIGCONT)

    async def _supervise(self) -> None:
        """Starts again what has ended, a little later each time it ends at once."""
        since: dict[str, float] = {}
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for part in self.parts.values():
                if part.is_running or part.process is None:
                    continue
                now = time.monotonic()
                if since.setdefault(part.name, now) == now:
                    code = part.process._popen.returncode
                    if part.expected_ends > 0:
                        part.expected_ends -= 1
                    elif self.postgres.is_running and code not in (0, 1, EXIT_CODE):
                        part.unexpected_ends.append(f"{part.name} ended with {code}: {part.process.tail(3)}")
                if not part.is_held_down and now - since[part.name] > 0.3:
                    del since[part.name]
                    self.start(part)

    def _end(self, part: Part) -> None:
        if part.process is not None and part.is_running:
            part.process.stop()

    def _describe(self) -> None:
        for number, name in enumerate(STORES):
            dsn = self.postgres.dsn(self.proxies[f"{name}>postgres"].listen)
            environment = {
                "TENURE_STORE_DSN": dsn, "TENURE_STORE_PORT": str(self._store_ports[number]),
                "TENURE_STORE_ADMIN_PORT": str(self._admin_ports[number]), "TENURE_STORE_CANCEL_GRACE_SECONDS": "5",
                "TENURE_STORE_MAX_CRASHES": "100", "TENURE_STORE_DRAIN_SECONDS": str(self._drain_seconds),
                "TENURE_LOG_LEVEL": "warning",
                "TENURE_STORE_MAX_CONNECTION_AGE_SECONDS": "20", "TENURE_STORE_CLEANUP": "true",
                "TENURE_STORE_CLEANUP_SCAN_SECONDS": "1", "TENURE_STORE_CLEANUP_LEASE_SECONDS": "5",
                "TENURE_STORE_CLEANUP_TENANTS_AT_ONCE": "2", "TENURE_STORE_ARCHIVE": str(self.folder / "archive"),
                "TENURE_STORE_FAULT_POINTS": str(self.armoury.folder),
            }  # fmt: skip
            if self._is_pooled:
                environment["TENURE_STORE_POOLED_DSN"] = self.postgres.dsn(self.proxies[f"{name}>pgbouncer"].listen)
            self.parts[name] = Part(name, ["-m", "store_service", "serve"], environment, self._admin_ports[number])
        for number, name in enumerate(BRIDGES):
            environment = {
                "TENURE_BRIDGE_PORT": str(self.bridge_ports[number]), "TENURE_BRIDGE_ROUTES": str(HERE / "routes.yaml"),
                "TENURE_BRIDGE_ADMIN_PORT": str(self._bridge_admin_ports[number]),
                "TENURE_BRIDGE_DRAIN_SECONDS": str(self._drain_seconds),
                "TENURE_BRIDGE_STORE": self.address("bridges"), "TENURE_LOG_LEVEL": "warning",
                "TENURE_BRIDGE_FAULT_POINTS": str(self.armoury.folder),
                "TENURE_BRIDGE_STATE_KEYS": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
            }  # fmt: skip
            self.parts[name] = Part(name, ["-m", "mcp_bridge", "serve"], environment, self._bridge_admin_ports[number])
        for name in self._workers:
            arguments = [
                "-m", "tests.robustness.programs.worker", self.address("workers"), f"{name}.{{start}}-l{LEASE_SECONDS * 1000}",
                str(self.ledger_port), str(LEASE_SECONDS), str(self._drain_seconds),
            ]  # fmt: skip
            self.parts[name] = Part(name, arguments, {})

    async def _configure(self) -> None:
        """Tenants with room enough, one that may hold few leases, and one with a budget."""
        most_leased = self._defect.most_leased if self._defect is not None else 0
        policies = {"alfa": 100, "beta": most_leased or 20, "gamma": 40, "dev": 100, "delta": 50}
        async with open_channel(self.address("clients")) as channel:
            tenants: tenants_pb2_grpc.TenantServiceAsyncStub = tenants_pb2_grpc.TenantServiceStub(channel)
            budgets: budgets_pb2_grpc.BudgetServiceAsyncStub = budgets_pb2_grpc.BudgetServiceStub(channel)
            for tenant, most in policies.items():
                policy = tenants_pb2.TenantPolicy(max_outstanding=5_000, max_leased=most, retention_ms=86_400_000)
                await tenants.SetTenantPolicy(tenants_pb2.SetTenantPolicyRequest(tenant_id=tenant, policy=policy), timeout=30)
            connection = await asyncpg.connect(self.postgres.dsn())
            await connection.execute("UPDATE tenure.tenant SET retention_ms = 1 WHERE tenant_id = 'delta'")
            await connection.close()
            limits = types_pb2.BudgetAmounts(tokens=10_000)
            budget = budgets_pb2.BudgetPolicy(limits=limits, window_ms=5_000, recovery_ms=2_000)
            await budgets.SetBudgetPolicy(budgets_pb2.SetBudgetPolicyRequest(tenant_id="gamma", policy=budget), timeout=30)


def descriptors(pid: int) -> int:
    """How many files a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def resident_bytes(pid: int) -> int:
    """How much memory a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
