"""The whole of Tenure in one process: a real Postgres, a store, a bridge, and workers by the library."""

import os
from typing import Final

import pytest

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
def route_text() -> str:
    return ROUTES
