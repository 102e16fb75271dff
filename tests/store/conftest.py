"""What the tests of the store stand on besides."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from store_service.config import Config
from store_service.server import Store
from tests.conftest import Stubs, open_stubs


@pytest.fixture
async def store(store: Stubs, database: asyncpg.Connection) -> AsyncIterator[Stubs]:
    """The store, whose counters, lanes, clocks and ledgers agree with its rows when the test has ended."""
    yield store
    assert await database.fetch("SELECT * FROM tenure.audit") == []
    assert await database.fetch("SELECT * FROM tenure.budget_audit") == []


@pytest.fixture
async def second_store(dsn: str, store: Stubs) -> AsyncIterator[Stubs]:
    """Another store on the same database."""
    running = Store(Config(dsn=dsn, port=0, admin_port=0, allow_test_clock=True, drain_seconds=2))
    await running.start()
    async with open_stubs(running) as stubs:
        yield stubs
    await running.stop()
