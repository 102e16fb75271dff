"""The way to Postgres is encrypted, and the server's name checked, where its address asks for it (`sslmode=verify-full`)."""

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cryptography import x509

from store_service.config import Config
from store_service.dev_certs import make_authority
from store_service.doctor import examine
from store_service.telemetry.findings import Verdict
from tests.conftest import serving
from tests.store.builders import claim, new_task

_SSL_REQUEST = struct.pack("!II", 8, 80877103)


@contextlib.asynccontextmanager
async def in_front_of(dsn: str, certificate: Path | None) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A port that answers as a Postgres with this certificate, or with none, and hands all on to the one of the tests; and what
    each client began with."""
    began: list[bytes] = []
    behind = urlsplit(dsn)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.readexactly(8)
        began.append(first)
        if first == _SSL_REQUEST:
            writer.write(b"N" if certificate is None else b"S")
            if certificate is None:
                began.append(await reader.read(8))
                return
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(certificate, certificate.with_suffix(".key"))
            await writer.start_tls(context)
            first = b""
        there, onwards = await asyncio.open_connection(behind.hostname, behind.port)
        onwards.write(first)
        async with asyncio.TaskGroup() as group:
            group.create_task(_pass(reader, onwards))
            group.create_task(_pass(there, writer))

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ssl.SSLError, asyncio.IncompleteReadError):
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(guarded, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], began


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


def _address(dsn: str, port: int, ca: Path, host: str = "localhost") -> str:
    parts = urlsplit(dsn)
    return f"postgresql://{parts.username}:{parts.password}@{host}:{port}{parts.path}?sslmode=verify-full&sslrootcert={ca}"


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """A folder with an authority, and a certificate of the database."""
    make_authority(tmp_path).issue(tmp_path, "database", [x509.DNSName("localhost")])
    return tmp_path


@pytest.mark.row("P5")
@pytest.mark.direct("the way to Postgres is the test's own")
async def test_the_store_speaks_to_its_database_through_tls(dsn: str, certificates: Path) -> None:
    async with in_front_of(dsn, certificates / "database.crt") as (port, began):
        address = _address(dsn, port, certificates / "ca.crt")
        async with serving(address) as stubs:
            created = await stubs.tasks.CreateTask(new_task())
            leased = await stubs.leases.LeaseTasks(claim())
    assert [one.lease.task_id for one in leased.tasks] == [created.task.task_id]
    assert set(began) == {_SSL_REQUEST}  # the pool's connections and the one that listens


@pytest.mark.row("P5")
@pytest.mark.parametrize("server", ["of another authority", "of another name", "without encryption"])
async def test_a_database_that_does_not_prove_who_it_is_is_told_nothing(
    server: str, dsn: str, certificates: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No name, no password: the client ends after the handshake."""
    ca, host = certificates / "ca.crt", "localhost"
    if server == "of another authority":
        make_authority(other := tmp_path_factory.mktemp("other"))
        ca = other / "ca.crt"
    elif server == "of another name":
        host = "127.0.0.1"
    certificate = None if server == "without encryption" else certificates / "database.crt"
    async with in_front_of(dsn, certificate) as (port, began):
        config = Config(dsn=_address(dsn, port, ca, host), allow_test_clock=True)
        found = {one.subject: one async for one in examine(config)}
    assert found["database"].verdict is Verdict.WRONG
    assert set(began) <= {_SSL_REQUEST, b""}
