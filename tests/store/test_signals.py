"""Signals: kept for a task until it waits for them, consumed once, and put away."""

import asyncio
from typing import Any

import asyncpg
import pytest
from taskstore.v1 import retention_pb2, tasks_pb2, types_pb2

from tests.conftest import Clock, Stubs
from tests.store.builders import (
    LOCK_TASK,
    TENANT,
    assert_invalid,
    blocked,
    complete,
    create,
    create_and_lease,
    get,
    history,
    holding,
    lease,
    none_ready,
    publish,
    refusal_of,
    suspend,
)

CONSUMED, PENDING, DEAD = (
    tasks_pb2.SIGNAL_STATE_CONSUMED,
    tasks_pb2.SIGNAL_STATE_PENDING,
    tasks_pb2.SIGNAL_STATE_DEAD_LETTER,
)


async def signal_state(store: Stubs, signal_id: str) -> tasks_pb2.SignalState.ValueType:
    return (await store.tasks.GetSignal(tasks_pb2.GetSignalRequest(tenant_id=TENANT, signal_id=signal_id))).state


async def test_a_signal_wakes_the_task_that_waits_for_it_with_its_bytes(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    await store.leases.SuspendTask(suspend(held, step="approval", signal="approved"))
    assert (await publish(store, held.task_id, name="other")).state == PENDING
    assert await none_ready(store)
    assert (await publish(store, held.task_id, name="approved", data=b'{"by" :"ann"}')).state == CONSUMED
    woken = await lease(store)
    assert woken.wake.signal.name == "approved"
    assert woken.wake.signal.payload.data == b'{"by" :"ann"}'
    assert not (await get(store, held.task_id)).HasField("wait")


async def test_a_signal_sent_before_the_wait_ends_it_at_once_and_the_oldest_comes_first(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    for number in (b"1", b"2"):
        assert (await publish(store, held.task_id, name="item", data=number)).state == PENDING
    for number in (b"1", b"2"):
        await store.leases.SuspendTask(suspend(held, signal="item"))
        woken = await lease(store)
        assert woken.wake.signal.payload.data == number
        held = woken.lease
    await store.leases.SuspendTask(suspend(held, signal="item"))
    assert (await get(store, held.task_id)).state == types_pb2.TASK_STATE_WAITING


@pytest.mark.parametrize(("late_seconds", "state", "cause"), [(-0.5, CONSUMED, "signal"), (0.5, DEAD, "timeout")])
async def test_signal_and_timeout_have_one_winner_by_the_stores_clock(
    store: Stubs, clock: Clock, late_seconds: float, state: "tasks_pb2.SignalState.ValueType", cause: str
) -> None:
    held = (await create_and_lease(store)).lease
    await store.leases.SuspendTask(suspend(held, signal="go", timeout_ms=600_000))
    await clock.advance(seconds=600 + late_seconds)
    assert (await publish(store, held.task_id, name="go", signal_id="s1")).state == state
    await clock.advance(seconds=2)
    assert (await lease(store)).wake.WhichOneof("cause") == cause
    assert await signal_state(store, "s1") == state


async def test_a_signal_is_idempotent_by_id_and_content_also_after_it_was_consumed(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    first = await publish(store, held.task_id, name="go", signal_id="s1", data=b"1")
    again = await publish(store, held.task_id, name="go", signal_id="s1", data=b"1")
    assert (first.replayed, again.replayed) == (False, True)
    for name, data in (("go", b"2"), ("stop", b"1")):
        refused = await refusal_of(publish(store, held.task_id, signal_id="s1", name=name, data=data))
        assert refused.reason == "SIGNAL_ID_CONFLICT"
    await store.leases.SuspendTask(suspend(held, signal="go"))
    assert (await publish(store, held.task_id, name="go", signal_id="s1", data=b"1")).state == CONSUMED
    assert await history(store, held.task_id) == ["CREATED", "LEASED", "SUSPENDED", "WOKEN"]


async def test_signals_to_a_task_that_ended_are_dead_letters_and_so_are_those_it_left(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    await publish(store, held.task_id, name="go", signal_id="left")
    await store.leases.CompleteTask(complete(held))
    assert await signal_state(store, "left") == DEAD
    assert (await publish(store, held.task_id, name="go", signal_id="late")).state == DEAD


async def test_dead_letters_are_listed_page_by_page_newest_first(store: Stubs, clock: Clock) -> None:
    held = (await create_and_lease(store)).lease
    other = await create(store, workflow="other")
    for number in range(5):
        await publish(store, held.task_id, name="go", signal_id=f"left.{number}")
        await clock.advance(seconds=1)
    await publish(store, other.task_id, name="go", signal_id="waits")
    await store.leases.CompleteTask(complete(held))
    for number in range(2):
        await publish(store, held.task_id, name="late", signal_id=f"late.{number}")
    dead, pending = tasks_pb2.SIGNAL_STATE_DEAD_LETTER, tasks_pb2.SIGNAL_STATE_PENDING

    async def listed(**fields: Any) -> list[str]:
        request = tasks_pb2.ListSignalsRequest(tenant_id=TENANT, **fields)
        found: list[tasks_pb2.ListSignalsResponse.Signal] = []
        while True:
            answer = await store.tasks.ListSignals(request)
            assert len(answer.signals) <= (request.page_size or 100)
            found += answer.signals
            if not answer.next_page_token:
                return [one.signal_id for one in found]
            request.page_token = answer.next_page_token

    letters = ["late.1", "late.0", *(f"left.{number}" for number in reversed(range(5)))]
    for page_size in (1, 2, 7, 8, 0):
        assert await listed(states=[dead], page_size=page_size) == letters
        assert await listed(states=[dead], task_id=held.task_id, page_size=page_size) == letters
        assert await listed(page_size=page_size) == [*letters[:2], "waits", *letters[2:]]
    assert await listed(states=[pending]) == await listed(task_id=other.task_id) == ["waits"]
    assert await listed(states=[pending], task_id=held.task_id) == []
    first = (await store.tasks.ListSignals(tasks_pb2.ListSignalsRequest(tenant_id=TENANT))).signals[0]
    assert (first.task_id, first.name, first.state) == (held.task_id, "late", dead)
    read = await store.tasks.GetSignal(tasks_pb2.GetSignalRequest(tenant_id=TENANT, signal_id=first.signal_id))
    assert (read.state, read.accepted_at) == (first.state, first.accepted_at)
    assert not (await store.tasks.ListSignals(tasks_pb2.ListSignalsRequest(tenant_id="other"))).signals


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("tenant_id", {"tenant_id": ""}),
        ("states", {"states": [tasks_pb2.SIGNAL_STATE_UNSPECIFIED]}),
        ("task_id", {"task_id": "x"}),
        ("page_size", {"page_size": 1_001}),
        ("page_token", {"page_token": "x"}),
        ("page_token", {"page_token": "5.a\0"}),
    ],
)
async def test_a_list_of_signals_that_makes_no_sense_is_refused(store: Stubs, field: str, wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"tenant_id": TENANT}
    request = tasks_pb2.ListSignalsRequest(**right | wrong)
    await assert_invalid(store.tasks.ListSignals(request), field)


async def test_compaction_forgets_what_is_over_and_never_what_is_pending(store: Stubs, clock: Clock) -> None:
    held = (await create_and_lease(store)).lease
    other = await create(store)
    await publish(store, held.task_id, name="go", signal_id="over")
    await publish(store, other.task_id, name="go", signal_id="pending")
    await store.leases.CompleteTask(complete(held))
    await clock.advance(seconds=3600)
    request = retention_pb2.CompactSignalsRequest(tenant_id=TENANT, older_than_ms=1_000)
    assert (await store.retention.CompactSignals(request)).compacted == 1
    assert (await refusal_of(signal_state(store, "over"))).reason == "SIGNAL_NOT_FOUND"
    assert await signal_state(store, "pending") == PENDING


async def test_a_signal_that_arrives_while_its_task_is_being_suspended_wakes_it(
    store: Stubs, dsn: str, database: asyncpg.Connection
) -> None:
    """The race in which a signal is marked as consumed and nobody is woken."""
    held = (await create_and_lease(store)).lease
    async with holding(dsn, LOCK_TASK, held.task_id):
        suspending = asyncio.ensure_future(store.leases.SuspendTask(suspend(held, signal="go")))
        await blocked(database)
        publishing = asyncio.ensure_future(publish(store, held.task_id, name="go"))
        await blocked(database, 2)
    await suspending
    assert (await publishing).state == CONSUMED
    assert (await lease(store)).wake.signal.name == "go"


async def test_a_stale_worker_consumes_no_signal(store: Stubs, clock: Clock) -> None:
    """The race in which a suspension whose fence fails eats the signal all the same."""
    stale = (await create_and_lease(store)).lease
    await publish(store, stale.task_id, name="go", signal_id="s1")
    await clock.advance(seconds=31)
    held = (await lease(store, worker_id="w2")).lease
    assert (await refusal_of(store.leases.SuspendTask(suspend(stale, signal="go")))).reason == "LEASE_LOST"
    assert await signal_state(store, "s1") == PENDING
    await store.leases.SuspendTask(suspend(held, signal="go"))
    assert await signal_state(store, "s1") == CONSUMED
