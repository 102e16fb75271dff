"""A cancel by request, which a worker may still outrun, and a cancel by force, which nothing outruns."""

import asyncio
from collections import Counter
from typing import Any
from uuid import uuid4

import asyncpg
import grpc
import pytest
from taskstore.v1 import leases_pb2, tasks_pb2, types_pb2

from tests.conftest import Clock, Stubs, serving
from tests.store.builders import (
    LOCK_TASK,
    TENANT,
    assert_lease_lost,
    blocked,
    bring_along,
    cancel,
    claim,
    complete,
    create,
    create_and_lease,
    fail,
    get,
    heartbeat,
    history,
    holding,
    lease,
    refusal_of,
    release,
    retry_policy,
)

REQUESTED = tasks_pb2.CANCEL_OUTCOME_REQUESTED
CANCELLED = tasks_pb2.CANCEL_OUTCOME_CANCELLED
ALREADY = tasks_pb2.CANCEL_OUTCOME_ALREADY_TERMINAL


async def outcome(store: Stubs, task_id: str, *, force: bool = False) -> tasks_pb2.CancelOutcome.ValueType:
    """What a cancel found."""
    return (await store.tasks.CancelTask(cancel(task_id, force=force))).outcome


def confirm(held: types_pb2.Lease) -> leases_pb2.ConfirmCancelRequest:
    return leases_pb2.ConfirmCancelRequest(lease=held)


@pytest.mark.parametrize("force", [False, True])
async def test_a_task_that_no_worker_runs_is_cancelled_at_once(
    store: Stubs, clock: Clock, database: asyncpg.Connection, force: bool
) -> None:
    ready = await create(store, workflow="ready")
    assert await outcome(store, ready.task_id, force=force) == CANCELLED
    await create(store, workflow="resting")
    resting = (await lease(store, workflow="resting")).lease
    await store.leases.FailTask(fail(resting, retry=retry_policy()))
    assert await outcome(store, resting.task_id, force=force) == CANCELLED
    await create(store, workflow="expired")
    expired = (await lease(store, workflow="expired")).lease
    await clock.advance(seconds=31)
    assert await outcome(store, expired.task_id, force=force) == CANCELLED
    for task_id in (ready.task_id, resting.task_id, expired.task_id):
        task = await get(store, task_id)
        assert (task.state, task.cancel_requested) == (types_pb2.TASK_STATE_CANCELLED, True)
        assert not task.WhichOneof("outcome")
    for workflow in ("ready", "resting", "expired"):
        assert not (await store.leases.LeaseTasks(claim(workflow=workflow))).tasks
    await bring_along(store, database)


async def test_a_worker_is_told_and_confirms(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    assert not (await store.leases.HeartbeatTask(heartbeat(held))).cancel_requested
    assert await outcome(store, held.task_id) == REQUESTED
    assert (await get(store, held.task_id)).cancel_requested
    assert (await store.leases.HeartbeatTask(heartbeat(held))).cancel_requested
    await store.leases.ConfirmCancel(confirm(held))
    assert await history(store, held.task_id) == ["CREATED", "LEASED", "CANCEL_REQUESTED", "CANCELLED"]


async def test_a_worker_that_was_told_may_still_finish(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    assert await outcome(store, held.task_id) == REQUESTED
    await store.leases.CompleteTask(complete(held))
    assert await outcome(store, held.task_id) == ALREADY
    held = (await create_and_lease(store)).lease
    assert await outcome(store, held.task_id) == REQUESTED
    await store.leases.FailTask(fail(held))
    assert (await get(store, held.task_id)).state == types_pb2.TASK_STATE_FAILED


async def test_work_whose_end_is_wished_for_does_not_go_back_to_the_queue(
    store: Stubs, clock: Clock, database: asyncpg.Connection
) -> None:
    held = (await create_and_lease(store)).lease
    await outcome(store, held.task_id)
    await store.leases.ReleaseTask(release(held))
    retried = (await create_and_lease(store)).lease
    await outcome(store, retried.task_id)
    answer = await store.leases.FailTask(fail(retried, retry=retry_policy()))
    assert not answer.HasField("retry_at")
    lost = (await create_and_lease(store)).lease
    await store.leases.HeartbeatTask(heartbeat(lost, lease_ms=20_000))
    await outcome(store, lost.task_id)
    await clock.advance(seconds=31)
    await bring_along(store, database)
    for one in (held, retried, lost):
        assert (await get(store, one.task_id)).state == types_pb2.TASK_STATE_CANCELLED
        assert (await history(store, one.task_id))[-1] == "CANCELLED"


async def test_past_the_grace_what_was_asked_is_forced(store: Stubs, clock: Clock, database: asyncpg.Connection) -> None:
    held = (await create_and_lease(store)).lease
    await store.leases.HeartbeatTask(heartbeat(held, lease_ms=600_000))
    await outcome(store, held.task_id)
    await clock.advance(seconds=29)
    await bring_along(store, database)
    await store.leases.HeartbeatTask(heartbeat(held))
    await clock.advance(seconds=2)
    await bring_along(store, database)
    await assert_lease_lost(store.leases.CompleteTask(complete(held)))
    await assert_lease_lost(store.leases.ConfirmCancel(confirm(held)))
    assert await history(store, held.task_id) == ["CREATED", "LEASED", "CANCEL_REQUESTED", "CANCELLED"]


async def test_the_grace_is_the_operators(dsn: str, database: asyncpg.Connection) -> None:
    async with serving(dsn, cancel_grace_seconds=0) as store:
        held = (await create_and_lease(store)).lease
        assert await outcome(store, held.task_id) == REQUESTED
        await bring_along(store, database)
        assert (await get(store, held.task_id)).state == types_pb2.TASK_STATE_CANCELLED


async def test_what_was_forced_refuses_its_worker(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    await outcome(store, held.task_id)
    assert await outcome(store, held.task_id, force=True) == CANCELLED
    for call in (
        store.leases.HeartbeatTask(heartbeat(held)),
        store.leases.CompleteTask(complete(held)),
        store.leases.ConfirmCancel(confirm(held)),
    ):
        await assert_lease_lost(call)


async def test_a_task_of_another_owner_or_tenant_or_of_nobody_is_not_found(store: Stubs) -> None:
    task = await create(store)
    requests = [cancel(task.task_id), cancel(task.task_id, tenant_id="b"), cancel(str(uuid4()))]
    requests[0].owner.CopyFrom(types_pb2.Owner(issuer="test", subject="bob"))
    refused = [await refusal_of(store.tasks.CancelTask(request)) for request in requests]
    assert refused[0] == refused[1] == refused[2]
    assert (refused[0].code, refused[0].reason) == (grpc.StatusCode.NOT_FOUND, "TASK_NOT_FOUND")
    attach = tasks_pb2.AttachTaskRequest(tenant_id=TENANT, task_id=task.task_id, owner=requests[0].owner, abandon_after_ms=1)
    assert await refusal_of(store.tasks.AttachTask(attach)) == refused[0]
    assert await history(store, task.task_id) == ["CREATED"]
    own = cancel(task.task_id)
    own.owner.CopyFrom(types_pb2.Owner(issuer="test", subject="ann"))
    assert (await store.tasks.CancelTask(own)).outcome == CANCELLED


async def test_of_a_cancel_and_a_finish_at_once_just_one_wins(store: Stubs, second_store: Stubs) -> None:
    """Case 21. The result is there if and only if the task is completed."""
    rounds = 60
    for _ in range(rounds):
        await create(store)
    found: list[types_pb2.Lease] = []
    while len(found) < rounds:
        found += [task.lease for task in (await store.leases.LeaseTasks(claim(limit=100))).tasks]

    async def race(number: int, held: types_pb2.Lease) -> Any:
        finish = store.leases.CompleteTask(complete(held))
        force = second_store.tasks.CancelTask(cancel(held.task_id, force=True))
        calls = (finish, force) if number % 2 else (force, finish)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        refused = answers[0 if number % 2 else 1]
        task, lines = await get(store, held.task_id), await history(store, held.task_id)
        cancelled = (await force).outcome
        if isinstance(refused, grpc.aio.AioRpcError):
            assert refused.code() == grpc.StatusCode.FAILED_PRECONDITION
            assert (cancelled, task.state) == (CANCELLED, types_pb2.TASK_STATE_CANCELLED)
            assert not task.HasField("result")
            assert lines == ["CREATED", "LEASED", "CANCELLED"]
            return "cancel"
        assert (cancelled, task.state) == (ALREADY, types_pb2.TASK_STATE_COMPLETED)
        assert task.result.data == b"1"
        assert lines == ["CREATED", "LEASED", "COMPLETED"]
        return "finish"

    won = Counter(await asyncio.gather(*(race(number, held) for number, held in enumerate(found))))
    assert won["cancel"] + won["finish"] == rounds


@pytest.mark.parametrize("first", ["cancel", "finish"])
async def test_a_cancel_and_a_finish_that_wait_for_one_row_are_both_answered(
    store: Stubs, dsn: str, database: asyncpg.Connection, first: str
) -> None:
    held = (await create_and_lease(store)).lease

    def begin(which: str) -> "asyncio.Future[Any]":
        if which == "finish":
            return asyncio.ensure_future(store.leases.CompleteTask(complete(held)))
        return asyncio.ensure_future(store.tasks.CancelTask(cancel(held.task_id, force=True)))

    async with holding(dsn, LOCK_TASK, held.task_id):
        one = begin(first)
        await blocked(database)
        other = begin({"cancel": "finish", "finish": "cancel"}[first])
        await blocked(database, count=2)
    if first == "cancel":
        assert (await one).outcome == CANCELLED
        await assert_lease_lost(other)
    else:
        await one
        assert (await other).outcome == ALREADY
