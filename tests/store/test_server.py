"""How a store starts, and what is left of one that cannot."""

import socket
import urllib.request

import asyncpg
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from store_service.client import StoreError, TaskStore
from store_service.config import Config
from store_service.db.migrate import SchemaError
from store_service.server import SERVICE_NAMES, Store
from tests.conftest import Stubs
from tests.store.builders import until

CONNECTED = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'tenure-%'"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def test_a_store_that_cannot_start_leaves_nothing_behind(dsn: str, database: asyncpg.Connection) -> None:
    port, admin_port = free_port(), free_port()
    config = Config(dsn=dsn, port=port, admin_port=admin_port, allow_test_clock=True, drain_seconds=2)
    await database.execute("UPDATE public.tenure_migration SET number = -number")
    with pytest.raises(SchemaError):
        await Store(config).start()
    await database.execute("UPDATE public.tenure_migration SET number = -number")
    for taken, error in ((port, RuntimeError), (admin_port, OSError)):
        with socket.create_server(("127.0.0.1", taken)), pytest.raises(error):
            await Store(config).start()

        async def nobody_is_connected() -> bool:
            return bool(await database.fetchval(CONNECTED) == 0)

        await until(nobody_is_connected, "its connections are closed")
    running = Store(config)
    await running.start()
    assert urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/livez", timeout=10).status == 200
    await running.stop()


async def test_health_is_told_by_service_without_asking_the_database(store: Stubs, database: asyncpg.Connection) -> None:
    await database.execute("ALTER TABLE tenure.task RENAME TO elsewhere")
    async with grpc.aio.insecure_channel(store.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", *SERVICE_NAMES):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
    async with TaskStore.connect(store.address) as client:
        assert await client.check()
    await database.execute("ALTER TABLE tenure.elsewhere RENAME TO task")


async def test_a_client_learns_that_no_store_is_there() -> None:
    async with TaskStore.connect(f"127.0.0.1:{free_port()}") as client:
        with pytest.raises(StoreError) as raised:
            await client.check(timeout_seconds=0.5)
        assert raised.value.is_transient
