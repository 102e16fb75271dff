"""A tenant's budget: nothing runs that does not fit, and what was used is charged once. Source: contract, section 12."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import asyncpg
import grpc
import pytest
from taskstore.v1 import budgets_pb2, leases_pb2, types_pb2

from tests.conftest import Clock, Stubs
from tests.store.budgets import (
    DIMENSIONS,
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
    assert_invalid,
    assert_lease_lost,
    blocked,
    cancel,
    claim,
    complete,
    create,
    create_and_lease,
    fail,
    holding,
    lease,
    refusal_of,
    release,
)


async def test_what_is_reserved_is_held_until_it_is_settled_and_then_only_the_use_is_charged(store: Stubs) -> None:
    assert (await set_budget(store, Amounts(tokens=100))).committed == Amounts(tokens=0)
    held = (await create_and_lease(store)).lease
    answer = await store.leases.ReserveBudget(reserve(held, 60, used=10))
    assert (answer.reserved, answer.adopted) == (Amounts(tokens=50), False)
    assert await tokens(store) == (0, 50, 1)
    settled = await store.leases.SettleBudget(settle(held, 40))
    assert (settled.charged.tokens, settled.released.tokens) == (30, 20)
    assert await tokens(store) == (30, 0, 0)
    await store.leases.CompleteTask(complete(held))
    assert await kinds(store) == ["RESERVED", "SETTLED"]
    fact = (await facts(store))[2]
    assert (fact.task_id, fact.worker_id, fact.token) == (held.task_id, "w1", 1)
    assert (fact.amount.tokens, fact.charged.tokens, fact.released.tokens) == (30, 30, 20)
    assert fact.budget == await budget_of(store)


async def test_a_budget_that_is_taken_away_at_once_is_answered_as_it_was_set(
    store: Stubs, dsn: str, database: asyncpg.Connection
) -> None:
    await set_budget(store, Amounts(tokens=1))
    async with holding(dsn, LOCK_TENANT, TENANT):
        setting = asyncio.ensure_future(set_budget(store, Amounts(tokens=100)))
        await blocked(database)
        removing = asyncio.ensure_future(
            store.budgets.RemoveBudgetPolicy(budgets_pb2.RemoveBudgetPolicyRequest(tenant_id=TENANT))
        )
        await blocked(database, count=2)
    assert (await setting).policy.limits == Amounts(tokens=100)
    await removing


@pytest.mark.parametrize("dimension", DIMENSIONS)
async def test_each_dimension_admits_to_its_limit_and_no_further(store: Stubs, dimension: str) -> None:
    await set_budget(store, Amounts(**dict.fromkeys(DIMENSIONS, 100)))
    rest = dict.fromkeys(DIMENSIONS, 1)
    for worker, amount in enumerate((60, 39)):
        await create(store)
        held = (await lease(store, worker_id=f"w{worker}")).lease
        await store.leases.ReserveBudget(
            leases_pb2.ReserveBudgetRequest(lease=held, limits=Amounts(**{**rest, dimension: amount}))
        )
    before = await budget_of(store)
    held = (await create_and_lease(store)).lease
    request = leases_pb2.ReserveBudgetRequest(lease=held, limits=Amounts(**{**rest, dimension: 2}))
    refused = await refusal_of(store.leases.ReserveBudget(request))
    assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "BUDGET_DENIED")
    assert refused.retry_after_ms == 5_000
    after = await budget_of(store)
    assert after.last_cursor == before.last_cursor + 1
    after.last_cursor = before.last_cursor
    assert after == before, "a refusal leaves the counters alone"
    denied = (await facts(store))[-1]
    assert (denied.kind, denied.amount) == (budgets_pb2.BUDGET_FACT_KIND_ADMISSION_DENIED, request.limits)
    await store.leases.ReleaseTask(release(held))
    held = (await lease(store)).lease
    request = leases_pb2.ReserveBudgetRequest(lease=held, limits=Amounts(**{**rest, dimension: 1}))
    assert (await store.leases.ReserveBudget(request)).reserved == request.limits
    reserved = (await budget_of(store)).reserved
    assert getattr(reserved, dimension) == 100


async def test_dimensions_without_a_limit_are_neither_asked_for_nor_counted(store: Stubs) -> None:
    await set_budget(store, Amounts(tokens=100))
    held = (await create_and_lease(store)).lease
    await assert_invalid(
        store.leases.ReserveBudget(leases_pb2.ReserveBudgetRequest(lease=held, limits=Amounts(turns=1))), "limits"
    )
    request = leases_pb2.ReserveBudgetRequest(lease=held, limits=Amounts(tokens=5, turns=1), usage=Amounts(turns=9))
    assert (await store.leases.ReserveBudget(request)).reserved == Amounts(tokens=5)
    usage = Amounts(tokens=5, turns=50, delegations=7)
    await store.leases.SettleBudget(leases_pb2.SettleBudgetRequest(lease=held, usage=usage))
    assert (await budget_of(store)).committed == Amounts(tokens=5)


async def test_a_takeover_adopts_the_reservation_and_what_was_used_since_is_charged(store: Stubs, clock: Clock) -> None:
    await set_budget(store, Amounts(tokens=100))
    await reserved_task(store, 80)
    await clock.advance(seconds=31)
    held = (await lease(store, worker_id="w2")).lease
    answer = await store.leases.ReserveBudget(reserve(held, 80, used=30))
    assert (answer.reserved.tokens, answer.adopted) == (50, True)
    assert await tokens(store) == (30, 50, 1)
    adopted = (await facts(store))[-1]
    assert (adopted.worker_id, adopted.token, adopted.amount.tokens, adopted.charged.tokens) == ("w2", 2, 30, 30)
    assert 31_000 <= adopted.reservation_age_ms < 60_000
    assert (await store.leases.SettleBudget(settle(held, 70))).charged.tokens == 40
    assert await tokens(store) == (70, 0, 0)
    assert await kinds(store) == ["RESERVED", "ADOPTED", "SETTLED"]


async def test_the_same_reserve_is_answered_again_and_writes_no_second_fact(store: Stubs) -> None:
    await set_budget(store, Amounts(tokens=100))
    held = await reserved_task(store, 60)
    again = await store.leases.ReserveBudget(reserve(held, 60))
    assert (again.reserved.tokens, again.adopted) == (60, True)
    assert await kinds(store) == ["RESERVED"]
    assert await tokens(store) == (0, 60, 1)


@pytest.mark.parametrize(("limit", "used"), [(81, 30), (79, 30), (80, 9)], ids=["wider", "narrower", "less used"])
async def test_an_adoption_with_another_envelope_or_less_use_is_a_conflict(store: Stubs, limit: int, used: int) -> None:
    await set_budget(store, Amounts(tokens=100))
    held = (await create_and_lease(store)).lease
    await store.leases.ReserveBudget(reserve(held, 80, used=10))
    refused = await refusal_of(store.leases.ReserveBudget(reserve(held, limit, used)))
    assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "BUDGET_CONFLICT")
    assert await tokens(store) == (0, 70, 1)


async def test_a_use_above_the_tasks_limits_is_a_conflict_before_anything_is_reserved(store: Stubs) -> None:
    await set_budget(store, Amounts(tokens=100))
    held = (await create_and_lease(store)).lease
    assert (await refusal_of(store.leases.ReserveBudget(reserve(held, 10, used=11)))).reason == "BUDGET_CONFLICT"
    assert (await store.leases.ReserveBudget(reserve(held, 10, used=10))).reserved == Amounts(tokens=0)


@pytest.mark.parametrize("by", ["settle", "adopt"])
async def test_use_beyond_the_reservation_charges_all_of_it_and_the_task_can_be_failed(store: Stubs, by: str) -> None:
    """Or it would be taken, refused and given back for ever."""
    await set_budget(store, Amounts(tokens=100))
    held = await reserved_task(store, 80)

    def use_too_much() -> Awaitable[Any]:
        return (
            store.leases.SettleBudget(settle(held, 95)) if by == "settle" else store.leases.ReserveBudget(reserve(held, 80, 95))
        )

    refused = await refusal_of(use_too_much())
    assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "BUDGET_EXCEEDED")
    assert await tokens(store) == (80, 0, 0)
    fact = (await facts(store))[-1]
    assert (fact.amount.tokens, fact.charged.tokens) == (95, 80)
    again = await refusal_of(use_too_much())
    assert again.reason == ("BUDGET_EXCEEDED" if by == "settle" else "BUDGET_CONFLICT")
    assert await kinds(store) == ["RESERVED", "USAGE_EXCEEDED"]
    await store.leases.FailTask(fail(held))


async def test_the_same_settlement_is_answered_again_and_another_is_a_conflict(store: Stubs, clock: Clock) -> None:
    await set_budget(store, Amounts(tokens=100))
    held = await reserved_task(store, 80)
    first, again = await store.leases.SettleBudget(settle(held, 30)), await store.leases.SettleBudget(settle(held, 30))
    assert first == again
    assert (await refusal_of(store.leases.SettleBudget(settle(held, 31)))).reason == "BUDGET_CONFLICT"
    assert await tokens(store) == (30, 0, 0)
    assert await kinds(store) == ["RESERVED", "SETTLED"]
    await clock.advance(seconds=31)
    assert await store.leases.SettleBudget(settle(held, 30)) == first, "the answer may have been lost with the lease"
    await assert_lease_lost(store.leases.SettleBudget(settle(held, 31)))


async def test_a_settlement_of_less_than_was_charged_and_one_of_nothing_reserved_are_conflicts(store: Stubs) -> None:
    await set_budget(store, Amounts(tokens=100))
    held = (await create_and_lease(store)).lease
    assert (await refusal_of(store.leases.SettleBudget(settle(held, 0)))).reason == "BUDGET_CONFLICT"
    await store.leases.ReserveBudget(reserve(held, 80, used=10))
    assert (await refusal_of(store.leases.SettleBudget(settle(held, 9)))).reason == "BUDGET_CONFLICT"
    assert await tokens(store) == (0, 70, 1)


async def test_a_settled_task_may_reserve_again_under_the_same_lease(store: Stubs) -> None:
    await set_budget(store, Amounts(tokens=100))
    held = await reserved_task(store, 80)
    await store.leases.SettleBudget(settle(held, 30))
    answer = await store.leases.ReserveBudget(reserve(held, 80, used=30))
    assert (answer.reserved.tokens, answer.adopted) == (50, False)
    assert await tokens(store) == (30, 50, 1)
    await store.leases.SettleBudget(settle(held, 30))
    assert await tokens(store) == (30, 0, 0)


async def test_fifty_workers_at_once_never_reserve_more_than_there_is(store: Stubs, second_store: Stubs) -> None:
    await set_budget(store, Amounts(tokens=100, cost_micro_usd=1_000_000))
    await asyncio.gather(*(create(store) for _ in range(50)))
    leased = (await store.leases.LeaseTasks(claim(limit=50))).tasks
    assert len(leased) == 50

    async def work(number: int, held: types_pb2.Lease) -> bool:
        leases = (store, second_store)[number % 2].leases
        limits = Amounts(tokens=7, cost_micro_usd=7)
        try:
            await leases.ReserveBudget(leases_pb2.ReserveBudgetRequest(lease=held, limits=limits))
        except grpc.aio.AioRpcError as error:
            return error.code() != grpc.StatusCode.RESOURCE_EXHAUSTED
        return True

    admitted = await asyncio.gather(*(work(number, one.lease) for number, one in enumerate(leased)))
    assert sum(admitted) == 14
    assert await tokens(store) == (0, 98, 14)
    assert sorted(await kinds(store)) == ["ADMISSION_DENIED"] * 36 + ["RESERVED"] * 14


async def test_budgets_of_tenants_are_apart(store: Stubs) -> None:
    await set_budget(store, Amounts(tokens=10))
    await set_budget(store, Amounts(tokens=10), tenant_id="other")
    held = await reserved_task(store, 10)
    await create(store, tenant_id="other")
    other = (await lease(store, tenant_ids=["other"])).lease
    await store.leases.ReserveBudget(reserve(other, 10))
    assert (await budget_of(store, "other")).reserved.tokens == 10
    await store.leases.SettleBudget(settle(held, 3))
    assert (await budget_of(store, "other")).committed.tokens == 0


async def test_the_largest_amounts_are_counted_and_a_limit_of_nothing_lets_nothing_run(store: Stubs) -> None:
    most = 10**15
    await set_budget(store, Amounts(tokens=most, turns=0))
    held = (await create_and_lease(store)).lease
    request = leases_pb2.ReserveBudgetRequest(lease=held, limits=Amounts(tokens=most, turns=1))
    assert (await refusal_of(store.leases.ReserveBudget(request))).reason == "BUDGET_DENIED"
    request.limits.turns = 0
    assert (await store.leases.ReserveBudget(request)).reserved == request.limits
    await store.tasks.CancelTask(cancel(held.task_id, force=True))
    assert (await budget_of(store)).committed == request.limits
