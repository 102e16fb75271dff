"""The table of transitions, held against what the store really does from every state with every command."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import asyncpg
import pytest
from taskstore.v1 import leases_pb2, tasks_pb2, tenants_pb2, types_pb2

from store_service.model.states import TERMINAL, TRANSITIONS, Command, TaskState
from tests.conftest import Clock, Stubs
from tests.store.builders import (
    TENANT,
    assert_lease_lost,
    bring_along,
    cancel,
    claim,
    complete,
    create,
    fail,
    get,
    history,
    lease,
    publish,
    release,
    retry_policy,
    suspend,
)

HOUR_MS: Final = 3_600_000
UNDER_LEASE: Final[dict[Command, Callable[[Stubs, types_pb2.Lease], Awaitable[Any]]]] = {
    # None of them is the finish that led to the state, which would be answered again.
    Command.COMPLETE: lambda store, held: store.leases.CompleteTask(complete(held, b"2")),
    Command.FAIL: lambda store, held: store.leases.FailTask(fail(held, message="another")),
    Command.RETRY: lambda store, held: store.leases.FailTask(fail(held, retry=retry_policy())),
    Command.RELEASE: lambda store, held: store.leases.ReleaseTask(release(held, delay_ms=5_000)),
    Command.SUSPEND: lambda store, held: store.leases.SuspendTask(suspend(held, timer_ms=HOUR_MS)),
    Command.CONFIRM_CANCEL: lambda store, held: store.leases.ConfirmCancel(leases_pb2.ConfirmCancelRequest(lease=held)),
}


async def _arrange(store: Stubs, state: TaskState) -> types_pb2.Lease:
    """A task in this state, and the last lease it had. Its workflow has the state's name."""
    await create(store, workflow=state, deadline_ms=HOUR_MS)
    held = (await lease(store, workflow=state)).lease
    match state:
        case TaskState.LEASED:
            pass
        case TaskState.QUEUED:
            await store.leases.ReleaseTask(release(held))
        case TaskState.WAITING:
            await store.leases.SuspendTask(suspend(held, signal="go"))
        case TaskState.COMPLETED:
            await store.leases.CompleteTask(complete(held))
        case TaskState.FAILED:
            await store.leases.FailTask(fail(held))
        case TaskState.CANCELLED:
            await store.tasks.CancelTask(cancel(held.task_id, force=True))
    return held


async def _apply(store: Stubs, held: types_pb2.Lease, state: TaskState, command: Command) -> None:
    froms, _ = TRANSITIONS[command]
    if command in UNDER_LEASE:
        call = UNDER_LEASE[command](store, held)
        await (call if state in froms else assert_lease_lost(call))
    elif command is Command.CLAIM:
        found = await store.leases.LeaseTasks(claim(workflow=state))
        assert len(found.tasks) == (state in froms)
    elif command is Command.WAKE:
        await publish(store, held.task_id, name="go")
    elif command is Command.REDRIVE:
        request = tenants_pb2.RedriveTasksRequest(
            tenant_id=TENANT, request_id=state, actor="ann", task_ids=[held.task_id], limit=1
        )
        redriven, not_failed = tenants_pb2.REDRIVE_OUTCOME_REDRIVEN, tenants_pb2.REDRIVE_OUTCOME_NOT_FAILED
        (item,) = (await store.tenants.RedriveTasks(request)).items
        assert item.outcome == (redriven if state in froms else not_failed)
    elif command is Command.CANCEL:
        outcome = (await store.tasks.CancelTask(cancel(held.task_id, force=True))).outcome
        was_live = outcome == tasks_pb2.CANCEL_OUTCOME_CANCELLED
        assert was_live or outcome == tasks_pb2.CANCEL_OUTCOME_ALREADY_TERMINAL
        assert was_live == (state in froms)


@pytest.mark.parametrize("command", Command)
async def test_a_command_leads_where_the_table_says_and_from_nowhere_else(
    store: Stubs, database: asyncpg.Connection, clock: Clock, command: Command
) -> None:
    held = {state: await _arrange(store, state) for state in TaskState}
    before = {state: await get(store, held[state].task_id) for state in TaskState}
    for state in TaskState:
        await _apply(store, held[state], state, command)
    if command is Command.EXPIRE_LEASE:
        await clock.advance(seconds=31)
    if command is Command.EXPIRE_DEADLINE:
        await clock.advance(seconds=HOUR_MS / 1000 + 1)
    await bring_along(store, database)
    froms, to = TRANSITIONS[command]
    for state in TaskState:
        after = await get(store, held[state].task_id)
        lines = await history(store, held[state].task_id)
        assert after.state == types_pb2.TaskState.Value(f"TASK_STATE_{to if state in froms else state}"), state
        if state in froms:
            assert after.change == before[state].change + 1
            assert after.HasField("ended_at") == (to in TERMINAL)
            assert after.WhichOneof("outcome") == {"COMPLETED": "result", "FAILED": "error"}.get(to)
        else:
            assert after.change == before[state].change, state
            before[state].read_at.CopyFrom(after.read_at)
            assert after == before[state]
        assert len(lines) == after.change


def test_nothing_but_a_redrive_leaves_a_terminal_state() -> None:
    assert {TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED} == TERMINAL
    for command, (froms, _) in TRANSITIONS.items():
        assert not froms & TERMINAL or command is Command.REDRIVE
