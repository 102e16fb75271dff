"""The stages that races are run on."""

from collections.abc import AsyncIterator
from uuid import uuid4

import asyncpg
import pytest_asyncio

from store_service.embedded import EmbeddedPostgres
from tests.interleaving.schedules import Runner
from tests.interleaving.stage import Stage


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runner(postgres: EmbeddedPostgres) -> AsyncIterator[Runner]:
    """Runs schedules, one after the other, in one database."""
    name = f"races_{uuid4().hex}"
    admin = await asyncpg.connect(postgres.dsn)
    await admin.execute(f"CREATE DATABASE {name} TEMPLATE template")
    async with Stage(f"{postgres.dsn.rpartition('/')[0]}/{name}") as stage:
        yield Runner(stage)
    await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await admin.close()


@pytest_asyncio.fixture
async def stage(dsn: str) -> AsyncIterator[Stage]:
    """A stage of the test's own."""
    async with Stage(dsn) as stage:
        yield stage
