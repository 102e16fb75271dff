"""A store that is started before its database is there, or before its schema is, where something would start it anew."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from tests.pair import Process, free_ports, told_at
from tests.store.builders import until

pytestmark = pytest.mark.direct("the way to Postgres is the test's own")


async def says(admin_port: int, status: int, text: str) -> None:
    """Until readiness is that; it is alive all the while."""

    async def is_said() -> bool:
        assert (await asyncio.to_thread(told_at, admin_port, "/livez"))[0] == 200
        told = await asyncio.to_thread(told_at, admin_port, "/readyz")
        return told[0] == status and text in told[1]

    await until(is_said, f"/readyz says {status} {text}")


@contextlib.contextmanager
def serving_at(dsn: str, admin_port: int, folder: Path) -> Iterator[Process]:
    environment = {
        "PATH": os.environ["PATH"], "TENURE_STORE_DSN": dsn, "TENURE_STORE_PORT": "0", "TENURE_STORE_ALLOW_TEST_CLOCK": "true",
        "TENURE_STORE_ADMIN_PORT": str(admin_port), "TENURE_STORE_WAIT_FOR_DATABASE": "true",
    }  # fmt: skip
    process = Process("store", ["-m", "store_service", "serve"], environment=environment, log=folder / "store.log")
    try:
        process.wait_answer(f"http://127.0.0.1:{admin_port}/livez")
        yield process
    finally:
        process.kill()


async def test_it_lives_and_says_what_it_waits_for_until_it_serves(
    dsn: str, database: asyncpg.Connection, tmp_path: Path
) -> None:
    port, admin_port = free_ports(2)
    upstream = urlsplit(dsn)

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection(upstream.hostname, upstream.port)
        await asyncio.gather(copy(reader, forth), copy(back, writer))

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError), contextlib.closing(target):
            while data := await source.read(1 << 16):
                target.write(data)

    def through(login: str) -> str:
        return urlunsplit(upstream._replace(netloc=f"{login}@127.0.0.1:{port}")) + "?sslmode=disable"

    with serving_at(through(f"{upstream.username}:{upstream.password}"), admin_port, tmp_path) as store:
        await says(admin_port, 503, "refused")
        await database.execute("UPDATE public.tenure_migration SET number = -number")
        server = await asyncio.start_server(pass_on, "127.0.0.1", port)
        await says(admin_port, 503, "run `tenure-store migrate`")
        await database.execute("UPDATE public.tenure_migration SET number = -number")
        await says(admin_port, 200, "ready")
        assert await asyncio.to_thread(store.stop) == 0
    with serving_at(through("nobody:wrong"), admin_port, tmp_path) as store:
        await says(admin_port, 503, "password authentication failed")
        store.send(signal.SIGTERM)
        assert await asyncio.to_thread(store.wait_end) == 0
    server.close()
