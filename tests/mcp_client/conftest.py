"""What the client's tests talk to: a real pair, and a server that does as it is told."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from mcp_bridge.client import Policy
from tests.mcp_client.fake_server import FakeServer, serving
from tests.pair import Pair

TESTS = Path(__file__).parents[1]
FIXTURE_ROUTES = TESTS / "conformance" / "fixtures" / "routes.yaml"
FIXTURE_WORKER = "tests.conformance.fixtures.worker"

QUICK = Policy(least_poll_ms=5, default_poll_ms=5, least_backoff_seconds=0.005, most_backoff_seconds=0.02, request_seconds=5)


@pytest.fixture(scope="package")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A pair with the tools of the conformance suite and a worker that runs them."""
    with Pair(tmp_path_factory.mktemp("pair"), routes=FIXTURE_ROUTES, durable=False) as running:
        running.start_worker("worker", FIXTURE_WORKER)
        yield running


@pytest.fixture
async def fake() -> AsyncIterator[FakeServer]:
    """A server of the test's own."""
    async with serving(FakeServer()) as running:
        yield running
