"""How reservations end, settled before their leases or charged wholly, and how windows do. Source: contract, section 12."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import asyncpg
import grpc
import pytest
from taskstore.v1 import budgets_pb2, leases_pb2, types_pb2

from tests.conftest import Clock, Stubs
from tests.store.budgets import (
    GRACE_SECONDS,
    Amounts,
    budget_of,
    facts,
    kinds,
    reserve,
    reserved_task,
    set_budget,
    settle,
    tokens,
)
from tests.store.builders import (
    LOCK_TENANT,
    TENANT,
    assert_lease_lost,
    blocked,
    bring_along,
    cancel,
    complete,
    create_and_lease,
    fail,
    get,
    heartbeat,
    holding,
    lease,
    refusal_of,
    release,
    retry_policy,
    suspend,
)

FINISHES: Final[dict[str, Callable[[Stubs, types_pb2.Lease], Awaitable[Any]]]] = {
    "complete": lambda store, held: store.leases.CompleteTask(complete(held)),
    "fail": lambda store, held: store.leases.FailTask(fail(held)),
    "retry": lambda store, held: store.leases.FailTask(fail(held, retry=retry_policy())),
    "release": lambda store, held: store.leases.ReleaseTask(release(held)),
    "confirm": lambda store, held: store.leases.ConfirmCancel(leases_pb2.ConfirmCancelRequest(lease=held)),
    "timer": lambda store, held: store.leases.SuspendTask(suspend(held, timer_ms=1_000)),
    "signal": lambda store, held: store.leases.SuspendTask(suspend(held, signal="go")),
}


@pytest.mark.parametrize("finish", FINISHES)
async def test_no_lease_is_ended_before_its_reservation_is_settled(store: Stubs, clock: Clock, finish: str) -> None:
    await set_budget(store, Amounts(tokens=100))
    held = await reserved_task(store)
    refused = await refusal_of(FINISHES[finish](store, held))
    assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "BUDGET_RESERVED")
    assert (await get(store, held.task_id)).state == types_pb2.TASK_STATE_LEASED
    await store.leases.SettleBudget(settle(held, 1))
    await FINISHES[finish](store, held)
    await FINISHES[finish](store, held)
    assert (await get(store, held.task_id)).state != types_pb2.TASK_STATE_LEASED


@pytest.mark.parametrize("finish", FINISHES)
async def test_a_stale_worker_is_told_of_its_lease_and_not_of_the_reservation(store: Stubs, clock: Clock, finish: str) -> None:
    await set_budget(store, Amounts(tokens=100))
    held = await reserved_task(store)
    await clock.advance(seconds=31)
    await assert_lease_lost(FINISHES[finish](store, held))
    await lease(store, worker_id="w2")
    for call in (
        FINISHES[finish](store, held),
        store.leases.ReserveBudget(reserve(held, 100)),
        store.leases.SettleBudget(settle(held, 1)),
    ):
        await assert_lease_lost(call)
    assert await kinds(store) == ["RESERVED"]


async def test_one_item_that_must_settle_first_does_not_spoil_its_batch(store: Stubs) -> None:
    await set_budget(store, Amounts(tokens=100))
    held = await reserved_task(store)
    other = (await create_and_lease(store)).lease
    request = leases_pb2.CompleteTasksRequest(items=[complete(held), complete(other)])
    outcomes = [item.WhichOneof("outcome") for item in (await store.leases.CompleteTasks(request)).items]
    assert outcomes == ["refused", "completed"]


async def test_the_lease_is_compared_under_the_lock_by_reserve_and_settle(
    store: Stubs, clock: Clock, dsn: str, database: asyncpg.Connection
) -> None:
    """A lease that runs out while the call waits for the tenant is lost."""
    await set_budget(store, Amounts(tokens=100))
    held = await reserved_task(store)
    async with holding(dsn, LOCK_TENANT, TENANT):
        calls = [
            asyncio.ensure_future(store.leases.SettleBudget(settle(held, 1))),
            asyncio.ensure_future(store.leases.ReserveBudget(reserve(held, 100, used=1))),
        ]
        await blocked(database, 2)
        await clock.advance(seconds=31)
    for call in calls:
        await assert_lease_lost(call)


async def test_heartbeats_keep_a_reservation_as_long_as_the_lease(
    store: Stubs, clock: Clock, database: asyncpg.Connection
) -> None:
    await set_budget(store, Amounts(tokens=100), grace_s=0)
    held = await reserved_task(store)
    for _ in range(10):
        await clock.advance(seconds=25)
        await store.leases.HeartbeatTask(heartbeat(held))
    await bring_along(store, database)
    assert await tokens(store) == (0, 100, 1)
    await store.leases.SettleBudget(settle(held, 7))
    assert await tokens(store) == (7, 0, 0)


async def test_a_worker_that_was_heard_of_only_when_it_settled_is_a_crash_when_it_is_lost(
    store: Stubs, clock: Clock, database: asyncpg.Connection
) -> None:
    await set_budget(store, Amounts(tokens=100))
    await reserved_task(store)
    await clock.advance(seconds=31)
    held = (await lease(store, worker_id="w2")).lease
    await store.leases.SettleBudget(settle(held, 1))
    await clock.advance(seconds=31)
    await bring_along(store, database)
    assert (await get(store, held.task_id)).crashes == 2


@pytest.mark.parametrize("promoted", [True, False])
async def test_a_reservation_that_nobody_adopts_in_time_is_charged_wholly(
    store: Stubs, clock: Clock, database: asyncpg.Connection, promoted: bool
) -> None:
    await set_budget(store, Amounts(tokens=100))
    held = await reserved_task(store, 80)
    if promoted:
        await clock.advance(seconds=31)
        await bring_along(store, database)
        await clock.advance(seconds=GRACE_SECONDS - 5)
        await bring_along(store, database)
        assert await tokens(store) == (0, 80, 1), "it may still be adopted"
        await clock.advance(seconds=5)
    else:
        await clock.advance(seconds=31 + GRACE_SECONDS)
    await bring_along(store, database)
    assert await tokens(store) == (80, 0, 0)
    assert await kinds(store) == ["RESERVED", "FORFEITED RECOVERY_EXPIRED"]
    lost = (await facts(store))[-1]
    assert (lost.task_id, lost.worker_id, lost.amount.tokens, lost.charged.tokens) == (held.task_id, "w1", 80, 80)
    again = (await lease(store, worker_id="w2")).lease
    answer = await store.leases.ReserveBudget(reserve(again, 80, used=70))
    assert (answer.reserved.tokens, answer.adopted) == (10, False)


async def test_a_takeover_in_time_keeps_the_reservation_beyond_its_grace(
    store: Stubs, clock: Clock, database: asyncpg.Connection
) -> None:
    await set_budget(store, Amounts(tokens=100))
    await reserved_task(store, 80)
    await clock.advance(seconds=30 + GRACE_SECONDS - 5)
    held = (await lease(store, worker_id="w2")).lease
    await clock.advance(seconds=10)
    await bring_along(store, database)
    assert (await store.leases.ReserveBudget(reserve(held, 80))).adopted


@pytest.mark.parametrize(
    ("seconds", "fields", "forced", "cause"),
    [
        (0, {}, True, "CANCELLED"),
        (31, {}, False, "CANCELLED"),
        (31, {"abandon_ms": 20_000}, None, "CANCELLED"),
        (21, {"deadline_ms": 20_000}, None, "FAILED"),
    ],
    ids=["force", "lease expired", "abandoned", "deadline"],
)
async def test_a_task_that_ends_without_its_worker_forfeits_what_it_holds(
    store: Stubs,
    clock: Clock,
    database: asyncpg.Connection,
    seconds: int,
    fields: dict[str, int],
    forced: bool | None,
    cause: str,
) -> None:
    await set_budget(store, Amounts(tokens=100))
    held = await reserved_task(store, 80, **fields)
    await clock.advance(seconds=seconds)
    if forced is not None:
        await store.tasks.CancelTask(cancel(held.task_id, force=forced))
    await bring_along(store, database)
    assert (await get(store, held.task_id)).HasField("ended_at")
    assert await tokens(store) == (80, 0, 0)
    assert await kinds(store) == ["RESERVED", f"FORFEITED {cause}"]


async def test_a_forced_cancel_of_a_task_between_two_leases_forfeits_too(
    store: Stubs, clock: Clock, database: asyncpg.Connection
) -> None:
    await set_budget(store, Amounts(tokens=100))
    held = await reserved_task(store, 80)
    await clock.advance(seconds=31)
    await bring_along(store, database)
    assert (await get(store, held.task_id)).state == types_pb2.TASK_STATE_QUEUED
    await store.tasks.CancelTask(cancel(held.task_id))
    assert await kinds(store) == ["RESERVED", "FORFEITED CANCELLED"]
    assert await tokens(store) == (80, 0, 0)


async def test_a_cancel_by_request_leaves_the_worker_its_time_to_settle(store: Stubs) -> None:
    await set_budget(store, Amounts(tokens=100))
    held = await reserved_task(store, 80)
    await store.tasks.CancelTask(cancel(held.task_id))
    await store.leases.SettleBudget(settle(held, 5))
    await store.leases.ConfirmCancel(leases_pb2.ConfirmCancelRequest(lease=held))
    assert await kinds(store) == ["RESERVED", "SETTLED"]


async def test_a_window_is_reset_by_the_next_reservation_once_it_has_passed_and_nothing_is_reserved(
    store: Stubs, clock: Clock
) -> None:
    await set_budget(store, Amounts(tokens=100))
    held = await reserved_task(store, 60)
    await store.leases.SettleBudget(settle(held, 60))
    busy = await reserved_task(store, 40)
    started = (await budget_of(store)).window_started_at
    await store.leases.HeartbeatTask(heartbeat(busy, lease_ms=900_000))
    for _ in range(5):
        await clock.advance(seconds=890)
        await store.leases.HeartbeatTask(heartbeat(busy, lease_ms=900_000))
    waiting = (await create_and_lease(store)).lease
    refused = await refusal_of(store.leases.ReserveBudget(reserve(waiting, 1)))
    assert refused.reason == "BUDGET_DENIED", "the window has passed, but something is reserved in it"
    await store.leases.SettleBudget(settle(busy, 0))
    await store.leases.ReserveBudget(reserve(waiting, 100))
    assert await tokens(store) == (0, 100, 1)
    budget = await budget_of(store)
    assert (budget.window_started_at.ToDatetime() - started.ToDatetime()).total_seconds() >= 3600
    assert (await kinds(store))[-4:] == ["ADMISSION_DENIED", "SETTLED", "WINDOW_RESET", "RESERVED"]


async def test_a_window_is_not_reset_before_its_time(store: Stubs, clock: Clock) -> None:
    await set_budget(store, Amounts(tokens=100))
    held = await reserved_task(store, 60)
    await store.leases.SettleBudget(settle(held, 60))
    await store.leases.CompleteTask(complete(held))
    await clock.advance(seconds=3_590)
    held = (await create_and_lease(store)).lease
    assert (await refusal_of(store.leases.ReserveBudget(reserve(held, 41)))).reason == "BUDGET_DENIED"
    await clock.advance(seconds=11)
    await store.leases.ReserveBudget(reserve(held, 41))


async def test_a_policy_is_changed_only_while_nothing_is_reserved_and_starts_a_new_window(store: Stubs) -> None:
    await set_budget(store, Amounts(tokens=100))
    held = await reserved_task(store, 60)
    remove = budgets_pb2.RemoveBudgetPolicyRequest(tenant_id=TENANT)
    for change in (set_budget(store, Amounts(tokens=1_000)), store.budgets.RemoveBudgetPolicy(remove)):
        refused = await refusal_of(change)
        assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "BUDGET_RESERVED")
    await store.leases.SettleBudget(settle(held, 60))
    changed = await set_budget(store, Amounts(turns=5, tokens=200))
    assert (changed.committed, changed.policy.limits) == (Amounts(tokens=0, turns=0), Amounts(tokens=200, turns=5))
    await store.budgets.RemoveBudgetPolicy(remove)
    assert (await refusal_of(budget_of(store))).reason == "BUDGET_NOT_CONFIGURED"
    assert (await refusal_of(store.budgets.RemoveBudgetPolicy(remove))).reason == "BUDGET_NOT_CONFIGURED"
    for call in (store.leases.ReserveBudget(reserve(held, 1)), store.leases.SettleBudget(settle(held, 61))):
        assert (await refusal_of(call)).reason == "BUDGET_NOT_CONFIGURED"
    last = (await facts(store))[-1]
    assert (last.kind, last.budget.HasField("policy")) == (budgets_pb2.BUDGET_FACT_KIND_POLICY_REMOVED, False)
    await set_budget(store, Amounts(tokens=3))
    assert (await facts(store))[-1].cursor == last.cursor + 1
