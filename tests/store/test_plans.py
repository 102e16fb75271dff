"""Hot statements find their rows by keys, and look at those alone that they are for."""

from typing import Final

import asyncpg
import pytest
import pytest_asyncio

from tests.store.other_plans import other_plans
from tests.store.plans import BATCH, Plan, Plans, Scan, fill, hot_plans, pages_of_lists, planned_anew

MOST_ROWS: Final = 2 * BATCH
OF_ONE_TASK: Final = {
    "task",
    "task_state",
    "history",
    "outcome",
    "wait",
    "signal",
    "input_request",
    "progress",
    "checkpoint",
    "early_answer",
}
SIGNALS: Final = {"signal_of_task", "signal_pending"}
"""Either finds the pending ones of a task by its key."""
INDEXES: Final = {
    "create_tasks": {"task_tenant_id_request_id_key"},
    "claim_tasks": {"task_state_pkey", "task_ready", "task_pkey"},
    "heartbeat_tasks": {"task_state_pkey"},
    "append_checkpoints": {"task_state_pkey"},
    "changed_tasks": {"task_state_pkey"},
    "get_tasks": {"task_state_pkey", "task_pkey", "outcome_pkey", "wait_pkey"},
    "finish_tasks": {"task_state_pkey", *SIGNALS},
    "promote_due": {"task_state_pkey", "task_due", "wait_pkey", *SIGNALS, "input_request_tenant_id_task_id_key_key"},
    "list_tasks": {"task_listed"},
    "list_all_tasks": {"task_created"},
}
COUNTED: Final = ("explain_task", "task_ready")
"""How many are ahead of a task is counted, up to a bound."""
OF_THE_LAST_LINE: Final = 2
"""Of a history of 20 lines, why a task waits is told from the last one."""
MOST_PAGES: Final = 60
INDEX_ONLY: Final = {("claim_tasks", "lane_turn"), ("list_tasks", "task_listed"), ("list_all_tasks", "task_created")}
"""Whose turn it is, and what is on a page, is read from the index alone. Whatever else there is locks rows, or brings them."""

WITH_OPTION: Final = """
SELECT array_agg(relname::text) FROM pg_class
WHERE relnamespace = 'tenure'::regnamespace AND relkind = 'r' AND $1 = ANY (reloptions)"""


@pytest.fixture
def dsn(unvisited: str) -> str:
    """No plan hangs on when Postgres looked at the tables, or at what tests before left in them."""
    return unvisited


@pytest.fixture(params=["VACUUM ANALYZE", "VACUUM", "ANALYZE", ""])
def then(request: pytest.FixtureRequest) -> str:
    """What was done once there were tasks. Tables are analyzed seldom, see `analyze_seldom`."""
    return str(request.param)


@pytest_asyncio.fixture
async def plans(dsn: str, then: str) -> Plans:
    await fill(dsn, tasks=3_000, tenants=30, then=then)
    return await hot_plans(dsn)


def scans(plans: list[Plan]) -> list[Scan]:
    return [scan for plan in plans for scan in plan.scans()]


def assert_they_go_by_keys(plans: Plans) -> None:
    assert plans.keys() == INDEXES.keys()
    for name, ran in plans.items():
        looks = [scan for scan in scans(ran) if scan.table in OF_ONE_TASK]
        assert looks, ran
        assert {scan.index for scan in looks} <= INDEXES[name], (name, looks)
        assert_few_rows(name, [scan for scan in scans(ran) if scan.table in {"lane", *OF_ONE_TASK}])


def assert_few_rows(name: str, looks: list[Scan], bound: int = MOST_ROWS) -> None:
    assert looks, name
    most = max(looks, key=lambda scan: scan.rows + scan.in_vain)
    assert most.rows + most.in_vain <= bound, (name, most)


async def test_hot_statements_look_at_those_rows_alone_that_they_are_for(plans: Plans) -> None:
    assert_they_go_by_keys(plans)


async def test_a_tenant_with_many_tasks_is_looked_at_by_key_though_each_had_one_when_tables_were_analyzed(dsn: str) -> None:
    await fill(dsn, tasks=1_000, tenants=1_000)
    await fill(dsn, tasks=3_000, tenants=10, then="")
    assert_they_go_by_keys(await hot_plans(dsn, tenant_ids=[f"t{number}" for number in range(10)]))


async def test_turns_and_pages_are_read_from_their_indexes_alone(plans: Plans) -> None:
    for name, index in INDEX_ONLY:
        looks = [scan for scan in scans(plans[name]) if scan.index == index]
        assert looks, (name, scans(plans[name]))
        assert all(scan.is_index_only for scan in looks), (name, looks)


async def test_what_is_looked_at_is_as_much_where_ten_times_as_many_tasks_wait(dsn: str, plans: Plans, then: str) -> None:
    few = {name: ran[-1].buffers() for name, ran in plans.items()}
    await fill(dsn, tasks=27_000, tenants=30, then=then)
    many = {name: ran[-1].buffers() for name, ran in (await hot_plans(dsn)).items()}
    assert all(few.values())
    assert {name: pages for name, pages in many.items() if pages > 2 * few[name] + BATCH // 2} == {}, few


@pytest.mark.parametrize("then", ["VACUUM ANALYZE", "ANALYZE"])
async def test_whatever_is_asked_of_a_task_looks_at_no_other(dsn: str, then: str) -> None:
    await fill(dsn, tasks=3_000, tenants=10, with_more=True, then=then)
    for name, ran in (await other_plans(dsn)).items():
        looks = [scan for scan in scans(ran) if scan.table in OF_ONE_TASK]
        bound = OF_THE_LAST_LINE if name == "explain_task" else MOST_ROWS
        assert_few_rows(name, [scan for scan in looks if (name, scan.index) != COUNTED], bound)


async def test_the_last_page_of_a_list_is_found_as_the_first_is(dsn: str, then: str) -> None:
    await fill(dsn, tasks=2_000, tenants=1, then=then, with_more=True)
    for name, looked_at in (await pages_of_lists(dsn)).items():
        assert len(looked_at) == 2_000 // BATCH, name
        assert looked_at[-1] <= min(looked_at[0], MOST_PAGES), (name, looked_at)


async def test_a_session_plans_nothing_anew_whichever_roles_its_functions_have_in_turn(dsn: str) -> None:
    await fill(dsn, tasks=3_000, tenants=30)
    assert await planned_anew(dsn) == []


async def test_tables_are_analyzed_as_they_double_and_small_ones_are_read_by_their_key(dsn: str) -> None:
    database = await asyncpg.connect(dsn)
    assert set(await database.fetchval(WITH_OPTION, "autovacuum_analyze_scale_factor=1")) >= OF_ONE_TASK
    seldom = await database.fetchval(WITH_OPTION, "autovacuum_analyze_threshold=100000")
    assert {"tenant", "lane", "task_state"} <= set(seldom)
    assert not {"task", "history", "outcome"} & set(seldom)
    grown = ", ".join(f"tenure.{table}" for table in OF_ONE_TASK - set(seldom))
    await fill(dsn, tasks=500, tenants=1, then=f"ANALYZE {grown}")
    assert {scan.index for scan in scans((await hot_plans(dsn))["get_tasks"]) if scan.table == "task"} == {"task_pkey"}
    await database.close()
