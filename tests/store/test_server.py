"""How a store starts, and what is left of one that cannot."""

import asyncio
import contextlib
import socket
import struct
import urllib.request
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import grpc
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from store_service import server
from store_service.client import StoreError, TaskStore
from store_service.config import Config
from store_service.db.migrate import SchemaError
from store_service.model.refusals import Refusal
from store_service.server import SERVICE_NAMES, Store
from tests.conftest import Stubs, started
from tests.store.builders import until

CONNECTED = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'tenure-%'"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize(("field", "text"), [("dsn", "garbage"), ("dsn", "http://db/x"), ("pooled_dsn", "garbage")])
async def test_an_address_that_is_none_is_not_waited_for(dsn: str, field: str, text: str) -> None:
    settings: dict[str, Any] = {"dsn": dsn, "port": 0, "admin_port": 0, "allow_test_clock": True, field: text}
    with pytest.raises(ValueError, match="invalid DSN"):
        await Store(Config(**settings)).start_when_possible()


@pytest.mark.parametrize("host", ["nobody.invalid", "127.0.0.1:1"])
async def test_a_database_that_is_not_reached_is_tried_again_until_its_time_is_up(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter([0.0, server.START_SECONDS, server.START_SECONDS + 1])
    monkeypatch.setattr(server, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    monkeypatch.setattr(server, "WAIT_SECONDS", 0)
    with structlog.testing.capture_logs() as logs, pytest.raises(ConnectionError) as refused:
        await Store(Config(dsn=f"postgresql://tenure@{host}/tenure", port=0, admin_port=0)).start_when_possible()
    assert logs == [{"event": "waiting_for_database", "log_level": "warning", "error": str(refused.value)}]


@pytest.mark.direct("PgBouncer keeps its own connections")
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
    async with started(Store(config)):
        assert urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/livez", timeout=10).status == 200


class Sparing:
    """A way to Postgres on which only so many connections are let through; the others are told that there are too many."""

    def __init__(self, dsn: str) -> None:
        self._upstream = urlsplit(dsn)
        self.left = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            self.left -= 1
            if self.left < 0:
                await reader.read(4096)
                said = b"SFATAL\0VFATAL\0C53300\0Mtoo many clients already\0\0"
                writer.write(b"E" + struct.pack("!I", len(said) + 4) + said)
                return
            back, forth = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
            with contextlib.closing(forth):
                await asyncio.wait(
                    [asyncio.create_task(self._pass(reader, forth)), asyncio.create_task(self._pass(back, writer))]
                )

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(1 << 16):
                target.write(data)
            target.close()


@pytest.mark.direct("the way to Postgres is the test's own")
async def test_a_store_that_finds_no_connection_free_says_so_and_may_be_started_again(dsn: str) -> None:
    way = Sparing(dsn)
    server = await asyncio.start_server(way.serve, "127.0.0.1", 0)
    address = urlsplit(dsn)
    through = address._replace(netloc=f"{address.username}:{address.password}@127.0.0.1:{server.sockets[0].getsockname()[1]}")
    config = Config(
        dsn=urlunsplit(through) + "?sslmode=disable", port=0, admin_port=0, allow_test_clock=True, drain_seconds=2, cleanup=True
    )  # fmt: skip
    store = Store(config)
    for way.left in range(5):  # one asks for the schema, two are for cleaning up, two for calls
        with pytest.raises(Refusal):
            await store.start()
    way.left = 100
    await store.start()
    await store.stop()
    server.close()


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
