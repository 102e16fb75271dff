"""How a client is connected where there are several stores."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from taskstore.v1 import tasks_pb2, tasks_pb2_grpc, types_pb2

from store_service.client.channel import HEALTH_OF, open_channel

PATIENCE_SECONDS = 30


class Counting(tasks_pb2_grpc.TaskServiceServicer):
    """A store that counts what comes to it."""

    def __init__(self) -> None:
        self.calls = 0
        self.health = health.aio.HealthServicer()

    async def GetTask(self, request: tasks_pb2.GetTaskRequest, context: Any) -> types_pb2.Task:  # noqa: N802 (gRPC's name)
        """Any task."""
        self.calls += 1
        return types_pb2.Task()


@contextlib.asynccontextmanager
async def serving(counting: Counting) -> AsyncIterator[int]:
    server = grpc.aio.server()
    tasks_pb2_grpc.add_TaskServiceServicer_to_server(counting, server)
    health_pb2_grpc.add_HealthServicer_to_server(counting.health, server)
    await counting.health.set(HEALTH_OF, health_pb2.HealthCheckResponse.SERVING)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


@pytest.fixture
async def stores() -> AsyncIterator[tuple[Counting, Counting, tasks_pb2_grpc.TaskServiceStub]]:
    """Two stores behind one channel."""
    one, other = Counting(), Counting()
    async with (
        serving(one) as first,
        serving(other) as second,
        open_channel(f"ipv4:127.0.0.1:{first},127.0.0.1:{second}") as channel,
    ):
        yield one, other, tasks_pb2_grpc.TaskServiceStub(channel)  # type: ignore[no-untyped-call]


async def call_until(stub: Any, done: Any) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not done():
            await stub.GetTask(tasks_pb2.GetTaskRequest(), wait_for_ready=True)


async def test_all_stores_take_turns(stores: tuple[Counting, Counting, tasks_pb2_grpc.TaskServiceStub]) -> None:
    one, other, stub = stores
    await call_until(stub, lambda: one.calls and other.calls)
    before = one.calls, other.calls
    for _ in range(20):
        await stub.GetTask(tasks_pb2.GetTaskRequest())
    assert (one.calls - before[0], other.calls - before[1]) == (10, 10)


async def test_a_store_that_says_it_is_not_serving_gets_no_more_calls_and_others_get_them(
    stores: tuple[Counting, Counting, tasks_pb2_grpc.TaskServiceStub],
) -> None:
    one, other, stub = stores
    await call_until(stub, lambda: one.calls and other.calls)
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
