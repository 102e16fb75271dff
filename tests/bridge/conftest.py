"""A bridge that really listens, over a store in memory."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mcp_bridge.app import Bridge
from tests.bridge.client import Client, client_of
from tests.bridge.fake_store import FakeTaskStore
from tests.conftest import bridge_on, started

ROUTES = """
version: 1
tenants:
  dev:
    tools:
      - {name: held, workflow: w, task: never, input_schema: {type: object}, ttl: 2h, poll_interval: 2s}
      - {name: either, workflow: w, task: optional, input_schema: {type: object}, ttl: 2h, poll_interval: 2s}
      - {name: task, workflow: w, task: required, input_schema: {type: object}, ttl: 2h, poll_interval: 2s}
      - {name: soon, workflow: w, task: optional, inline_wait: 2s, input_schema: {type: object}}
      - {name: at_once, workflow: w, task: optional, inline_wait: 1ms, input_schema: {type: object}}
      - {name: watched, workflow: w, task: required, poll_interval: 2s, longest_poll_interval: 5s, input_schema: {type: object}}
      - {name: once, workflow: w, task: never, max_detaches: 0, input_schema: {type: object}}
      - {name: hasty, workflow: w, task: never, call_timeout: 10ms, max_detaches: 0, input_schema: {type: object}}
      - name: loose
        workflow: w
        task: never
        call_timeout: 10ms
        max_detaches: 0
        on_disconnect: continue
        input_schema: {type: object}
      - {name: sampler, workflow: w, task: never, requires: [sampling], input_schema: {type: object}}
      - name: strict
        title: Strict
        description: Takes what it should.
        workflow: w
        workflow_version: 3
        task: optional
        priority: 7
        execution_deadline: 10m
        annotations: {readOnlyHint: true}
        output_schema: {type: object}
        input_schema:
          type: object
          properties:
            region: {type: string, x-mcp-header: Region}
            limits: {type: object, properties: {most: {type: integer, x-mcp-header: Most}}}
            dry: {type: boolean, x-mcp-header: Dry}
            items: {type: array, items: {type: string}}
            code: {type: string, pattern: "^(a+)+$"}
          additionalProperties: false
"""


@pytest.fixture
def route_text() -> str:
    return ROUTES


@pytest.fixture
def fake() -> FakeTaskStore:
    """The store behind the bridge."""
    return FakeTaskStore()


@pytest.fixture
async def bridge(routes: Path, fake: FakeTaskStore) -> AsyncIterator[Bridge]:
    """A bridge that listens."""
    async with started(bridge_on(routes, fake=fake)) as running:
        yield running


@pytest.fixture
async def client(bridge: Bridge) -> AsyncIterator[Client]:
    """A client of the bridge."""
    async with client_of(bridge) as client:
        yield client
