"""What happened to a budget can be read, for good, and costs nobody who has none. Source: contract, section 12."""

import contextlib
from typing import Any
from uuid import UUID

import asyncpg
import grpc
import pytest
from taskstore.v1 import budgets_pb2, leases_pb2

from tests.conftest import Clock, Stubs
from tests.store.budgets import (
    DIMENSIONS,
    HOUR_MS,
    Amounts,
    budget_of,
    facts,
    reserve,
    reserved_task,
    set_budget,
    settle,
)
from tests.store.builders import (
    TENANT,
    assert_invalid,
    bring_along,
    cancel,
    complete,
    create,
    create_and_lease,
    get,
    lease,
    refusal_of,
)
from tests.store.retention import remove


async def test_the_facts_read_in_order_are_exactly_the_ledger(store: Stubs, clock: Clock, database: asyncpg.Connection) -> None:
    await set_budget(store, Amounts(tokens=100, turns=50))
    for number in range(12):
        await create(store, workflow=f"w{number}")
        held = (await lease(store, workflow=f"w{number}")).lease
        limits = Amounts(tokens=30 + number, turns=number, tool_calls=3)
        request = leases_pb2.ReserveBudgetRequest(lease=held, limits=limits)
        with contextlib.suppress(grpc.aio.AioRpcError):
            await store.leases.ReserveBudget(request)
            match number % 4:
                case 0:
                    request.usage.tokens = number + 1
                    await store.leases.ReserveBudget(request)
                    await store.leases.SettleBudget(settle(held, 2 * number + 2))
                case 1:
                    await store.leases.SettleBudget(settle(held, 1_000))
                case 2:
                    await store.tasks.CancelTask(cancel(held.task_id, force=True))
        await clock.advance(seconds=HOUR_MS / 3_000 if number % 3 == 0 else 1)
        await bring_along(store, database)

    committed, reserved, count = dict.fromkeys(DIMENSIONS, 0), dict.fromkeys(DIMENSIONS, 0), 0
    seen = set()
    for fact in await facts(store):
        kind = budgets_pb2.BudgetFactKind.Name(fact.kind).removeprefix("BUDGET_FACT_KIND_")
        seen.add(kind)
        for dimension in DIMENSIONS:
            if kind in ("POLICY_CONFIGURED", "WINDOW_RESET"):
                committed[dimension] = 0
            if kind == "RESERVED":
                reserved[dimension] += getattr(fact.amount, dimension)
            committed[dimension] += getattr(fact.charged, dimension)
            reserved[dimension] -= getattr(fact.charged, dimension) + getattr(fact.released, dimension)
            assert getattr(fact.budget.committed, dimension) == committed[dimension], fact
            assert getattr(fact.budget.reserved, dimension) == reserved[dimension], fact
        count += {"RESERVED": 1, "SETTLED": -1, "USAGE_EXCEEDED": -1, "FORFEITED": -1}.get(kind, 0)
        assert (fact.budget.reservations, fact.budget.last_cursor) == (count, fact.cursor)
    assert seen >= {"RESERVED", "ADOPTED", "SETTLED", "USAGE_EXCEEDED", "FORFEITED", "WINDOW_RESET", "ADMISSION_DENIED"}
    assert fact.budget == await budget_of(store)


async def test_facts_are_never_changed_and_outlive_their_tasks(
    store: Stubs, clock: Clock, database: asyncpg.Connection
) -> None:
    await set_budget(store, Amounts(tokens=100))
    held = await reserved_task(store)
    await store.leases.SettleBudget(settle(held, 1))
    await store.leases.CompleteTask(complete(held))
    before = await facts(store)
    await clock.advance(seconds=3 * 86_400)
    assert len(await remove(store)) == 1
    assert await database.fetchval("SELECT count(*) FROM tenure.reservation") == 0
    with pytest.raises(asyncpg.RaiseError, match="never changed"):
        await database.execute("UPDATE tenure.budget_fact SET token = 0")
    assert await facts(store) == before


async def test_the_fact_of_an_excess_names_the_worker_that_took_over(store: Stubs, clock: Clock) -> None:
    await set_budget(store, Amounts(tokens=100))
    await reserved_task(store, 10)
    await clock.advance(seconds=31)
    held = (await lease(store, worker_id="w2")).lease
    assert (await refusal_of(store.leases.ReserveBudget(reserve(held, 10, used=11)))).reason == "BUDGET_EXCEEDED"
    fact = (await facts(store))[-1]
    assert (fact.kind, fact.worker_id, fact.token) == (budgets_pb2.BUDGET_FACT_KIND_USAGE_EXCEEDED, "w2", held.token)


async def test_a_tenant_without_a_budget_is_told_so_and_pays_nothing_for_it(store: Stubs, database: asyncpg.Connection) -> None:
    held = (await create_and_lease(store)).lease
    for call in (store.leases.ReserveBudget(reserve(held, 1)), store.leases.SettleBudget(settle(held, 1)), budget_of(store)):
        refused = await refusal_of(call)
        assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "BUDGET_NOT_CONFIGURED")
    assert not (await store.budgets.ListBudgetFacts(budgets_pb2.ListBudgetFactsRequest(tenant_id=TENANT))).facts
    lost, gone = (await create_and_lease(store)).lease, (await create(store)).task_id
    fence = ([TENANT], [UUID(held.task_id)], ["w1"], [held.token], [held.epoch])
    async with database.transaction():
        await database.fetch("SELECT * FROM tenure.heartbeat_tasks($1, $2, $3, $4, $5, '{30000}')", *fence)
        finish = (
            "SELECT outcome FROM tenure.finish_tasks($1, $2, $3, $4, $5, '{COMPLETED}', '{a}', '{x}', '{b}', '{null}', "
            "'{null}', '{null}', '{null}', '{null}', '{null}')"
        )
        assert await database.fetchval(finish, *fence) == "OK"
        cancelling = "SELECT outcome FROM tenure.cancel_tasks($1, $2, '{null}', '{null}', '{t}', '{QUEUED}', 1)"
        assert await database.fetchval(cancelling, [TENANT], [UUID(gone)]) == "CANCELLED"
        await database.execute("UPDATE clock.shift SET by = '3 days'")
        assert await database.fetchval("SELECT event FROM tenure.promote_due(10, 1, 10)") == "LEASE_EXPIRED"
        assert (
            await database.fetchval("SELECT outcome FROM tenure.claim_cleanup(tenure.allow($1), 'o', 'p', 60000)", TENANT)
            == "TAKEN"
        )
        removal = "SELECT count(*) FROM tenure.remove_tasks(tenure.allow($1), 'o', 'p', 1, 1, 10)"
        assert await database.fetchval(removal, TENANT) == 2
        looks = await database.fetch(
            "SELECT relname, coalesce(seq_scan, 0) + coalesce(idx_scan, 0) AS scans FROM pg_stat_xact_user_tables "
            "WHERE relname = ANY ($1)",
            ["budget", "reservation", "budget_fact", "task_state"],
        )
        scans = {row["relname"]: row["scans"] for row in looks}
    assert scans.pop("task_state") > 0
    assert scans == {"budget": 0, "reservation": 0, "budget_fact": 0}
    assert (await get(store, lost.task_id)).attempts == 1


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ({}, "policy.limits"),
        ({"limits": Amounts(tokens=-1)}, "policy.limits.tokens"),
        ({"limits": Amounts(turns=10**15 + 1)}, "policy.limits.turns"),
        ({"limits": Amounts(turns=1), "window_ms": 0}, "policy.window_ms"),
        ({"limits": Amounts(turns=1), "recovery_ms": -1}, "policy.recovery_ms"),
    ],
)
async def test_a_policy_that_makes_no_sense_is_refused(store: Stubs, policy: dict[str, Any], field: str) -> None:
    message = budgets_pb2.BudgetPolicy(**{"window_ms": 1, **policy})
    request = budgets_pb2.SetBudgetPolicyRequest(tenant_id=TENANT, policy=message)
    await assert_invalid(store.budgets.SetBudgetPolicy(request), field)
