"""Connections to the store: how often they may ping, how long they last, how much they may say of themselves.

Security checklist G8, G10.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc
import pytest
from structlog.testing import capture_logs

from store_service.client.channel import _OPTIONS, open_channel
from store_service.server import SERVER_OPTIONS
from tests.conftest import Stubs, started, store_on, stubs_on
from tests.store.builders import create, new_task

PATIENCE_SECONDS = 60
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
PING = b"\0\0\10\6\0\0\0\0\0" + b"12345678"


@pytest.mark.row("G8")
async def test_who_pings_too_often_is_hung_up_on_and_our_clients_do_not(store: Stubs) -> None:
    host, port = store.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(PREFACE)
    writer.write(PING * 10)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert b"too_many_pings" in await reader.read()
    writer.close()
    clients, servers = dict(_OPTIONS), dict(SERVER_OPTIONS)
    for allowed in ("grpc.http2.min_recv_ping_interval_without_data_ms", "grpc.http2.min_ping_interval_without_data_ms"):
        assert clients["grpc.keepalive_time_ms"] > servers[allowed]
    assert clients["grpc.keepalive_permit_without_calls"] == servers["grpc.keepalive_permit_without_calls"] == 1


@contextlib.asynccontextmanager
async def counting(port: int) -> AsyncIterator[tuple[int, list[asyncio.StreamWriter]]]:
    """A port that leads to another, and the connections that were made through it."""
    connections: list[asyncio.StreamWriter] = []
    ends: list[asyncio.StreamWriter] = []
    tasks: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            try:
                while data := await reader.read(65_536):
                    writer.write(data)
                    await writer.drain()
            finally:
                writer.close()

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        ends.append(far_writer)
        for pair in ((reader, far_writer), (far_reader, writer)):
            tasks.add(asyncio.create_task(pump(*pair)))

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        tasks.add(asyncio.create_task(lead(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], connections
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in (*connections, *ends):
            writer.close()


@pytest.mark.row("G8")
async def test_a_connection_that_is_old_is_replaced_and_no_call_notices(dsn: str) -> None:
    async with (
        started(store_on(dsn, max_connection_age_seconds=1)) as running,
        counting(running.port) as (port, connections),
        open_channel(f"127.0.0.1:{port}") as channel,
    ):
        stubs = stubs_on(channel, address="", admin_port=0)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(connections) < 3:
                await create(stubs)


@pytest.mark.row("G10")
async def test_metadata_is_bounded_and_nothing_of_it_is_logged(store: Stubs) -> None:
    with capture_logs() as lines:
        given = (("authorization", "Bearer canary"), ("canary-bin", b"\0canary"), ("traceparent", "canary"))
        await store.tasks.CreateTask(new_task(), metadata=given)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await store.tasks.CreateTask(new_task(), metadata=(("large", "x" * 20_000),))
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert [line["method"] for line in lines if line["event"] == "call"] == ["CreateTask"], "it came to no method"
    assert "canary" not in repr(lines)
