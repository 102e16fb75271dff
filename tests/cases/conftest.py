"""The whole of Tenure in one process: a real Postgres, a store, a bridge, and workers by the library."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from mcp_bridge.app import Bridge
from tests.bridge.client import Client, client_of
from tests.conftest import Stubs, bridge_on, started

ALL: Final = os.environ.get("CASES") == "all"
"""Whether trials that take long are tried in full: `make cases`."""

ROUTES: Final = """
version: 1
tenants:
  dev:
    tools:
      - {name: work, workflow: work, task: optional, ttl: 2h, poll_interval: 10ms, input_schema: {type: object}}
      - {name: held, workflow: work, task: never, ttl: 2h, call_timeout: 1h, input_schema: {type: object}}
      - {name: slow, workflow: work, task: required, ttl: 2h, poll_interval: 2s, input_schema: {type: object}}
      - {name: spread, workflow: spread, task: required, input_schema: {type: object}}
      - {name: short, workflow: work, task: required, ttl: 1m, execution_deadline: 10m, input_schema: {type: object}}
"""


@pytest.fixture
def routes(tmp_path: Path) -> Path:
    """The route file."""
    path = tmp_path / "routes.yaml"
    path.write_text(ROUTES)
    return path


@pytest.fixture
async def bridge(store: Stubs, routes: Path) -> AsyncIterator[Bridge]:
    """A bridge over the store."""
    async with started(bridge_on(routes, store=store.address)) as running:
        yield running


@pytest.fixture
async def user(bridge: Bridge) -> AsyncIterator[Client]:
    """A client of the bridge."""
    async with client_of(bridge) as client:
        yield client
