"""A store that can be told to misbehave."""

from collections.abc import Iterator

import pytest

from tests.client.fake_store import FakeStore


@pytest.fixture
def fake() -> Iterator[FakeStore]:
    """A store in memory that listens."""
    with FakeStore().serve() as serving:
        yield serving


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases are extended again and again, however long they are: none is lost for want of time."""
    monkeypatch.setattr("store_service.client.heartbeats._MOST_INTERVAL_SECONDS", 0.3)
