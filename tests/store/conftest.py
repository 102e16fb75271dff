"""What the tests of the store stand on besides."""

import asyncio
import re
import urllib.request
from collections.abc import AsyncIterator
from typing import Final

import asyncpg
import pytest

from tests.conftest import Stubs, serving
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


def _outcomes(admin_port: int) -> list[tuple[str, str]]:
    with urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return re.findall(r'^tenure_store_calls_total{method="(\w+)",outcome="(\w+)"}', text, re.MULTILINE)
