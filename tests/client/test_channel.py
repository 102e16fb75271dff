"""How a client is connected where there are several stores."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias, cast

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from taskstore.v1 import tasks_pb2, tasks_pb2_grpc, types_pb2

from store_service.client.channel import HEALTH_OF, open_channel

PATIENCE_SECONDS = 30
Stub: TypeAlias = "tasks_pb2_grpc.TaskServiceAsyncStub"


class Counting:
    """A store that counts what comes to it."""

    def __init__(self) -> None:
        self.calls = 0
        self.health = health.aio.HealthServicer()

    def serve(self, server: grpc.aio.Server) -> None:
        """Answers GetTask, with any task."""
        answer = grpc.unary_unary_rpc_method_handler(
            self._count,
            request_deserializer=tasks_pb2.GetTaskRequest.FromString,
            response_serializer=types_pb2.Task.SerializeToString,
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(HEALTH_OF, {"GetTask": answer}),))
        health_pb2_grpc.add_HealthServicer_to_server(self.health, server)

    async def _count(self, request: tasks_pb2.GetTaskRequest, context: Any) -> types_pb2.Task:
        self.calls += 1
        return types_pb2.Task()


@contextlib.asynccontextmanager
async def serving(counting: Counting, port: int = 0, *, host: str = "127.0.0.1") -> AsyncIterator[int]:
    server = grpc.aio.server()
    counting.serve(server)
    await counting.health.set(HEALTH_OF, health_pb2.HealthCheckResponse.SERVING)
    port = server.add_insecure_port(f"{host}:{port}")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(5)


@pytest.fixture
async def stores() -> AsyncIterator[tuple[Counting, Counting, Stub]]:
    """Two stores behind one channel."""
    one, other = Counting(), Counting()
    async with (
        serving(one) as first,
        serving(other) as second,
        open_channel(f"ipv4:127.0.0.1:{first},127.0.0.1:{second}") as channel,
    ):
        yield one, other, tasks_pb2_grpc.TaskServiceStub(channel)


class Names(asyncio.DatagramProtocol):
    """A DNS server that answers every question with one address, and counts."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.asked = 0
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, sender: tuple[str | Any, int]) -> None:
        self.asked += 1
        question = data[12 : data.index(b"\0", 12) + 5]
        is_address = question[-4:-2] == b"\0\x01"
        answer = b"\xc0\x0c\0\x01\0\x01\0\0\0\0\0\x04" + socket.inet_aton(self.address) if is_address else b""
        flags = b"\x81\x80\0\x01" + (b"\0\x01" if is_address else b"\0\0") + bytes(4)
        assert self._transport is not None
        self._transport.sendto(data[:2] + flags + question + answer, sender)


async def call_until(stub: Stub, done: Callable[[], int]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not done():
            await stub.GetTask(tasks_pb2.GetTaskRequest(), wait_for_ready=True)


async def test_all_stores_take_turns(stores: tuple[Counting, Counting, Stub]) -> None:
    one, other, stub = stores
    await call_until(stub, lambda: min(one.calls, other.calls))
    before = one.calls, other.calls
    for _ in range(20):
        await stub.GetTask(tasks_pb2.GetTaskRequest())
    assert (one.calls - before[0], other.calls - before[1]) == (10, 10)


async def test_a_store_that_says_it_is_not_serving_gets_no_more_calls_and_others_get_them(
    stores: tuple[Counting, Counting, Stub],
) -> None:
    one, other, stub = stores
    await call_until(stub, lambda: min(one.calls, other.calls))
    await one.health.set(HEALTH_OF, health_pb2.HealthCheckResponse.NOT_SERVING)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            before = one.calls
            for _ in range(20):
                await stub.GetTask(tasks_pb2.GetTaskRequest())
            if one.calls == before:
                break
    await one.health.set(HEALTH_OF, health_pb2.HealthCheckResponse.SERVING)
    had = one.calls
    await call_until(stub, lambda: one.calls > had)


async def test_a_store_that_took_the_place_of_another_is_found_by_its_name_within_seconds() -> None:
    loop = asyncio.get_running_loop()
    transport, names = await loop.create_datagram_endpoint(lambda: Names("127.0.0.1"), local_addr=("127.0.0.1", 0))
    resolver = transport.get_extra_info("sockname")[1]
    async with contextlib.AsyncExitStack() as ending:
        ending.callback(transport.close)
        one, other = Counting(), Counting()
        first = contextlib.AsyncExitStack()
        port = await first.enter_async_context(serving(one))
        channel = await ending.enter_async_context(open_channel(f"dns://127.0.0.1:{resolver}/store.test:{port}"))
        stub: Stub = tasks_pb2_grpc.TaskServiceStub(channel)
        await call_until(stub, lambda: one.calls)
        await first.aclose()
        calling = asyncio.create_task(call_until(stub, lambda: other.calls))
        names.asked = 0
        async with asyncio.timeout(PATIENCE_SECONDS):  # by default it would ask twice in that time
            while names.asked < 6:
                await asyncio.sleep(0.05)
        names.address = "127.0.0.2"
        await ending.enter_async_context(serving(other, port, host="127.0.0.2"))
        await calling
