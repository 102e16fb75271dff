"""What the tests of archives stand on: an object storage that really listens, and a way to it that has faults."""

from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import pytest
from botocore.session import get_session

from store_service.archive.object_store import Bucket
from tests.archive.faulty_way import FaultyWay
from tests.pair import Process, free_ports


@pytest.fixture(scope="session")
def object_storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of an object storage: moto's server, a process of its own."""
    (port,) = free_ports(1)
    folder = tmp_path_factory.mktemp("object_storage")
    arguments = ["-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = Process("object_storage", arguments, environment={}, log=folder / "log", folder=folder)
    try:
        process.wait_answer(f"http://127.0.0.1:{port}/moto-api/")
        yield port
    finally:
        process.stop()


@pytest.fixture
def storage_client(object_storage: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of the storage, as its owner has one. Whoever is tested finds the same credentials."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "archivist")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret of the archivist")
    client = get_session().create_client("s3", region_name="us-east-1", endpoint_url=f"http://127.0.0.1:{object_storage}")
    yield client
    client.close()


@pytest.fixture
def locked_bucket(storage_client: Any) -> str:
    """A bucket of the test's own, with object lock."""
    name = f"archive-{uuid4()}"
    storage_client.create_bucket(Bucket=name, ObjectLockEnabledForBucket=True)
    return name


@pytest.fixture
async def way(object_storage: int) -> AsyncIterator[FaultyWay]:
    """A way to the storage."""
    async with FaultyWay(object_storage) as way:
        yield way


@pytest.fixture
def bucket(locked_bucket: str, way: FaultyWay) -> Bucket:
    """The bucket, at the end of that way."""
    return Bucket(name=locked_bucket, prefix="proof/", endpoint=way.url, lock_days=30)
