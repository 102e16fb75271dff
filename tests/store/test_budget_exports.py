"""The facts of budgets are kept until somebody else keeps them, and counted by every fact once or more, never less."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from typing import Final
from unittest.mock import AsyncMock

import asyncpg
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from taskstore.v1 import budgets_pb2

from store_service.db.budgets import BudgetRows
from store_service.db.pool import Database, open_database
from store_service.operations import chores
from store_service.operations.budget_figures import BudgetFigures
from tests.conftest import Clock, Stubs, open_stubs, store_on
from tests.pair import metrics_at
from tests.store.budgets import HOUR_MS, Amounts, budget_of, reserve, reserved_task, set_budget, settle
from tests.store.builders import TENANT, assert_invalid, cancel, complete, create_and_lease, refusal_of, until

FACTS: Final = "tenure_store_budget_facts_total"


@pytest.fixture(autouse=True)
def nobody_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store leaves the figures to the test."""
    monkeypatch.setattr("store_service.server.BudgetFigures", lambda *_, **__: AsyncMock())


@pytest.fixture
async def pool(dsn: str) -> AsyncIterator[Database]:
    """The statements of a store that does not run."""
    database = await open_database(dsn, size=4, registry=CollectorRegistry())
    yield database
    await database.close()


async def use(store: Stubs, tokens: int) -> None:
    """A task that reserves, uses, settles and ends: two facts, and a third where a window is over."""
    held = await reserved_task(store, 50)
    await store.leases.SettleBudget(settle(held, tokens))
    await store.leases.CompleteTask(complete(held))


async def confirm(store: Stubs, through: int) -> int:
    request = budgets_pb2.ConfirmBudgetExportRequest(tenant_id=TENANT, through_cursor=through)
    return (await store.budgets.ConfirmBudgetExport(request)).exported_cursor


async def compact(store: Stubs, *, limit: int = 0, older_than_ms: int = 1) -> tuple[int, int]:
    request = budgets_pb2.CompactBudgetFactsRequest(tenant_id=TENANT, older_than_ms=older_than_ms, limit=limit)
    answer = await store.budgets.CompactBudgetFacts(request)
    return answer.compacted, answer.compacted_cursor


async def page(store: Stubs, after: int = 0) -> budgets_pb2.ListBudgetFactsResponse:
    return await store.budgets.ListBudgetFacts(budgets_pb2.ListBudgetFactsRequest(tenant_id=TENANT, after_cursor=after))


async def count_all(pool: Database) -> None:
    await BudgetFigures(BudgetRows(pool), registry=CollectorRegistry()).record_facts()


async def two_windows(store: Stubs, clock: Clock) -> None:
    """Five facts of a window that is over, and three of the one that goes on."""
    await set_budget(store, Amounts(tokens=100))
    await use(store, 10)
    await use(store, 20)
    await clock.advance(seconds=HOUR_MS / 1_000 + 1)
    await use(store, 30)
    assert [fact.cursor for fact in (await page(store)).facts] == list(range(1, 9))


async def test_facts_of_a_window_that_is_over_are_forgotten_once_they_are_kept_elsewhere(
    store: Stubs, clock: Clock, pool: Database
) -> None:
    await two_windows(store, clock)
    await count_all(pool)
    assert await compact(store) == (0, 0), "nobody said that they are kept elsewhere"
    assert await confirm(store, 3) == 3
    await clock.advance(seconds=1)
    assert await compact(store, older_than_ms=2 * HOUR_MS) == (0, 0), "they are not old enough"
    assert await compact(store, limit=2) == (2, 2)
    assert await compact(store) == (1, 3)
    assert await compact(store) == (0, 3)
    left = await page(store)
    assert ([fact.cursor for fact in left.facts], left.compacted_cursor) == ([4, 5, 6, 7, 8], 3)


async def test_what_is_left_is_always_the_ledger_of_the_window(store: Stubs, clock: Clock, pool: Database) -> None:
    await two_windows(store, clock)
    held = await reserved_task(store, 40)
    await count_all(pool)
    assert await confirm(store, 9) == 9
    await clock.advance(seconds=1)
    assert await compact(store, limit=1_000) == (5, 5)
    committed = reserved = 0
    facts = (await page(store, after=5)).facts
    assert facts[0].kind == budgets_pb2.BUDGET_FACT_KIND_WINDOW_RESET
    for fact in facts:
        reserved += fact.amount.tokens if fact.kind == budgets_pb2.BUDGET_FACT_KIND_RESERVED else 0
        committed += fact.charged.tokens
        reserved -= fact.charged.tokens + fact.released.tokens
    budget = await budget_of(store)
    assert (budget.committed.tokens, budget.reserved.tokens) == (committed, reserved) == (30, 40)
    await store.leases.SettleBudget(settle(held, 1))


async def test_facts_that_no_figures_count_yet_are_kept(store: Stubs, clock: Clock, pool: Database) -> None:
    await two_windows(store, clock)
    await confirm(store, 8)
    await clock.advance(seconds=1)
    rows = BudgetRows(pool)
    first = await rows.meter_budget_facts({}, tenants=1, facts=2, hold_ms=HOUR_MS)
    assert [fact.cursor for fact in first] == [1, 2]
    assert await compact(store) == (0, 0)
    await rows.meter_budget_facts({TENANT: 1}, tenants=0, facts=1, hold_ms=1)
    assert await compact(store) == (1, 1)


async def test_a_confirmation_never_goes_back_and_never_past_the_last_fact(store: Stubs) -> None:
    assert await confirm(store, 0) == 0
    await set_budget(store, Amounts(tokens=100))
    await use(store, 1)
    assert [await confirm(store, through) for through in (2, 1, 0, 2)] == [2, 2, 2, 2]
    over = budgets_pb2.ConfirmBudgetExportRequest(tenant_id=TENANT, through_cursor=4)
    await assert_invalid(store.budgets.ConfirmBudgetExport(over), "through_cursor")
    assert await confirm(store, 0) == 2


async def test_an_exporter_that_dies_before_it_confirms_keeps_some_twice_and_misses_none(store: Stubs) -> None:
    await set_budget(store, Amounts(tokens=1_000))
    kept: list[int] = []
    for number in range(4):
        await use(store, number)
        facts = (await page(store, after=await confirm(store, 0))).facts
        kept += [fact.cursor for fact in facts]
        if number != 1:  # it dies here, once
            await confirm(store, facts[-1].cursor)
    assert sorted(set(kept)) == list(range(1, 10))
    assert sorted(kept) == [1, 2, 3, 4, 4, 5, 5, 6, 7, 8, 9]


def figures(text: str) -> Mapping[str, float]:
    """Every sample of budgets that is not nought, by its name and labels."""
    found = re.findall(r"^(tenure_store_budget_\w+(?:\{[^}]*\})?) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found if float(value) and "_created" not in name}


async def test_what_happens_to_budgets_is_counted_and_nobody_is_named(store: Stubs, pool: Database) -> None:
    await set_budget(store, Amounts(tokens=100, turns=8))
    held = (await create_and_lease(store)).lease
    request = reserve(held, 60)
    request.limits.turns = 4
    await store.leases.ReserveBudget(request)
    other = (await create_and_lease(store)).lease
    request = reserve(other, 60)
    request.limits.turns = 4
    assert (await refusal_of(store.leases.ReserveBudget(request))).reason == "BUDGET_DENIED"
    await store.leases.SettleBudget(settle(held, 10))
    request = reserve(other, 20)
    request.limits.turns = 1
    await store.leases.ReserveBudget(request)
    await store.tasks.CancelTask(cancel(other.task_id, force=True))

    registry = CollectorRegistry()
    await BudgetFigures(BudgetRows(pool), registry=registry).record_facts()
    text = generate_latest(registry).decode()
    assert TENANT not in text
    seen = figures(text)
    assert {name: value for name, value in seen.items() if name.startswith(FACTS)} == {
        f'{FACTS}{{cause="",kind="POLICY_CONFIGURED"}}': 1,
        f'{FACTS}{{cause="",kind="RESERVED"}}': 2,
        f'{FACTS}{{cause="",kind="ADMISSION_DENIED"}}': 1,
        f'{FACTS}{{cause="",kind="SETTLED"}}': 1,
        f'{FACTS}{{cause="CANCELLED",kind="FORFEITED"}}': 1,
    }
    amounts = {what: seen[f'tenure_store_budget_amounts_total{{dimension="tokens",what="{what}"}}'] for what in
               ("reserved", "denied", "charged", "released")}  # fmt: skip
    assert amounts == {"reserved": 80, "denied": 60, "charged": 30, "released": 50}
    assert seen["tenure_store_budget_reservation_age_seconds_count"] == 2
    assert seen['tenure_store_budget_utilisation_bucket{dimension="tokens",le="0.75"}'] == 6
    assert seen['tenure_store_budget_utilisation_sum{dimension="tokens"}'] == pytest.approx(0.6 + 0.6 + 0.1 + 0.3 + 0.3)


async def test_figures_repeat_what_a_store_that_died_had_counted_and_skip_nothing(
    store: Stubs, clock: Clock, pool: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await set_budget(store, Amounts(tokens=1_000))
    for number in range(3):
        await use(store, number)
    rows, dead, alive = BudgetRows(pool), CollectorRegistry(), CollectorRegistry()
    dying = BudgetRows(pool)
    handed_out = await rows.meter_budget_facts({}, tenants=9, facts=5, hold_ms=30_000)
    monkeypatch.setattr(dying, "meter_budget_facts", AsyncMock(side_effect=[handed_out, ConnectionError]))
    with pytest.raises(ConnectionError):
        await BudgetFigures(dying, registry=dead).record_facts()
    survivor = BudgetFigures(rows, registry=alive)
    await survivor.record_facts()
    assert figures(generate_latest(alive).decode()) == {}, "they are held by the one that died"
    await clock.advance(seconds=31)
    await survivor.record_facts()
    await survivor.record_facts()

    def total(registry: CollectorRegistry) -> float:
        return sum(v for name, v in figures(generate_latest(registry).decode()).items() if name.startswith(FACTS))

    assert (total(dead), total(alive)) == (5, 7)


async def test_two_stores_count_each_fact_once(dsn: str, database: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store_service.server.BudgetFigures", BudgetFigures)
    monkeypatch.setattr(chores, "METER_SECONDS", 0.01)
    stores = [store_on(dsn) for _ in range(2)]
    for one in stores:
        await one.start()
    async with open_stubs(stores[0]) as store:
        await set_budget(store, Amounts(tokens=10_000))
        for number in range(10):
            await use(store, number)

        async def all_are_counted() -> bool:
            return bool(await database.fetchval("SELECT bool_and(metered = 21) FROM tenure.budget_export"))

        await until(all_are_counted, "every fact is counted")
    texts = [await asyncio.to_thread(metrics_at, one.admin_port) for one in stores]
    for one in stores:
        await one.stop()
    assert sum(value for text in texts for name, value in figures(text).items() if name.startswith(FACTS)) == 21
