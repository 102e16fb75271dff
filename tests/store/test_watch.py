"""A watch tells each task as it stands, then each change, until all have ended."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import asyncpg
import grpc
import pytest
from taskstore.v1 import leases_pb2, tasks_pb2, types_pb2

from store_service.db.tasks import TaskRows
from store_service.model.limits import MIB
from store_service.operations import watches
from store_service.operations.watches import WATCH_POLL_SECONDS
from tests.conftest import Clock, Stubs, open_stubs, store_on
from tests.store.builders import (
    TENANT,
    bring_along,
    cancel,
    complete,
    create,
    create_and_lease,
    get,
    heartbeat,
    lease,
    refusal_in,
    refusal_of,
    release,
    report,
    report_at_once,
)

WELL_BEFORE_A_POLL = WATCH_POLL_SECONDS - 1.5


class Watch:
    """One watch, whose next answer must come by a hint. It is of these tasks alone, and ends with them."""

    def __init__(self, store: Stubs, *task_ids: str, **fields: Any) -> None:
        self.call = store.tasks.WatchTasks(iter([asking(*task_ids, **fields)]))
        self._answers: AsyncIterator[tasks_pb2.WatchTasksResponse] = aiter(self.call)
        self._items: list[tasks_pb2.WatchTasksResponse.Item] = []

    async def next(self) -> tasks_pb2.WatchTasksResponse.Item:
        """The next answer."""
        if not self._items:
            self._items = list((await asyncio.wait_for(anext(self._answers), timeout=WELL_BEFORE_A_POLL)).items)
        return self._items.pop(0)

    async def state(self) -> str:
        """The state that the next answer tells."""
        return types_pb2.TaskState.Name((await self.next()).task.state).removeprefix("TASK_STATE_")

    async def ends(self) -> None:
        """Nothing more comes, and no error."""
        with pytest.raises(StopAsyncIteration):
            await self.next()
        assert await self.call.code() == grpc.StatusCode.OK


class OpenWatch(Watch):
    """A watch to which tasks may be added, and from which they may be removed."""

    def __init__(self, store: Stubs) -> None:
        self.call = store.tasks.WatchTasks()
        self._answers = aiter(self.call)
        self._items = []

    async def add(self, *task_ids: str, first: int = 1, **fields: Any) -> None:
        """Watches these too, numbered from `first` on."""
        await self.call.write(asking(*task_ids, first=first, **fields))

    async def remove(self, *numbers: int) -> None:
        """Watches these no more."""
        await self.call.write(tasks_pb2.WatchTasksRequest(remove=numbers))

    async def close(self) -> None:
        """Has nothing more to say."""
        await self.call.done_writing()


def asking(*task_ids: str, first: int = 1, **fields: Any) -> tasks_pb2.WatchTasksRequest:
    """A request to watch these tasks, numbered from `first` on."""
    fields.setdefault("tenant_id", TENANT)
    return tasks_pb2.WatchTasksRequest(
        add=[tasks_pb2.WatchedTask(number=number, task_id=task_id, **fields) for number, task_id in enumerate(task_ids, first)]
    )


async def test_a_watch_begins_with_what_stands_and_tells_each_change(
    store: Stubs, clock: Clock, database: asyncpg.Connection
) -> None:
    task = await create(store)
    watch = Watch(store, task.task_id, view=types_pb2.TASK_VIEW_OUTCOME)
    assert await watch.state() == "QUEUED"
    held = (await lease(store)).lease
    assert await watch.state() == "LEASED"
    await store.leases.ReportProgress(leases_pb2.ReportProgressRequest(lease=held, value=3))
    assert (await watch.next()).task.progress.value == 3
    await store.leases.HeartbeatTask(heartbeat(held))  # which nobody sees
    await store.leases.ReleaseTask(release(held))
    assert await watch.state() == "QUEUED"
    held = (await lease(store)).lease
    assert await watch.state() == "LEASED"
    await clock.advance(seconds=31)
    await bring_along(store, database)
    assert await watch.state() == "QUEUED"
    held = (await lease(store)).lease
    assert await watch.state() == "LEASED"
    await store.tasks.CancelTask(cancel(task.task_id))
    assert (await watch.next()).task.cancel_requested
    await store.leases.CompleteTask(complete(held, b'{"x": 1}'))
    last = (await watch.next()).task
    assert last.result.data == b'{"x": 1}'
    assert last == await read_at(store, last)
    await watch.ends()


async def read_at(store: Stubs, task: types_pb2.Task) -> types_pb2.Task:
    """The task as a read tells it, at the time of the other one."""
    read = await get(store, task.task_id, view=types_pb2.TASK_VIEW_OUTCOME)
    read.read_at.CopyFrom(task.read_at)
    return read


async def test_a_watch_of_what_has_ended_tells_it_and_ends(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    await store.leases.CompleteTask(complete(held))
    watch = Watch(store, held.task_id, held.task_id)
    assert [await watch.state() for _ in range(2)] == ["COMPLETED"] * 2
    await watch.ends()


async def test_what_is_not_found_is_told_once(store: Stubs) -> None:
    task, unknown = await create(store), str(uuid4())
    foreign = await create(store, owner=types_pb2.Owner(issuer="test", subject="bob"))
    owner = types_pb2.Owner(issuer="test", subject="ann")
    watch = Watch(store, unknown, task.task_id, foreign.task_id, owner=owner)
    answers = [await watch.next() for _ in range(3)]
    assert [answer.number for answer in answers] == [1, 2, 3]
    assert answers[1].task.task_id == task.task_id
    refused = [refusal_in(answer.refused) for answer in answers if answer.HasField("refused")]
    assert len(refused) == 2
    assert refused[0] == refused[1]
    assert (refused[0].code, refused[0].reason) == (grpc.StatusCode.NOT_FOUND, "TASK_NOT_FOUND")
    await store.tasks.CancelTask(cancel(task.task_id))
    assert await watch.state() == "CANCELLED"
    await watch.ends()
    watch = Watch(store, unknown)
    assert (await watch.next()).HasField("refused")
    await watch.ends()


async def test_what_is_reported_between_two_answers_is_told_once_and_in_order(
    store: Stubs, database: asyncpg.Connection
) -> None:
    held = (await create_and_lease(store)).lease
    watch = Watch(store, held.task_id)
    assert list((await watch.next()).reports) == []
    await report_at_once(database, held, 10, 20, 15)
    await store.leases.ReportProgress(report(held, 40))
    answer = await watch.next()
    assert [(one.sequence, one.value) for one in answer.reports] == [(1, 10), (2, 20), (3, 15), (4, 40)]
    assert answer.task.progress == answer.reports[-1] == (await get(store, held.task_id)).progress
    await store.leases.ReportProgress(report(held, 50))
    assert [one.value for one in (await watch.next()).reports] == [50]
    await store.leases.ReleaseTask(release(held))
    answer = await watch.next()
    assert (list(answer.reports), answer.task.progress.value) == ([], 50)
    held = (await lease(store)).lease
    assert list((await watch.next()).reports) == []
    await report_at_once(database, held, 60, 70)
    await store.leases.CompleteTask(complete(held))
    last = await watch.next()
    assert [one.value for one in last.reports] == [60, 70]
    assert last.task.state == types_pb2.TASK_STATE_COMPLETED
    await watch.ends()


async def test_a_watch_begins_with_the_last_16_reports(store: Stubs, database: asyncpg.Connection) -> None:
    held = (await create_and_lease(store)).lease
    await report_at_once(database, held, *range(20))
    watch = Watch(store, held.task_id)
    assert [one.sequence for one in (await watch.next()).reports] == list(range(5, 21))
    await store.tasks.CancelTask(cancel(held.task_id, force=True))
    answer = await watch.next()
    assert (list(answer.reports), answer.task.progress.sequence) == ([], 20)
    await watch.ends()


async def test_two_watchers_of_two_stores_see_the_same(store: Stubs, second_store: Stubs) -> None:
    task = await create(store)
    watches = [Watch(each, task.task_id) for each in (store, second_store)]
    for watch in watches:
        assert await watch.state() == "QUEUED"
    for change in ("LEASED", "COMPLETED"):
        if change == "LEASED":
            held = (await lease(store)).lease
        else:
            await second_store.leases.CompleteTask(complete(held))
        for watch in watches:
            assert await watch.state() == change
    for watch in watches:
        await watch.ends()


async def test_a_change_of_one_task_tells_nothing_of_the_others(store: Stubs) -> None:
    tasks = [await create(store, workflow=name) for name in ("a", "b", "c")]
    watch = Watch(store, *(task.task_id for task in tasks))
    for _ in tasks:
        assert await watch.state() == "QUEUED"
    for task, name in zip(tasks, ("a", "b", "c"), strict=True):
        await lease(store, workflow=name)
        answer = await watch.next()
        assert (answer.task.task_id, answer.task.state) == (task.task_id, types_pb2.TASK_STATE_LEASED)
    watch.call.cancel()


async def test_a_store_that_stops_ends_its_watches_at_once(dsn: str) -> None:
    running = store_on(dsn, drain_seconds=600)
    await running.start()
    async with open_stubs(running) as store:
        task = await create(store)
        watch = Watch(store, task.task_id)
        assert await watch.state() == "QUEUED"
        async with asyncio.timeout(60):
            await running.stop()
        refusal = await refusal_of(watch.next())
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")


async def test_a_watcher_that_comes_back_begins_with_what_stands(store: Stubs) -> None:
    task = await create(store)
    watch = Watch(store, task.task_id)
    assert await watch.state() == "QUEUED"
    watch.call.cancel()
    held = (await lease(store)).lease
    await store.leases.CompleteTask(complete(held))
    again = Watch(store, task.task_id)
    assert await again.state() == "COMPLETED"
    await again.ends()


async def test_a_watch_outlives_the_loss_of_its_connections(store: Stubs, database: asyncpg.Connection) -> None:
    task = await create(store)
    watch = Watch(store, task.task_id)
    assert await watch.state() == "QUEUED"
    await database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name LIKE 'tenure-%'"
    )
    assert (await get_when_possible(store, task.task_id)).change == 1
    await store.tasks.CancelTask(cancel(task.task_id))
    assert await watch.state() == "CANCELLED"
    await watch.ends()


async def get_when_possible(store: Stubs, task_id: str) -> types_pb2.Task:
    """Reads a task from a store whose connections were just cut."""
    for _ in range(20):
        (answer,) = await asyncio.gather(get(store, task_id), return_exceptions=True)
        if isinstance(answer, types_pb2.Task):
            return answer
        assert isinstance(answer, grpc.aio.AioRpcError)
        assert answer.code() == grpc.StatusCode.UNAVAILABLE
    raise AssertionError("the store does not come back")


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
