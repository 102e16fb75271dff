"""The wiring of the store: what it is made of, how it starts, and how it stops."""

import asyncio
import contextlib
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from taskstore.v1 import (
    budgets_pb2_grpc,
    leases_pb2_grpc,
    retention_pb2_grpc,
    tasks_pb2_grpc,
    tenants_pb2_grpc,
)

from store_service.archive import fault_points as archive_points
from store_service.archive.opening import open_destination
from store_service.config import Config
from store_service.db.audit import AuditRows
from store_service.db.batch import BatchMetrics
from store_service.db.budgets import BudgetRows
from store_service.db.chores import ChoreRows
from store_service.db.cleanup import CleanupRows
from store_service.db.diagnosis import read_snapshot_seconds
from store_service.db.explanations import ExplanationRows
from store_service.db.holds import HoldRows
from store_service.db.leases import LeaseRows
from store_service.db.migrate import SchemaError, check_schema
from store_service.db.pool import Database, open_database
from store_service.db.purges import PurgeRows
from store_service.db.redrives import RedriveRows
from store_service.db.retention import RetentionRows
from store_service.db.tasks import TaskRows
from store_service.db.tenants import TenantRows
from store_service.db.waits import WaitRows
from store_service.db.wakeups import Wakeups
from store_service.fault_points import FaultPoints
from store_service.model.limits import MESSAGE_BYTES
from store_service.model.refusals import Refusal
from store_service.operations.audit import Audit
from store_service.operations.budget_figures import BudgetFigures
from store_service.operations.budgets import Budgets
from store_service.operations.chores import Chores
from store_service.operations.cleanup import PRINCIPAL, Cleanup, CleanupPlan
from store_service.operations.explanations import Explanations, Registrations
from store_service.operations.exports import Exports
from store_service.operations.holds import Holds
from store_service.operations.leases import Leases
from store_service.operations.purges import Purges
from store_service.operations.redrives import Redrives
from store_service.operations.retention import Retention
from store_service.operations.tasks import Tasks
from store_service.operations.tenants import Tenants
from store_service.operations.waits import Waits
from store_service.operations.watches import Watches
from store_service.rpc import fault_points as reply_points
from store_service.rpc.budgets import BudgetService
from store_service.rpc.calls import Calls
from store_service.rpc.encryption import server_credentials
from store_service.rpc.governance import GovernanceService
from store_service.rpc.guard import Authentication, CertificateAuthentication, Guard
from store_service.rpc.leases import LeaseService
from store_service.rpc.policy import read_policy
from store_service.rpc.retention import RetentionService
from store_service.rpc.rules import SERVICES, check_rules
from store_service.rpc.tasks import TaskService
from store_service.rpc.tenants import TenantService
from store_service.rpc.tokens import TokenAuthentication, read_keys
from store_service.rpc.traced import Traced
from store_service.telemetry import AdminServer, open_traces
from store_service.watched_file import WatchedFile

if TYPE_CHECKING:
    from store_service.telemetry.traces import Traces

SERVER_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.absolute_max_metadata_size", 16 * 1024),
    ("grpc.max_concurrent_streams", 1_000),  # more wait at the client; as many calls as a caller may have under way
    # Clients ping every 30 s, also without calls; the server allows what is a little faster than that.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 20_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.so_reuseport", 0),
]

START_SECONDS = 30.0
"""How long a database that cannot be reached yet is tried, unless the store is to wait for one however long that takes."""
WAIT_SECONDS = 1.0
"""Between two tries."""
SERVICE_NAMES = [service.full_name for service in SERVICES.values()]


@dataclass(slots=True)
class Parts:
    """What a store is made of, once it is put together."""

    databases: list[Database]
    wakeups: Wakeups
    chores: Chores
    leases: Leases
    watches: Watches
    cleanup: Cleanup | None
    server: grpc.aio.Server
    health: health.aio.HealthServicer
    port: int


class Store:
    """One running store: `start`, then `port`, then `stop`."""

    def __init__(self, config: Config, *, traces: "Traces | None" = None) -> None:
        self._config = config
        self._points = FaultPoints(Path(config.fault_points)) if config.fault_points else None
        self._traces = open_traces("tenure-store") if traces is None and config.traces else traces
        self._registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._registry)
        self._admin = AdminServer(
            host=config.admin_host, port=config.admin_port, registry=self._registry, ready=self._why_not_ready
        )
        self._parts: Parts | None = None
        self._waits_for = "nothing was tried yet"
        self._draining = False

    @property
    def port(self) -> int:
        """The port that gRPC listens on."""
        assert self._parts is not None, "the store is not started"
        return self._parts.port

    @property
    def admin_port(self) -> int:
        """The port of probes and metrics."""
        return self._admin.port

    async def start_when_possible(self) -> None:
        """Starts as soon as there is a database: tries one that cannot be reached for half a minute; or, where it is to wait,
        alive and not ready, however long it takes until there is one that it may run on. Raises what `start` does."""
        waits, until = self._config.wait_for_database, time.monotonic() + START_SECONDS
        if waits:
            self._admin.start()
        while True:
            try:
                await self.start()
                return
            except (SchemaError, Refusal, ConnectionError) as error:
                if not waits and (isinstance(error, SchemaError) or time.monotonic() > until):
                    raise
                if str(error) != self._waits_for:
                    structlog.get_logger().warning("waiting_for_database", error=str(error))
                self._waits_for = str(error)
            await asyncio.sleep(WAIT_SECONDS)

    async def start(self) -> None:
        """Checks the schema, puts the parts together, and serves.

        Raises SchemaError when the schema is not one it may run on, Refusal or ConnectionError when the database cannot be
        reached, ValueError when its address is none, OSError or RuntimeError when a port is taken. Then nothing of it is left.
        """
        config = self._config
        await check_schema(config.dsn, allow_test_clock=config.allow_test_clock)
        async with contextlib.AsyncExitStack() as started:
            databases, points = [], self._points
            address, is_shared = config.pooled_dsn or config.dsn, bool(config.pooled_dsn)
            open_pool = partial(open_database, address, is_shared=is_shared, points=points, traces=self._traces)
            if config.cleanup:  # connections of its own, so that it takes none from calls
                databases.append(await open_pool(size=config.cleanup_tenants_at_once, registry=CollectorRegistry()))
                started.push_async_callback(databases[0].close)
            # Last, as its figures are registered once: what cannot be reached is tried again by the same store.
            databases.insert(0, await open_pool(size=config.pool_size, registry=self._registry))
            started.push_async_callback(databases[0].close)
            parts = self._put_together(databases)
            started.push_async_callback(parts.server.stop, grace=None)
            started.push_async_callback(parts.wakeups.stop)
            started.push_async_callback(parts.chores.stop)
            parts.wakeups.start()
            parts.chores.start()
            if parts.cleanup is not None:
                started.push_async_callback(parts.cleanup.stop, within_seconds=0)
                parts.cleanup.start()
            await parts.server.start()
            self._admin.start()
            started.pop_all()
        self._parts = parts
        for service in ("", *SERVICE_NAMES):
            await parts.health.set(service, health_pb2.HealthCheckResponse.SERVING)
        structlog.get_logger().info("store_started", port=parts.port, admin_port=self._admin.port)

    async def stop(self) -> None:
        """Drains: says that it is not serving, waits for load balancers, lets calls end, closes the pool."""
        assert self._parts is not None, "the store is not started"
        parts, self._draining = self._parts, True
        await parts.health.enter_graceful_shutdown()
        await asyncio.sleep(self._config.drain_pause_seconds)
        parts.leases.drain()
        parts.watches.drain()
        cleaning = asyncio.create_task(parts.cleanup.stop(within_seconds=self._config.drain_seconds)) if parts.cleanup else None
        await parts.server.stop(grace=self._config.drain_seconds)
        if cleaning is not None:
            await cleaning
        await parts.chores.stop()
        await parts.wakeups.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.drain_seconds):
                for database in parts.databases:
                    await database.close()
        self._admin.stop()
        structlog.get_logger().info("store_stopped")

    def _put_together(self, databases: list[Database]) -> Parts:
        config, registry, points, database = self._config, self._registry, self._points, databases[0]
        grace_ms = int(config.cancel_grace_seconds * 1000)
        batches = BatchMetrics(registry, batching=config.batching, points=points, traces=self._traces)
        wakeups = Wakeups(config.dsn, registry=registry, points=points)
        rows = TaskRows(database)
        budget_rows = BudgetRows(database)
        explanation_rows = ExplanationRows(database)
        registrations = Registrations(explanation_rows)
        chores = Chores(
            ChoreRows(database),
            wakeups,
            BudgetFigures(budget_rows, registry=registry),
            registrations,
            snapshot_seconds=partial(read_snapshot_seconds, config.dsn),
            cancel_grace_ms=grace_ms,
            max_crashes=config.max_crashes,
            registry=registry,
        )
        tasks = Tasks(rows, wakeups, batches, cancel_grace_ms=grace_ms)
        leases = Leases(LeaseRows(database), rows, chores, wakeups, batches, registrations=registrations, registry=registry)
        watches = Watches(rows, wakeups, registry)

        check_rules()
        audit = Audit(AuditRows(database))
        guards = _guards(config, audit)
        age_ms = round(config.max_connection_age_seconds * 1000)
        options = [*SERVER_OPTIONS, ("grpc.max_connection_age_ms", age_ms), ("grpc.max_connection_age_grace_ms", 60_000)]
        traced = [] if self._traces is None else [Traced(self._traces)]
        reaching = [] if points is None else [reply_points.Reaching(points)]
        server = grpc.aio.server(interceptors=[*traced, *reaching, Calls(registry), *guards], options=options)
        # With each call it would wait anew for the next one of each method that is registered, instead of for any.
        server.add_registered_method_handlers = lambda *_: None  # type: ignore[method-assign]
        servicer = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        waits = Waits(WaitRows(database), tasks, wakeups, batches, registry=registry)
        budgets = Budgets(budget_rows)
        explanations = Explanations(explanation_rows, registrations)
        tasks_pb2_grpc.add_TaskServiceServicer_to_server(TaskService(tasks, waits, watches, explanations), server)
        leases_pb2_grpc.add_LeaseServiceServicer_to_server(LeaseService(leases, waits, budgets), server)
        tenants_pb2_grpc.add_TenantServiceServicer_to_server(
            TenantService(
                Tenants(TenantRows(database), wakeups), Redrives(RedriveRows(database), wakeups), registrations, audit
            ),
            server,
        )
        budgets_pb2_grpc.add_BudgetServiceServicer_to_server(BudgetService(budgets), server)
        retention = Retention(RetentionRows(database), CleanupRows(database))
        retention_pb2_grpc.add_RetentionServiceServicer_to_server(RetentionService(retention, waits), server)
        governance = GovernanceService(Holds(HoldRows(database)), Purges(PurgeRows(database)))
        retention_pb2_grpc.add_GovernanceServiceServicer_to_server(governance, server)
        if config.reflection:
            reflection.enable_server_reflection((*SERVICE_NAMES, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        port = _listen(server, config)
        cleanup = _cleanup(config, databases[1], registry, points) if config.cleanup else None
        return Parts(databases, wakeups, chores, leases, watches, cleanup, server, servicer, port)

    def _why_not_ready(self) -> str | None:
        """Asks nobody: the chores ask the database once a second."""
        if self._draining:
            return "shutting down"
        if self._parts is None:
            return self._waits_for
        if not self._parts.chores.is_database_there():
            return "the database does not answer, or takes no writes"
        return None


def _cleanup(config: Config, database: Database, registry: CollectorRegistry, points: FaultPoints | None) -> Cleanup:
    plan = CleanupPlan(
        scan_seconds=config.cleanup_scan_seconds,
        lease_ms=round(config.cleanup_lease_seconds * 1000),
        tenants_at_once=config.cleanup_tenants_at_once,
        batch=config.cleanup_batch,
        batches_per_claim=config.cleanup_batches_per_claim,
        shards=config.cleanup_shards,
        shard=config.cleanup_shard,
    )
    retention, exports = Retention(RetentionRows(database), CleanupRows(database)), None
    if (archive := config.archive_settings()) is not None:
        destination = open_destination(archive)
        if points is not None:
            destination = archive_points.Reaching(points, destination)
        exports = Exports(retention, Purges(PurgeRows(database)), destination, principal=PRINCIPAL, registry=registry)
    return Cleanup(retention, plan, exports=exports, registry=registry)


def _guards(config: Config, audit: Audit) -> list[Guard]:
    """Who asks callers who they are; none where nobody is asked."""
    if not config.policy:
        return []
    policy = WatchedFile(Path(config.policy), read=read_policy)
    authentication: Authentication = CertificateAuthentication(policy.current)
    if not config.tls_client_ca:
        keys = WatchedFile(Path(config.token_keys), read=read_keys)
        authentication = TokenAuthentication(
            keys.current, policy.current, issuer=config.token_issuer, audience=config.token_audience
        )
    return [Guard(authentication, policy.is_read, audit)]


def _listen(server: grpc.aio.Server, config: Config) -> int:
    address = f"{_bracketed(config.host)}:{config.port}"
    if not config.tls_certificate:
        return server.add_insecure_port(address)
    ca = Path(config.tls_client_ca) if config.tls_client_ca else None
    return server.add_secure_port(address, server_credentials(Path(config.tls_certificate), Path(config.tls_key), ca))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
