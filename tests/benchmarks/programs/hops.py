"""The way of a held call with nothing in it: bare aiohttp, bare gRPC, one row that is written three times and read once.

python -m tests.benchmarks.programs.hops store PORT DSN
python -m tests.benchmarks.programs.hops worker STORE [PORT]
python -m tests.benchmarks.programs.hops bridge PORT STORE
"""

import asyncio
import json
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final

import asyncpg
import grpc
import grpc.aio
import uvloop
from aiohttp import web

SERVICE: Final = "bench.Hops"
_TABLE: Final = "CREATE TABLE IF NOT EXISTS bench_hop (id bigserial PRIMARY KEY, state text, input bytea, result bytea)"
_CREATE: Final = "INSERT INTO bench_hop (state, input) VALUES ('QUEUED', $1) RETURNING id"
_LEASE: Final = "UPDATE bench_hop SET state = 'LEASED' WHERE id = $1 RETURNING input"
_FINISH: Final = "UPDATE bench_hop SET state = 'COMPLETED', result = $2 WHERE id = $1"
_READ: Final = "SELECT result FROM bench_hop WHERE id = $1"
_RESULT: Final = b'{"jsonrpc":"2.0","id":1,"result":{"content":[]}}'


async def store(port: str, dsn: str) -> None:
    """Keeps rows; hands each that was created to who waits for one, and tells who waits for it that it ended."""
    pool = await asyncpg.create_pool(dsn, min_size=4, max_size=4)
    await pool.execute(_TABLE)
    created: asyncio.Queue[int] = asyncio.Queue()
    ended: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)

    async def create(data: bytes, _: Any) -> bytes:
        row = await pool.fetchval(_CREATE, data)
        created.put_nowait(row)
        return str(row).encode()

    async def lease(_: bytes, __: Any) -> bytes:
        row = await created.get()
        return b"%d %b" % (row, await pool.fetchval(_LEASE, row))

    async def finish(row: bytes, _: Any) -> bytes:
        await pool.execute(_FINISH, int(row), _RESULT)
        ended[int(row)].set()
        return b""

    async def watch(row: bytes, _: Any) -> bytes:
        await ended[int(row)].wait()
        del ended[int(row)]
        result: bytes = await pool.fetchval(_READ, int(row))
        return result

    methods: dict[str, Callable[[bytes, Any], Awaitable[bytes]]] = {
        "Create": create, "Lease": lease, "Finish": finish, "Watch": watch,
    }  # fmt: skip
    server = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


async def worker(address: str, port: str = "") -> None:
    """Takes what there is and ends it; tells who listens on a port how many milliseconds ago each was sent."""
    told = socket.create_connection(("127.0.0.1", int(port))) if port else None
    async with grpc.aio.insecure_channel(address) as channel:
        lease, finish = method_of(channel, "Lease"), method_of(channel, "Finish")
        while True:
            row, _, data = (await lease(b"")).partition(b" ")
            if told is not None:
                told.sendall(b"%f\n" % ((time.perf_counter() - json.loads(data)["sent"]) * 1000))
            await finish(row)


async def bridge(port: str, address: str) -> None:
    """Answers each request with what came of a row of its own."""
    async with grpc.aio.insecure_channel(address) as channel:
        create, watch = method_of(channel, "Create"), method_of(channel, "Watch")

        async def call(request: web.Request) -> web.Response:
            return web.Response(body=await watch(await create(await request.read())), content_type="application/json")

        app = web.Application()
        app.router.add_post("/mcp", call)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", int(port)).start()
        await asyncio.Event().wait()


def method_of(channel: grpc.aio.Channel, name: str) -> Callable[[bytes], Awaitable[bytes]]:
    """A method of the store."""
    method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{SERVICE}/{name}")
    return partial(method, wait_for_ready=True)


if __name__ == "__main__":
    parts: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {"store": store, "worker": worker, "bridge": bridge}
    uvloop.run(parts[sys.argv[1]](*sys.argv[2:]))
