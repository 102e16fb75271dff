"""What the tests stand on: a real Postgres, a database of its own for each test, a store that really listens."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import grpc
import pytest
from hypothesis import HealthCheck, settings
from taskstore.v1 import (
    budgets_pb2_grpc,
    leases_pb2_grpc,
    retention_pb2_grpc,
    tasks_pb2,
    tasks_pb2_grpc,
    tenants_pb2_grpc,
    types_pb2,
)

from mcp_bridge.app import Bridge
from mcp_bridge.config import Config as BridgeConfig
from store_service.config import Config
from store_service.db import pool
from store_service.db.migrate import migrate
from store_service.embedded import EmbeddedPostgres
from store_service.model.limits import MESSAGE_BYTES
from store_service.server import Store
from tests.bridge.client import Client, client_of
from tests.databases import Databases, database_at
from tests.pair import free_ports
from tests.pgbouncer import PgBouncer
from tests.unbatched import sitecustomize

Server = TypeVar("Server", Store, Bridge)

MOVABLE_CLOCK = """
CREATE SCHEMA clock;
CREATE TABLE clock.shift (by interval NOT NULL);
INSERT INTO clock.shift VALUES ('0');
GRANT USAGE ON SCHEMA clock TO PUBLIC;
GRANT SELECT ON clock.shift TO PUBLIC;
CREATE OR REPLACE FUNCTION tenure.task_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS
  'SELECT clock_timestamp() + (SELECT by FROM clock.shift)';
"""

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    """What holds with batches holds without, and what holds at Postgres itself holds behind a PgBouncer."""
    parser.addoption("--without-batching", action="store_true", help="each call, and its statement, goes by itself")
    parser.addoption("--through-pgbouncer", action="store_true", help="stores reach Postgres through PgBouncer")


def pytest_configure(config: pytest.Config) -> None:
    """Turns batching off where it is asked for: here, and in every process that a test starts."""
    if config.getoption("--without-batching"):
        sitecustomize.turn_batching_off()
        others = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(sitecustomize.__file__).parent), others)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without batching leaves out what is about batching itself; behind PgBouncer, about the connections to Postgres."""
    for option, marker in (("--without-batching", "batching"), ("--through-pgbouncer", "direct")):
        if config.getoption(option):
            left_out = [item for item in items if item.get_closest_marker(marker)]
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """After a run that broke off nothing is known of the tests that had not run: `--last-failed` is all of them then."""
    cache = getattr(session.config, "cache", None)
    if exitstatus == pytest.ExitCode.INTERNAL_ERROR and cache is not None:
        cache.set("cache/lastfailed", {})


def pytest_sessionstart() -> None:
    """What a shell lets its background jobs ignore, the processes of the tests do not: some are interrupted by it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def unhurried() -> Iterator[None]:
    """No held call is late for want of time: a status and JSON do not become a stream unless a test wants it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mcp_bridge.methods.calls.LATE_SECONDS", 60.0)
        yield


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A Postgres with a migrated database, `template`, whose clock tests can move."""
    settings = {"max_connections": "300"}
    with EmbeddedPostgres(tmp_path_factory.mktemp("postgres"), durable=False, settings=settings) as server:
        asyncio.run(_make_template(server.dsn))
        yield server


@pytest.fixture(scope="session", autouse=True)
def pgbouncer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """With `--through-pgbouncer`, one in transaction mode between every store of the tests and its database."""
    if not request.config.getoption("--through-pgbouncer"):
        yield
        return
    dsn = request.getfixturevalue("postgres").dsn
    folder = tmp_path_factory.mktemp("pgbouncer")
    for each in (folder, *folder.parents[:2]):
        each.chmod(0o755)  # it runs as another account
    bouncer = PgBouncer(folder, dsn, port=free_ports(1)[0])

    async def through(dsn: str, **fields: Any) -> pool.Database:
        return await direct(bouncer.dsn(dsn), **{**fields, "is_shared": True})

    direct = pool.open_database
    asyncio.run(bouncer.start())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("store_service.server.open_database", through)
        yield
    bouncer.stop()


@pytest.fixture(scope="session")
def databases(postgres: EmbeddedPostgres) -> Databases:
    """The databases of this run."""
    return Databases(postgres.dsn)


@pytest.fixture
async def dsn(databases: Databases) -> AsyncIterator[str]:
    """A migrated database of the test's own."""
    dsn = await databases.take()
    yield dsn
    await databases.give_back(dsn)


@pytest.fixture
async def database(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection of the test's own to its database."""
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


class Clock:
    """The database's clock, which a test may move forward."""

    def __init__(self, database: asyncpg.Connection) -> None:
        self._database = database

    async def advance(self, *, seconds: float) -> None:
        """Makes it later for everyone."""
        await self._database.execute("UPDATE clock.shift SET by = by + $1::float8 * interval '1 s'", seconds)


@pytest.fixture
def clock(database: asyncpg.Connection) -> Clock:
    """The clock of the test's database."""
    return Clock(database)


@dataclass(frozen=True)
class Stubs:
    """The store's API, as any client sees it."""

    address: str
    admin_port: int
    tasks: "tasks_pb2_grpc.TaskServiceAsyncStub"
    leases: "leases_pb2_grpc.LeaseServiceAsyncStub"
    tenants: "tenants_pb2_grpc.TenantServiceAsyncStub"
    retention: "retention_pb2_grpc.RetentionServiceAsyncStub"
    governance: "retention_pb2_grpc.GovernanceServiceAsyncStub"
    budgets: "budgets_pb2_grpc.BudgetServiceAsyncStub"


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[Stubs]:
    """A store that serves the test's database, and its API."""
    async with serving(dsn, cancel_grace_seconds=30) as stubs:
        yield stubs


@contextlib.asynccontextmanager
async def serving(dsn: str, **settings: Any) -> AsyncIterator[Stubs]:
    """A store with these settings that serves a database, and its API."""
    async with started(store_on(dsn, **settings)) as running, open_stubs(running) as stubs:
        yield stubs


def store_on(dsn: str, **settings: Any) -> Store:
    """A store for a database, on ports that are free."""
    usual: dict[str, Any] = {"port": 0, "admin_port": 0, "allow_test_clock": True, "drain_seconds": 2}
    return Store(Config(dsn=dsn, **usual | settings))


def bridge_on(routes: Path, *, fake: Any = None, **settings: Any) -> Bridge:
    """A bridge with a route file, on ports that are free; over the store that is named, or one in memory."""
    usual: dict[str, Any] = {"port": 0, "admin_port": 0, "drain_seconds": 0}
    config = BridgeConfig(routes=str(routes), **usual | settings)
    return Bridge(config) if fake is None else Bridge(config, connect=lambda _: fake)


@contextlib.asynccontextmanager
async def started(server: Server) -> AsyncIterator[Server]:
    """A store or a bridge that runs until the end."""
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def open_stubs(running: Store) -> AsyncIterator[Stubs]:
    """The API of a store that runs."""
    address = f"127.0.0.1:{running.port}"
    limits = [("grpc.max_receive_message_length", MESSAGE_BYTES), ("grpc.max_send_message_length", MESSAGE_BYTES)]
    async with grpc.aio.insecure_channel(address, options=limits) as channel:
        yield stubs_on(channel, address=address, admin_port=running.admin_port)


def stubs_on(channel: grpc.aio.Channel, *, address: str, admin_port: int) -> Stubs:
    """The API, asked over this channel."""
    return Stubs(
        address=address,
        admin_port=admin_port,
        tasks=tasks_pb2_grpc.TaskServiceStub(channel),
        leases=leases_pb2_grpc.LeaseServiceStub(channel),
        tenants=tenants_pb2_grpc.TenantServiceStub(channel),
        retention=retention_pb2_grpc.RetentionServiceStub(channel),
        governance=retention_pb2_grpc.GovernanceServiceStub(channel),
        budgets=budgets_pb2_grpc.BudgetServiceStub(channel),
    )


@pytest.fixture
def routes(route_text: str, tmp_path: Path) -> Path:
    """The route file, of the text that the folder's tests name."""
    path = tmp_path / "routes.yaml"
    path.write_text(route_text)
    return path


@pytest.fixture
async def bridge(store: Stubs, routes: Path) -> AsyncIterator[Bridge]:
    """A bridge over the store."""
    async with started(bridge_on(routes, store=store.address)) as running:
        yield running


@pytest.fixture
async def user(bridge: Bridge) -> AsyncIterator[Client]:
    """A client of the bridge."""
    async with client_of(bridge) as client:
        yield client


async def snapshots(stubs: Stubs, tenant_id: str, task_id: str) -> AsyncIterator[types_pb2.Task]:
    """A task as it stands, then at each change, until it has ended."""
    wanted = tasks_pb2.WatchedTask(tenant_id=tenant_id, task_id=task_id)
    async for answer in stubs.tasks.WatchTasks(iter([tasks_pb2.WatchTasksRequest(add=[wanted])])):
        for item in answer.items:
            yield item.task


async def _make_template(dsn: str) -> None:
    admin = await asyncpg.connect(dsn)
    await admin.execute("CREATE DATABASE template")
    await admin.close()
    template = database_at(dsn, "template")
    await migrate(template)
    connection = await asyncpg.connect(template)
    await connection.execute(MOVABLE_CLOCK)
    await connection.close()
