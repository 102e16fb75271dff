"""What the tests of the store stand on besides."""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import asyncpg
import pytest

from store_service.embedded import EmbeddedPostgres
from tests.conftest import Stubs, serving
from tests.databases import Databases
from tests.pair import metrics_at
from tests.store.builders import WHO_LISTEN, until
from tests.store.moving import Cell
from tests.store.refusals.promised import ANYWHERE, pairs

ALLOWED: Final = frozenset({"OK", "CANCELLED"}) | ANYWHERE
PROMISED: Final = pairs()


@pytest.fixture
async def store(store: Stubs, database: asyncpg.Connection) -> AsyncIterator[Stubs]:
    """The store, whose counters, lanes, clocks and ledgers agree with its rows when the test has ended, and which has refused
    nothing for a reason that its API does not promise."""
    yield store
    for method, outcome in await asyncio.to_thread(_outcomes, store.admin_port):
        assert outcome in ALLOWED or (method, outcome) in PROMISED, f"{method} was refused with {outcome}"
    assert await database.fetch("SELECT * FROM tenure.audit") == []
    assert await database.fetch("SELECT * FROM tenure.budget_audit") == []


@pytest.fixture
async def second_store(dsn: str, store: Stubs) -> AsyncIterator[Stubs]:
    """Another store on the same database."""
    async with serving(dsn) as stubs:
        yield stubs


@pytest.fixture
async def listening(database: asyncpg.Connection, store: Stubs, second_store: Stubs) -> None:
    """Both stores hear each other's hints."""

    async def both() -> bool:
        count: int = await database.fetchval(f"SELECT count(*) {WHO_LISTEN}")
        return count == 2

    await until(both, "both stores listen")


def _outcomes(admin_port: int) -> list[tuple[str, str]]:
    return re.findall(r'^tenure_store_calls_total{method="(\w+)",outcome="(\w+)"}', metrics_at(admin_port), re.MULTILINE)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder whose cluster exists, for tests that only start and stop it."""
    folder = tmp_path_factory.mktemp("cluster")
    with EmbeddedPostgres(folder, durable=False):
        pass
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
async def unvisited(databases: Databases) -> AsyncIterator[str]:
    """A database in which nothing ever happened, and of which Postgres learns only what a test tells it to."""
    dsn = await databases.take_unvisited()
    yield dsn
    await databases.drop(dsn)


@pytest.fixture
async def there(databases: Databases) -> AsyncIterator[Cell]:
    """The cell where it goes."""
    dsn = await databases.take()
    database = await asyncpg.connect(dsn)
    async with serving(dsn, cancel_grace_seconds=30) as stubs:
        yield Cell(dsn, stubs, database)
    assert await database.fetch("SELECT * FROM tenure.audit") == []
    assert await database.fetch("SELECT * FROM tenure.budget_audit") == []
    await database.close()
    await databases.give_back(dsn)
