"""A task waits for the time, for a signal, for answers: one thing ends each wait, and what ended it reaches the worker."""

import asyncio

import asyncpg
import pytest
from taskstore.v1 import leases_pb2, tasks_pb2, types_pb2

from tests.conftest import Clock, Stubs
from tests.store.builders import (
    TENANT,
    answer,
    assert_invalid,
    bring_along,
    cancel,
    claim,
    complete,
    create,
    create_and_lease,
    get,
    history,
    lease,
    none_ready,
    publish,
    question,
    refusal_of,
    release,
    set_policy,
    suspend,
)
from tests.store.watching import Watch


async def test_a_timer_gives_the_lease_back_and_brings_the_task_when_its_time_has_come(store: Stubs, clock: Clock) -> None:
    held = (await create_and_lease(store)).lease
    await store.leases.SuspendTask(suspend(held, step="nap", timer_ms=3_600_000))
    waiting = await get(store, held.task_id)
    assert waiting.state == types_pb2.TASK_STATE_WAITING
    assert (waiting.wait.step, waiting.wait.WhichOneof("kind")) == ("nap", "timer")
    assert (waiting.wait.until.ToDatetime() - waiting.changed_at.ToDatetime()).total_seconds() == 3600
    assert await none_ready(store)
    await clock.advance(seconds=3601)
    woken = await lease(store)
    assert (woken.wake.step, woken.wake.WhichOneof("cause")) == ("nap", "timer")
    assert woken.lease.token == held.token + 1
    assert await history(store, held.task_id) == ["CREATED", "LEASED", "SUSPENDED", "WOKEN", "LEASED"]


async def test_a_wake_survives_the_loss_of_its_worker_until_the_next_wait(store: Stubs, clock: Clock) -> None:
    held = (await create_and_lease(store)).lease
    await store.leases.SuspendTask(suspend(held, signal="go"))
    await publish(store, held.task_id, name="go", data=b'"kept"')
    await lease(store)
    await clock.advance(seconds=31)
    again = await lease(store, worker_id="w2")
    assert again.wake.signal.payload.data == b'"kept"'
    await store.leases.ReleaseTask(release(again.lease))
    third = await lease(store)
    assert third.wake.signal.payload.data == b'"kept"'
    await store.leases.SuspendTask(suspend(third.lease, step="next", timer_ms=1_000))
    await clock.advance(seconds=2)
    assert (await lease(store)).wake.step == "next"


async def test_the_same_suspension_is_answered_again_and_another_is_refused(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    request = suspend(held, questions=[question("a")])
    first, again = await store.leases.SuspendTask(request), await store.leases.SuspendTask(request)
    assert list(first.keys) == list(again.keys) == ["a"]
    assert (await refusal_of(store.leases.SuspendTask(suspend(held, signal="go")))).reason == "LEASE_LOST"
    assert len((await get(store, held.task_id)).wait.input.requests) == 1


async def test_a_waiting_task_holds_no_lease_and_counts_as_outstanding(store: Stubs, database: asyncpg.Connection) -> None:
    held = (await create_and_lease(store)).lease
    await store.leases.SuspendTask(suspend(held, signal="go"))
    row = await database.fetchrow("SELECT outstanding, leased FROM tenure.tenant WHERE tenant_id = $1", TENANT)
    assert tuple(row) == (1, 0)


async def test_a_cancel_ends_a_waiting_task_at_once_and_its_questions_are_over(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    await store.leases.SuspendTask(suspend(held, questions=[question("a")]))
    outcome = (await store.tasks.CancelTask(cancel(held.task_id))).outcome
    assert outcome == tasks_pb2.CANCEL_OUTCOME_CANCELLED
    assert await answer(store, held.task_id, a=b"1") == ["IGNORED"]
    assert await none_ready(store)


async def test_a_suspension_after_a_wished_end_cancels_instead(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    await store.tasks.CancelTask(cancel(held.task_id))
    await store.leases.SuspendTask(suspend(held, signal="go"))
    assert (await get(store, held.task_id)).state == types_pb2.TASK_STATE_CANCELLED


@pytest.mark.row("T11")
async def test_the_execution_deadline_ends_a_task_that_waits(store: Stubs, clock: Clock, database: asyncpg.Connection) -> None:
    held = (await create_and_lease(store, deadline_ms=60_000)).lease
    await store.leases.SuspendTask(suspend(held, signal="go"))
    await clock.advance(seconds=61)
    await bring_along(store, database)
    ended = await get(store, held.task_id)
    assert ended.error.reason == types_pb2.FAILURE_REASON_EXECUTION_DEADLINE


async def test_a_worker_is_told_at_once_that_the_end_of_its_task_is_wished_for(store: Stubs, second_store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    watch = second_store.leases.WatchLeases(leases_pb2.WatchLeasesRequest(worker_id="w1"))
    nudges = watch.__aiter__()
    await anext(nudges)
    async with asyncio.timeout(30):  # it looks by itself each minute
        await store.tasks.CancelTask(cancel(held.task_id))
        await anext(nudges)
    watch.cancel()


async def test_a_worker_is_told_nothing_when_many_tasks_of_others_end_at_another_store(
    store: Stubs, second_store: Stubs, listening: None
) -> None:
    await set_policy(store, outstanding=100, leased=100)
    held = (await create_and_lease(store)).lease
    for _ in range(50):
        await create(store)
    others = (await store.leases.LeaseTasks(claim(worker_id="w2", limit=50))).tasks
    watch = Watch(second_store, others[-1].lease.task_id)
    assert await watch.state() == "LEASED"
    stream = second_store.leases.WatchLeases(leases_pb2.WatchLeasesRequest(worker_id=held.worker_id))
    nudges = aiter(stream)
    await anext(nudges)
    told = asyncio.ensure_future(anext(nudges))
    await store.leases.CompleteTasks(leases_pb2.CompleteTasksRequest(items=[complete(one.lease) for one in others]))
    assert await watch.state() == "COMPLETED"  # so that the second store has heard of it
    for _ in range(3):
        await second_store.leases.LeaseTasks(claim(workflow="nobody's"))
    assert not told.done()
    await store.tasks.CancelTask(cancel(held.task_id))
    await asyncio.wait_for(told, timeout=30)
    stream.cancel()


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (leases_pb2.SuspendTaskRequest(step="s"), "wait"),
        (leases_pb2.SuspendTaskRequest(step="s", timer=leases_pb2.NewTimerWait(delay_ms=0)), "timer.delay_ms"),
        (leases_pb2.SuspendTaskRequest(step="", timer=leases_pb2.NewTimerWait(delay_ms=1)), "step"),
        (leases_pb2.SuspendTaskRequest(step="s", signal=leases_pb2.NewSignalWait(name="a b")), "signal.name"),
        (leases_pb2.SuspendTaskRequest(step="s", input=leases_pb2.NewInputWait()), "input.requests"),
        (
            leases_pb2.SuspendTaskRequest(step="s", input=leases_pb2.NewInputWait(requests=[question("a"), question("a")])),
            "input.requests.name",
        ),
        (
            leases_pb2.SuspendTaskRequest(step="s", input=leases_pb2.NewInputWait(requests=[question("a#2")])),
            "input.requests.name",
        ),
        (
            leases_pb2.SuspendTaskRequest(step="s", input=leases_pb2.NewInputWait(requests=[question("a", b"{")])),
            "input.requests.params.data",
        ),
        (
            leases_pb2.SuspendTaskRequest(
                step="s", input=leases_pb2.NewInputWait(requests=[question(f"q{n}") for n in range(17)])
            ),
            "input.requests",
        ),
    ],
)
async def test_a_suspension_that_makes_no_sense_is_refused(
    store: Stubs, request_: leases_pb2.SuspendTaskRequest, field: str
) -> None:
    request_ = leases_pb2.SuspendTaskRequest.FromString(request_.SerializeToString())
    request_.lease.CopyFrom((await create_and_lease(store)).lease)
    await assert_invalid(store.leases.SuspendTask(request_), field)
