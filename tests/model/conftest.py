"""What the tests of the model stand on: one store with a database whose clock and dice are set by hand."""

import asyncio
from collections.abc import Iterator
from uuid import uuid4

import asyncpg
import pytest

from store_service.embedded import EmbeddedPostgres
from tests.model.pair import Pair
from tests.model.real import TAKEN_IN_HAND, Real


@pytest.fixture(scope="module")
def real(postgres: EmbeddedPostgres) -> Iterator[Real]:
    """The store."""
    with Real(asyncio.run(make_database(postgres.dsn))) as running:
        yield running


@pytest.fixture
def pair(real: Real) -> Pair:
    """The store, as new, and a model."""
    return Pair(real)


async def make_database(dsn: str) -> str:
    admin = await asyncpg.connect(dsn)
    name = f"model_{uuid4().hex}"
    await admin.execute(f"CREATE DATABASE {name} TEMPLATE template")
    await admin.close()
    made = f"{dsn.rpartition('/')[0]}/{name}"
    connection = await asyncpg.connect(made)
    await connection.execute(TAKEN_IN_HAND)
    await connection.close()
    return made
