"""Tenure as it is deployed: each part a process of its own, killed and started again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pair import Pair

TESTS = Path(__file__).parents[1]
REPORT_ROUTES = TESTS / "examples" / "durable_report" / "routes.yaml"
REPORT_WORKER = "tests.examples.durable_report.report"
FIXTURE_ROUTES = TESTS / "conformance" / "fixtures" / "routes.yaml"
FIXTURE_WORKER = "tests.conformance.fixtures.worker"


@pytest.fixture(scope="session")
def fixture_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A pair with the tools of the conformance suite, in a route file of its own, and a worker that runs them."""
    folder = tmp_path_factory.mktemp("pair")
    routes = folder / "routes.yaml"
    routes.write_text(FIXTURE_ROUTES.read_text())
    with Pair(folder, routes=routes, durable=False) as pair:
        pair.start_worker("worker", FIXTURE_WORKER)
        yield pair


@pytest.fixture
def report_pair(tmp_path: Path) -> Iterator[Pair]:
    """A pair of the test's own with the report's tool, and no worker yet."""
    with Pair(tmp_path, routes=REPORT_ROUTES, durable=False) as pair:
        yield pair
