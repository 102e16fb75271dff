"""One watch of many tasks: what is added and removed, what is left out, and what makes it look at all of them again."""

import asyncio
from typing import Any

import asyncpg
import pytest
from taskstore.v1 import types_pb2

from store_service.db.tasks import TaskRows
from store_service.model.limits import MIB
from store_service.operations import watches
from tests.conftest import Stubs
from tests.store.builders import cancel, complete, create, create_and_lease, lease, refusal_in, refusal_of, report_at_once
from tests.store.watching import OpenWatch, Watch


async def test_many_large_results_are_told_one_by_one(store: Stubs) -> None:
    held = []
    for _ in range(3):
        held.append((await create_and_lease(store)).lease)
        await store.leases.CompleteTask(complete(held[-1], b'"' + b"x" * (4 * MIB - 2) + b'"'))
    watch = Watch(store, *(one.task_id for one in held), view=types_pb2.TASK_VIEW_OUTCOME)
    sizes = [len((await watch.next()).task.result.data) for _ in held]
    assert sizes == [4 * MIB] * 3
    await watch.ends()


async def test_a_watch_of_many_ends_with_the_last(store: Stubs) -> None:
    tasks = [await create(store) for _ in range(100)]
    watch = Watch(store, *(task.task_id for task in tasks))
    for _ in tasks:
        assert await watch.state() == "QUEUED"
    await asyncio.gather(*(store.tasks.CancelTask(cancel(task.task_id)) for task in tasks))
    ended = [await watch.next() for _ in tasks]
    assert {answer.task.task_id for answer in ended} == {task.task_id for task in tasks}
    assert {answer.task.state for answer in ended} == {types_pb2.TASK_STATE_CANCELLED}
    await watch.ends()


async def test_tasks_are_added_and_removed_while_the_watch_goes_on(store: Stubs) -> None:
    first, second = await create(store, workflow="a"), await create(store, workflow="b")
    watch = OpenWatch(store)
    await watch.add(first.task_id)
    assert (await watch.next()).number == 1
    await watch.add(second.task_id, first=7)
    assert (await watch.next()).number == 7
    await watch.remove(1, 99)
    await watch.add(first.task_id, first=8)
    assert (await watch.next()).number == 8
    await lease(store, workflow="a")
    await lease(store, workflow="b")
    assert [(await watch.next()).number for _ in range(2)] == [8, 7]
    await watch.close()
    for task in (first, second):
        await store.tasks.CancelTask(cancel(task.task_id, force=True))
    assert [await watch.state() for _ in range(2)] == ["CANCELLED"] * 2
    await watch.ends()


async def test_tenants_and_owners_share_a_watch_and_see_their_own_alone(store: Stubs) -> None:
    ann, bob = (types_pb2.Owner(issuer="test", subject=name) for name in ("ann", "bob"))
    of_ann = await create(store, owner=ann)
    elsewhere = await create(store, tenant_id="other", owner=ann)
    watch = OpenWatch(store)
    await watch.add(of_ann.task_id, owner=ann)
    await watch.add(of_ann.task_id, owner=bob, first=2)
    await watch.add(elsewhere.task_id, tenant_id="other", owner=ann, first=3)
    await watch.add(elsewhere.task_id, owner=ann, first=4)
    answers = {answer.number: answer for answer in [await watch.next() for _ in range(4)]}
    assert {number for number, answer in answers.items() if answer.HasField("task")} == {1, 3}
    await watch.close()
    await store.tasks.CancelTask(cancel(of_ann.task_id))
    assert (await watch.next()).number == 1
    await store.tasks.CancelTask(cancel(elsewhere.task_id, tenant_id="other"))
    assert (await watch.next()).number == 3
    await watch.ends()


async def test_what_is_known_is_not_told_again(store: Stubs, database: asyncpg.Connection) -> None:
    task, other = await create(store), await create(store)
    watch = OpenWatch(store)
    await watch.add(task.task_id, known_change=1)
    await watch.add(other.task_id, first=2)
    assert (await watch.next()).number == 2
    await store.tasks.CancelTask(cancel(task.task_id))
    assert (await watch.next()).number == 1
    await watch.add(task.task_id, first=3, known_change=2)  # it has ended, and that is known
    await watch.add(task.task_id, first=4, known_change=7)  # of a time before the database was set back
    assert (await watch.next()).number == 4
    held = (await lease(store)).lease
    assert (await watch.next()).number == 2
    await report_at_once(database, held, 10, 20, 30)
    await watch.add(held.task_id, first=5, known_report=2)
    assert [one.value for one in (await watch.next()).reports] == [30]


async def test_a_watch_of_what_has_ended_and_is_known_ends(store: Stubs) -> None:
    task = await create(store)
    await store.tasks.CancelTask(cancel(task.task_id))
    watch = OpenWatch(store)
    await watch.add(task.task_id, known_change=2)
    await watch.close()
    await watch.ends()


async def test_one_task_that_is_asked_for_wrongly_is_refused_alone(store: Stubs) -> None:
    task = await create(store)
    watch = OpenWatch(store)
    await watch.add(task.task_id)
    assert (await watch.next()).number == 1
    await watch.add("no id", task.task_id, first=0)
    refused = [await watch.next() for _ in range(2)]
    assert [one.number for one in refused] == [0, 1]
    assert [refusal_in(one.refused).reason for one in refused] == ["INVALID_INPUT"] * 2
    await store.tasks.CancelTask(cancel(task.task_id))
    assert await watch.state() == "CANCELLED"


async def test_more_tasks_than_one_stream_may_watch_end_it(store: Stubs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store_service.operations.watches.WATCHED_TASKS", 2)
    watch = Watch(store, *[(await create(store)).task_id for _ in range(3)])
    assert (await refusal_of(watch.next())).reason == "OVERLOADED"


async def test_hints_that_were_lost_make_it_look_at_everything(store: Stubs, database: asyncpg.Connection) -> None:
    tasks = [await create(store) for _ in range(600)]
    watch = OpenWatch(store)
    await watch.add(*(task.task_id for task in tasks[:500]))
    await watch.add(*(task.task_id for task in tasks[500:]), first=501)
    for _ in tasks:
        assert await watch.state() == "QUEUED"
    await database.execute(
        "UPDATE tenure.task_state SET change = 9 WHERE task_id = ANY($1)", [tasks[i].task_id for i in (3, 599)]
    )
    await database.execute("SELECT pg_notify('tenure_wakeup', '*')")
    assert sorted([(await watch.next()).number for _ in range(2)]) == [4, 600]


async def test_a_task_that_is_removed_while_everything_is_looked_at_ends_nothing_for_the_others(
    store: Stubs, database: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed, find_changed, remove = asyncio.Event(), TaskRows.changed_tasks, watches.Watch.remove

    async def remove_meanwhile(rows: TaskRows, items: Any) -> list[int]:
        found = await find_changed(rows, items)
        await watch.remove(1)
        await removed.wait()
        return found

    def tell(watched: watches.Watch, number: int) -> None:
        remove(watched, number)
        removed.set()

    tasks = [await create(store) for _ in range(2)]
    watch = OpenWatch(store)
    await watch.add(*(task.task_id for task in tasks))
    assert [await watch.state() for _ in tasks] == ["QUEUED", "QUEUED"]
    monkeypatch.setattr(TaskRows, "changed_tasks", remove_meanwhile)
    monkeypatch.setattr(watches.Watch, "remove", tell)
    await database.execute("UPDATE tenure.task_state SET change = 9")
    await database.execute("SELECT pg_notify('tenure_wakeup', '*')")
    assert (await watch.next()).number == 2


async def test_a_change_that_nobody_told_of_is_seen_at_the_next_poll(
    store: Stubs, database: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store_service.operations.watches.WATCH_POLL_SECONDS", 0.2)
    task = await create(store)
    watch = Watch(store, task.task_id)
    assert await watch.state() == "QUEUED"
    await database.execute("UPDATE tenure.task_state SET change = change + 1")
    assert (await watch.next()).task.change == 2
    watch.call.cancel()
