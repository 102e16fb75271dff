"""The points around what writes: before its commit, after it, and before the items of a batch are told. See
`store_service/fault_points.py`."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import asyncpg

from store_service.db.queries import name_of
from store_service.fault_points import FaultPoints

Answer = TypeVar("Answer")
Statement = Callable[[asyncpg.Connection, str, Sequence[Any]], Awaitable[Answer]]
Batch = Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]

WRITES: Final = frozenset(
    {
        *("create_tasks", "cancel_tasks", "attach_tasks", "answer_inputs", "publish_signal", "fork_task", "compact_signals"),
        *("claim_tasks", "heartbeat_tasks", "append_checkpoints", "report_progress", "finish_tasks", "suspend_tasks"),
        *("reserve_budget", "settle_budget", "set_budget_policy", "confirm_budget_export", "compact_budget_facts"),
        *("set_tenant_policy", "pause_work", "resume_work", "redrive_tasks", "add_audit_line", "add_audit_outcome"),
        *("claim_cleanup", "heartbeat_cleanup", "release_cleanup", "remove_tasks", "place_hold", "release_hold"),
        *("confirm_export", "prepare_purge", "claim_purge", "decide_purge", "execute_purge"),
        *("promote_due", "forget_claims", "meter_budget_facts", "record_registrations", "forget_registrations", "notify"),
    }
)
"""The queries that write, each a transaction of its own."""
BATCHED: Final = frozenset(
    {
        *("create_tasks", "get_tasks", "cancel_tasks", "attach_tasks"),
        *("heartbeat_tasks", "append_checkpoints", "report_progress", "finish_tasks", "suspend_tasks"),
    }
)
"""The operations that many callers share a statement of."""
POINTS: Final = frozenset(
    {f"store.{query}.{at}" for query in WRITES for at in ("before_commit", "after_commit")}
    | {f"store.{operation}.before_answers" for operation in BATCHED}
)


def reaching_statement(points: FaultPoints | None, run: Statement[Answer]) -> Statement[Answer]:
    """What runs a statement of its own transaction, and reaches its points if it is one that writes; as it is where there are
    none."""
    if points is None:
        return run
    reach = points.reach

    async def reach_and_run(connection: asyncpg.Connection, query: str, arguments: Sequence[Any]) -> Answer:
        name = name_of(query)
        if name not in WRITES:
            return await run(connection, query, arguments)
        await reach(f"store.{name}.before_commit")
        answer = await run(connection, query, arguments)
        await reach(f"store.{name}.after_commit")
        return answer

    return reach_and_run


def reaching_batch(points: FaultPoints | None, operation: str, run: Batch) -> Batch:
    """What runs a batch and then reaches its point; as it is where there are none."""
    if points is None:
        return run

    async def run_and_reach(items: Sequence[Any]) -> Sequence[Any]:
        outcomes = await run(items)
        await points.reach(f"store.{operation}.before_answers")
        return outcomes

    return run_and_reach
