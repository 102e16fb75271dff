"""A store that can be told to misbehave."""

from collections.abc import Iterator

import pytest

from tests.client.fake_store import FakeStore


@pytest.fixture
def fake() -> Iterator[FakeStore]:
    """A store in memory that listens."""
    with FakeStore().serve() as serving:
        yield serving
