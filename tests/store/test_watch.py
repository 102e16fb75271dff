"""A watch tells each task as it stands, then each change, until all have ended."""

import asyncio
from uuid import uuid4

import asyncpg
import grpc
from taskstore.v1 import leases_pb2, types_pb2

from tests.conftest import Clock, Stubs, open_stubs, store_on
from tests.store.builders import (
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
from tests.store.watching import Watch


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
