"""The points around what writes: before its commit, after it, and before the items of a batch are told. See
`store_service/fault_points.py`."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

import asyncpg

from store_service.fault_points import FaultPoints

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


def connection_class(points: FaultPoints | None) -> Any:
    """Connections that reach the points, or asyncpg's own where there are none."""
    if points is None:
        return asyncpg.Connection
    reach = points.reach

    class Reaching(asyncpg.Connection):  # type: ignore[misc] # the driver has no types
        async def fetch(self, query: str, *args: Any, **named: Any) -> Any:
            return await around(query, partial(super().fetch, query, *args, **named))

        async def fetchval(self, query: str, *args: Any, **named: Any) -> Any:
            return await around(query, partial(super().fetchval, query, *args, **named))

    async def around(query: str, statement: Callable[[], Awaitable[Any]]) -> Any:
        name = query.partition("\n")[0].removeprefix("-- ")
        if name not in WRITES:
            return await statement()
        await reach(f"store.{name}.before_commit")
        answer = await statement()
        await reach(f"store.{name}.after_commit")
        return answer

    return Reaching


def reaching_batch(points: FaultPoints | None, operation: str, run: Batch) -> Batch:
    """What runs a batch and then reaches its point; as it is where there are none."""
    if points is None:
        return run

    async def run_and_reach(items: Sequence[Any]) -> Sequence[Any]:
        outcomes = await run(items)
        await points.reach(f"store.{operation}.before_answers")
        return outcomes

    return run_and_reach
