"""Hot statements find their rows by keys, and look at those alone that they are for."""

from typing import Final

from tests.store.plans import BATCH, fill, hot_plans

MOST_ROWS: Final = 2 * BATCH
OF_ONE_TASK: Final = {"task", "task_state", "history", "outcome", "wait", "signal", "input_request", "progress"}
INDEXES: Final = {
    "claim_tasks": {"task_state_pkey", "task_ready", "task_pkey"},
    "heartbeat_tasks": {"task_state_pkey"},
    "get_tasks": {"task_state_pkey", "task_pkey", "outcome_pkey", "wait_pkey"},
    "finish_tasks": {"task_state_pkey", "signal_of_task"},
}


async def test_hot_statements_look_at_those_rows_alone_that_they_are_for(dsn: str) -> None:
    await fill(dsn, tasks=3_000, tenants=30)
    for name, plans in (await hot_plans(dsn)).items():
        scans = [scan for plan in plans for scan in plan.scans() if scan[1] in OF_ONE_TASK]
        assert scans, plans
        assert {index for index, _, _ in scans} <= INDEXES[name], (name, scans)
        assert max(rows for _, _, rows in scans) <= MOST_ROWS, (name, scans)
