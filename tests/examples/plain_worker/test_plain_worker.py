"""The worker without the library, against a store that listens."""

import json
import threading
from collections.abc import Iterator

import pytest
from taskstore.v1 import types_pb2

from tests.client.fake_store import FakeStore, FakeTask
from tests.examples.plain_worker import worker


@pytest.fixture
def store() -> Iterator[FakeStore]:
    """A store, and the worker at it."""
    stopping = threading.Event()
    with FakeStore().serve() as serving:
        thread = threading.Thread(target=worker.run, args=(serving.address, stopping))
        thread.start()
        yield serving
        stopping.set()
        thread.join(timeout=10)
        assert not thread.is_alive()


def answer(store: FakeStore, task: FakeTask, response: dict[str, object]) -> None:
    with store.changed:
        assert store.memory.answer_input(task, "name", types_pb2.Payload(data=json.dumps(response).encode()))
        store.changed.notify_all()


async def test_it_asks_sleeps_and_greets(store: FakeStore) -> None:
    task = store.add("greet")
    await store.until(lambda: task.waiting is not None)
    assert task.waiting is not None
    [question] = task.waiting.questions.values()
    assert (question.method, json.loads(question.params.data)["message"]) == ("elicitation/create", "Who are you?")
    answer(store, task, {"action": "accept", "content": {"name": "Ann"}})
    await store.ended(task)
    assert task.result is not None
    assert json.loads(task.result) == {"content": [{"type": "text", "text": "Hello, Ann!"}]}
    assert (task.steps, task.attempts) == (["ask"], 3)


async def test_a_lost_lease_is_dropped_and_the_next_worker_goes_on(store: FakeStore) -> None:
    store.refuse("AppendCheckpoint", "LEASE_LOST")
    task = store.add("greet")
    await store.until(lambda: task.waiting is not None)
    answer(store, task, {"action": "decline"})
    await store.until(lambda: store.of("AppendCheckpoint"))
    assert (task.state, task.steps) == ("LEASED", [])
    with store.changed:
        task.expires_at = 0
    await store.ended(task)
    assert task.result is not None
    assert "Hello, stranger!" in task.result.decode()


async def test_a_wished_end_is_confirmed(store: FakeStore) -> None:
    task = store.add("greet", cancel_requested=True)
    await store.ended(task)
    assert task.state == "CANCELLED"
