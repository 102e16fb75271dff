"""A bridge over a real store, for who listens."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mcp_bridge.app import Bridge
from tests.bridge.listening import bridging
from tests.conftest import Stubs

ROUTES = """
version: 1
tenants:
  dev:
    tools:
      - {name: work, workflow: work, task: optional, ttl: 2h, poll_interval: 10ms, input_schema: {type: object}}
"""


@pytest.fixture
def route_text() -> str:
    return ROUTES


@pytest.fixture
async def bridge(store: Stubs, routes: Path) -> AsyncIterator[Bridge]:
    async with bridging(store.address, routes) as running:
        yield running
