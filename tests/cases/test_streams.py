"""Trials 13, 14 and 59 to 66: connections, streams and probes of a pair of processes."""

import asyncio
import contextlib
import itertools
import json
import re
import time
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import aiohttp
import grpc
import pytest
from taskstore.v1 import types_pb2

from store_service.client import Context
from tests.bridge.client import Client, headers_for, meta
from tests.bridge.listening import listening
from tests.cases.conftest import ALL, ROUTES
from tests.cases.work import PATIENCE_SECONDS, create, ended, shown, working
from tests.client.fake_store import outcomes
from tests.conftest import stubs_on
from tests.pair import Pair, told_at
from tests.store.builders import assert_lease_lost, complete

MIB = 1024 * 1024
UNKNOWN = "00000000-0000-4000-8000-000000000000"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A pair of processes."""
    folder = tmp_path_factory.mktemp("cases")
    routes = folder / "routes.yaml"
    routes.write_text(ROUTES)
    settings = {"TENURE_BRIDGE_STREAMS_PER_PRINCIPAL": "1000", "TENURE_LOG_LEVEL": "warning"}
    with Pair(folder, routes=routes, durable=False, bridge_settings=settings) as pair:
        yield pair


def port_of(pair: Pair) -> int:
    """The port of MCP."""
    return int(pair.url.rpartition(":")[2].partition("/")[0])


@pytest.fixture
async def user(pair: Pair) -> AsyncIterator[Client]:
    """A client of its bridge."""
    async with aiohttp.ClientSession() as session:
        yield Client(session, port_of(pair))


def resident_bytes(pair: Pair) -> int:
    return int(pair.figure("process_resident_memory_bytes"))


def zeros(kind: str) -> bytes:
    """A gibibyte of zeros, packed, or as much of it as fits into a body."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31 if kind == "gzip" else 15)
    chunk = bytes(16 * MIB)
    return b"".join([*(packer.compress(chunk) for _ in range(64)), packer.flush()])


async def raw(port: int, head: str, chunks: Iterable[bytes]) -> bytes:
    """The first line of the answer to a request that is sent as it is, for as long as it is taken; nothing after a reset."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode())
    answer = asyncio.create_task(reader.readline())
    line = b""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(PATIENCE_SECONDS):
            for chunk in chunks:
                if answer.done():
                    break
                writer.write(chunk)
                await writer.drain()
            line = await answer
    await asyncio.gather(answer, return_exceptions=True)
    writer.close()
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    return line


def head_of(**more: Any) -> str:
    fields = {
        **headers_for("server/discover"),
        "Host": "localhost",
        **{key.replace("_", "-"): value for key, value in more.items()},
    }
    return "POST /mcp HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items()) + "\r\n"


async def test_13_bodies_are_measured_and_not_believed(pair: Pair, user: Client) -> None:
    port = port_of(pair)
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": meta()}}).encode()
    await user.send(body + b" " * (MIB - len(body)), headers_for("server/discover"))
    before = resident_bytes(pair)
    piece = b"10000\r\n" + b" " * 65536 + b"\r\n"
    for _ in range(15):
        assert b" 413 " in await raw(port, head_of(Transfer_Encoding="chunked"), [piece] * 160)
        assert b" 413 " in await raw(port, head_of(Content_Length="10485760"), [b" " * 65536] * 160)
        assert b" 400 " in await raw(port, head_of(Content_Length="10"), [b" " * 10])
        # What is beyond the length that was told is no part of the request, and no request either.
        line = await raw(port, head_of(Content_Length="10"), [b" " * 65536] * 160)
        assert line == b"" or b" 400 " in line
    for size, status in ((MIB, 200), (MIB + MIB // 4, 200), (MIB + MIB // 4 + 1, 413)):
        answer = await user.send(body + b" " * (size - len(body)), headers_for("server/discover"))
        assert answer.status == status
    assert resident_bytes(pair) - before < 16 * MIB


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "identity, gzip"])
async def test_14_a_packed_body_is_refused_as_it_is(pair: Pair, user: Client, encoding: str) -> None:
    bomb = zeros("gzip" if "gzip" in encoding else "deflate")[: MIB + 1000]
    await user.send(bomb, headers_for("server/discover", Content_Encoding=encoding))
    before = resident_bytes(pair)
    for _ in range(5):
        answer = await user.send(bomb, headers_for("server/discover", Content_Encoding=encoding))
        assert answer.status == 415
    assert resident_bytes(pair) - before < 5 * MIB


async def buffering_proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, upstream: int, idle: float) -> None:
    """Passes on, as some proxies do: an answer's header only with what follows it, and nothing after a silence."""
    there, back = await asyncio.open_connection("127.0.0.1", upstream)

    async def requests() -> None:
        while data := await reader.read(65536):
            back.write(data)
        back.close()

    passing = asyncio.create_task(requests())
    try:
        async with asyncio.timeout(idle):
            head = await there.readuntil(b"\r\n\r\n")
            head += await there.read(65536)
        writer.write(head)
        while True:
            async with asyncio.timeout(idle):
                data = await there.read(65536)
            if not data:
                break
            writer.write(data)
            await writer.drain()
    except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        passing.cancel()
        writer.close()
        back.close()


@pytest.mark.timeout(900)
async def test_63_a_silent_stream_passes_what_cuts_and_holds_back(pair: Pair, user: Client) -> None:
    silence_seconds, comments = (600, 39) if ALL else (18, 1)
    task_id = (await user.call("work", tasks=True)).result["taskId"]
    server = await asyncio.start_server(
        lambda reader, writer: buffering_proxy(reader, writer, upstream=port_of(pair), idle=30), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    async with listening(port, task_id) as stream:
        assert (await stream.frame())["method"] == "notifications/subscriptions/acknowledged"
        assert (await stream.frame())["params"]["taskId"] == task_id
        heard, until = [time.monotonic()], time.monotonic() + silence_seconds
        while time.monotonic() < until:
            assert await stream.comment() == b": keep-alive"
            heard.append(time.monotonic())
        assert len(heard) > comments
        assert max(later - earlier for earlier, later in itertools.pairwise(heard)) < 25
    async with listening(port, task_id) as again:  # after a cut, what stands comes at once
        await again.frame()
        assert (await again.frame())["params"]["status"] == "working"
    server.close()


@pytest.mark.timeout(1800)
async def test_65_streams_whose_clients_are_gone_leave_nothing_behind(pair: Pair, user: Client) -> None:
    count = 10_000 if ALL else 90
    tasks = [(await user.call("work", tasks=True)).result["taskId"] for _ in range(3)]

    async def one(number: int) -> None:
        async with listening(port_of(pair), tasks[number % 3]) as stream:
            await stream.frame()
            if number % 3 == 0:
                stream.reset()
            elif number % 3 == 1:
                stream.writer.write_eof()
            else:
                stream.writer.close()

    async def descriptors() -> int:
        return int(await asyncio.to_thread(pair.figure, "process_open_fds"))

    await asyncio.gather(*map(one, range(30)))
    before = await descriptors()
    for first in range(0, count, 30):
        await asyncio.gather(*map(one, range(first, first + 30)))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await asyncio.to_thread(pair.figure, "tenure_bridge_subscriptions") or await descriptors() > before + 2:
            await asyncio.sleep(0.1)
    assert "tenure_store_watched_tasks 0.0" in pair.figures()


async def test_58_what_was_refused_is_not_kept(pair: Pair) -> None:
    def resident() -> int:
        return int(float(re.findall(r"^process_resident_memory_bytes (\S+)$", pair.figures(), re.MULTILINE)[0]))

    lost = types_pb2.Lease(tenant_id="dev", task_id=UNKNOWN, worker_id="w", token=1, epoch=1)
    limits = [("grpc.max_send_message_length", 6 * MIB)]
    async with grpc.aio.insecure_channel(pair.store_address, options=limits) as channel:
        leases = stubs_on(channel, address=pair.store_address, admin_port=0).leases
        seen = []
        for _ in range(3):
            for _ in range(20):
                await assert_lease_lost(leases.CompleteTask(complete(lost, b'"' + b"x" * (4 * MIB - 2) + b'"')))
            seen.append(await asyncio.to_thread(resident))
    assert max(seen) - seen[0] < 10 * 4 * MIB, f"forty payloads were refused since: {seen}"


@pytest.mark.timeout(900)
async def test_59_a_worker_that_waits_long_for_work_is_not_hung_up_on(pair: Pair, user: Client) -> None:
    async def work(_ctx: Context, _args: dict[str, Any]) -> str:
        return "done"

    async with working(pair.store_address, work, lease_seconds=6) as worker:  # as it is shipped
        await asyncio.sleep(600 if ALL else 3)
        task_id = await create(user)
        assert (await shown(user, task_id, "completed"))["result"]["content"][0]["text"] == "done"
        assert worker.registry.get_sample_value("tenure_worker_lease_calls_total", {"outcome": "error"}) == 0
        assert worker.registry.get_sample_value("tenure_worker_heartbeat_failures_total") == 0


@pytest.mark.timeout(900)
async def test_61_work_may_start_processes_while_its_lease_is_kept(pair: Pair, user: Client) -> None:
    worker = pair.start_worker("spreading", "tests.cases.worker", "5", "2")
    async with grpc.aio.insecure_channel(pair.store_address) as channel:
        store = stubs_on(channel, address=pair.store_address, admin_port=0)
        tasks = [await create(user, {"processes": 5_000 if ALL else 150}, tool="spread") for _ in range(2)]
        for task_id in tasks:
            task = await ended(store, task_id, seconds=600)
            assert (task.attempts, task.crashes) == (1, 0)
            assert json.loads(task.result.data)["structuredContent"] == {"result": [0, 1, 2]}
    assert worker.stop() == 0


async def looked_at(port: int, path: str) -> int:
    """The status that a probe gets."""
    return (await asyncio.to_thread(told_at, port, path, within_seconds=5))[0]


@pytest.mark.timeout(900)
async def test_66_a_database_that_is_away_ends_no_process_and_costs_no_attempt(pair: Pair, user: Client) -> None:
    away_seconds = 180 if ALL else 6
    go = asyncio.Event()

    async def work(ctx: Context, _args: dict[str, Any]) -> str:
        await go.wait()
        return str(ctx.attempt)

    async with working(pair.store_address, work, lease_seconds=2 * away_seconds + 60, admin_port=0) as worker:
        task_id = await create(user)
        assert worker.admin_port is not None
        store, bridge, mine = (*pair.admin_ports, worker.admin_port)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while [await looked_at(one, "/readyz") for one in (store, bridge, mine)] != [200, 200, 200]:
                await asyncio.sleep(0.05)
        await asyncio.to_thread(pair.postgres.stop)
        stopped_at, unready_after = time.monotonic(), 0.0
        while time.monotonic() < stopped_at + away_seconds or not unready_after:
            assert [await looked_at(one, "/livez") for one in (store, bridge, mine)] == [200, 200, 200]
            if not unready_after and await looked_at(store, "/readyz") == 503:
                unready_after = time.monotonic() - stopped_at
            await asyncio.sleep(0.25)
        answer = await user.call("work", tasks=True)
        assert (answer.status, answer.code) == (503, 50300)
        await asyncio.to_thread(pair.postgres.start)
        back_at = time.monotonic()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await looked_at(store, "/readyz") != 200:
                await asyncio.sleep(0.1)
        ready_after = time.monotonic() - back_at
        go.set()
        assert (await shown(user, task_id, "completed"))["result"]["content"][0]["text"] == "1"
    assert outcomes(worker) == {"completed": 1}
    assert {process.name: process._popen.poll() for process in (pair.store, pair.bridge)} == {"store": None, "bridge": None}
    assert not ALL or (unready_after < 5 and ready_after < 10), (unready_after, ready_after)
