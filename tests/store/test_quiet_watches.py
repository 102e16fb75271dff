"""Who waits for the end of what it has just created: it is not told what it knows, nor that a worker took the task, and the
store reads the task once."""

from collections import Counter

import asyncpg
import pytest
from taskstore.v1 import types_pb2

from tests.conftest import Stubs
from tests.statements import count_statements
from tests.store.builders import OWNER, cancel, complete, create, lease, refusal_in, release, report
from tests.store.watching import OpenWatch

HELD_MS = 60_000


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    return count_statements(monkeypatch)


@pytest.fixture
async def watch(store: Stubs) -> OpenWatch:
    return OpenWatch(store)


async def add(watch: OpenWatch, task: types_pb2.Task, *, first: int = 1, known_change: int = 1, **fields: object) -> None:
    """Watches a task as its creator does, who waits for its end."""
    fields = {"owner": OWNER, "tenant_id": task.tenant_id, "view": types_pb2.TASK_VIEW_OUTCOME, **fields}
    await watch.add(task.task_id, first=first, known_change=known_change, skip_leases=True, **fields)


async def is_heard(watch: OpenWatch) -> None:
    """All that was said to the store before has been heard: it tells what cannot be watched."""
    await watch.add("no id", first=99)
    assert (await watch.next()).number == 99


async def test_a_task_is_read_once_from_its_creation_to_its_end(
    store: Stubs, watch: OpenWatch, statements: Counter[str]
) -> None:
    await is_heard(watch)
    task = await create(store, abandon_ms=HELD_MS)
    await add(watch, task)
    await is_heard(watch)
    held = (await lease(store)).lease
    await is_heard(watch)
    assert statements["get_tasks"] == 0
    await store.leases.CompleteTask(complete(held, b"7"))
    last = await watch.next()
    assert (last.task.result.data, last.task.change) == (b"7", 3)
    assert statements["get_tasks"] == 1


async def test_it_is_told_whatever_else_happens_and_how_the_task_stands_then(store: Stubs, watch: OpenWatch) -> None:
    task = await create(store, abandon_ms=HELD_MS)
    await add(watch, task)
    held = (await lease(store)).lease
    await store.leases.ReportProgress(report(held, 40))
    answer = await watch.next()
    assert (answer.task.state, [one.value for one in answer.reports]) == (types_pb2.TASK_STATE_LEASED, [40])
    await store.tasks.CancelTask(cancel(task.task_id))
    assert (await watch.next()).task.cancel_requested
    await store.leases.ReleaseTask(release(held))
    assert await watch.state() == "CANCELLED"


@pytest.mark.parametrize("is_attached", [True, False])
async def test_what_happened_before_it_is_watched_is_told_at_once(store: Stubs, watch: OpenWatch, is_attached: bool) -> None:
    task = await create(store, abandon_ms=HELD_MS if is_attached else 0)
    held = (await lease(store)).lease
    await store.leases.CompleteTask(complete(held))
    await add(watch, task)
    assert await watch.state() == "COMPLETED"


async def test_who_wants_to_hear_of_leases_hears_of_one_before_it_watched(store: Stubs, watch: OpenWatch) -> None:
    task = await create(store, abandon_ms=HELD_MS)
    await lease(store)
    await watch.add(task.task_id, owner=OWNER, known_change=1)
    assert await watch.state() == "LEASED"


async def test_it_is_told_what_it_knows_if_it_does_not_say_that_it_does(store: Stubs, watch: OpenWatch) -> None:
    task = await create(store, abandon_ms=HELD_MS)
    await add(watch, task, known_change=0)
    assert await watch.state() == "QUEUED"
    await lease(store)
    await add(watch, task, first=2, known_change=0)
    assert await watch.state() == "LEASED"


async def test_of_two_watches_of_a_task_the_one_that_skips_no_leases_is_told_of_them(store: Stubs, watch: OpenWatch) -> None:
    task = await create(store, abandon_ms=HELD_MS)
    await add(watch, task)
    await watch.add(task.task_id, first=2, known_change=1)
    await is_heard(watch)
    held = (await lease(store)).lease
    answer = await watch.next()
    assert (answer.number, answer.task.state) == (2, types_pb2.TASK_STATE_LEASED)
    await watch.remove(2)
    await store.leases.ReleaseTask(release(held))
    assert (await watch.next()).number == 1
    await lease(store)
    await is_heard(watch)


async def test_what_a_store_created_tells_others_nothing(store: Stubs, watch: OpenWatch) -> None:
    task = await create(store, abandon_ms=HELD_MS)
    bob = types_pb2.Owner(issuer=OWNER.issuer, subject="bob")
    foreign = types_pb2.Task(task_id=task.task_id, tenant_id="other")
    for number, (seen, owner) in enumerate(((foreign, OWNER), (task, bob)), 1):
        await add(watch, seen, first=number, owner=owner)
        answer = await watch.next()
        assert (answer.number, refusal_in(answer.refused).reason) == (number, "TASK_NOT_FOUND")


async def test_a_creation_of_another_store_is_read_and_its_end_is_heard_of(
    store: Stubs, second_store: Stubs, listening: None, watch: OpenWatch, statements: Counter[str]
) -> None:
    task = await create(second_store, abandon_ms=HELD_MS)
    await add(watch, task)
    await is_heard(watch)
    assert statements["get_tasks"] == 1
    held = (await lease(second_store)).lease
    await second_store.leases.CompleteTask(complete(held))
    assert await watch.state() == "COMPLETED"
    assert statements["get_tasks"] == 2


async def test_a_task_that_was_created_before_is_read_when_it_is_watched(store: Stubs, watch: OpenWatch) -> None:
    task = await create(store, abandon_ms=HELD_MS, request_id="r")
    await store.tasks.CancelTask(cancel(task.task_id))
    again = await create(store, abandon_ms=HELD_MS, request_id="r")
    assert again.change == 2
    await add(watch, again)
    assert await watch.state() == "CANCELLED"


async def test_hints_that_were_lost_make_it_look(
    store: Stubs, watch: OpenWatch, database: asyncpg.Connection, statements: Counter[str]
) -> None:
    task, other = await create(store, abandon_ms=HELD_MS), await create(store, abandon_ms=HELD_MS)
    await add(watch, task)
    await is_heard(watch)
    await database.execute("UPDATE tenure.task_state SET change = 9")
    await database.execute("SELECT pg_notify('tenure_wakeup', '*')")
    assert (await watch.next()).number == 1
    await add(watch, other, first=2)  # of which something may have been said, and was not heard
    assert (await watch.next()).task.change == 9


async def test_no_more_creations_are_remembered_than_may_be(
    store: Stubs, watch: OpenWatch, monkeypatch: pytest.MonkeyPatch, statements: Counter[str]
) -> None:
    monkeypatch.setattr("store_service.db.followers._MOST_EXPECTED", 2)
    tasks = [await create(store, abandon_ms=HELD_MS) for _ in range(3)]
    for number, task in enumerate(tasks, 1):
        await add(watch, task, first=number)
    await is_heard(watch)
    assert statements["get_tasks"] == 1
    for task in tasks:
        await store.tasks.CancelTask(cancel(task.task_id))
    assert sorted([(await watch.next()).number for _ in tasks]) == [1, 2, 3]
