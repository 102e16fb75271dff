"""At every point where a commit and its reply may come apart, they do, and what is asked again is done once.

Each point is in one of the tables here: who adds a point says how it is reached.
"""

import ast
import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import asyncpg
import grpc
import pytest
from google.protobuf.message import Message
from grpc_status import rpc_status
from taskstore.v1 import leases_pb2, retention_pb2, tasks_pb2, tenants_pb2

from mcp_bridge.config import read_config as read_bridge_config
from store_service.archive.batches import BatchId
from store_service.archive.fault_points import POINTS as ARCHIVE_POINTS
from store_service.archive.folder import Folder
from store_service.client import TaskStore
from store_service.config import read_config
from store_service.db.fault_points import BATCHED, WRITES
from store_service.db.fault_points import POINTS as COMMIT_POINTS
from store_service.fault_points import EXIT_CODE
from store_service.rpc.fault_points import POINTS as REPLY_POINTS
from store_service.rpc.fault_points import STREAMS
from store_service.rpc.rules import WRITING
from store_service.settings import ConfigError
from tests.conftest import Clock, Stubs, serving
from tests.databases import EMPTY
from tests.pair import ROOT, Pair
from tests.robustness.points import Armoury
from tests.security.store.conftest import Guarded, guarded, guarding
from tests.store.budgets import Amounts, set_budget
from tests.store.builders import (
    TENANT,
    cancel,
    claim,
    complete,
    create,
    create_and_lease,
    new_task,
    refusal_in,
    suspend,
    until,
)
from tests.store.refusals.calls import Scene, a_request, call
from tests.store.retention import (
    DAY,
    approve_purge,
    claim_purge,
    cleanup_lease,
    confirm_export,
    ended,
    execute_purge,
    hold,
    prepare_purge,
    prepared,
    reject_purge,
    release_hold,
    remove_tasks,
    removed,
)

__all__ = ["guarded"]

STATEMENT_OF: Final = {
    "create_tasks": "CreateTask", "get_tasks": "GetTask", "cancel_tasks": "CancelTask", "attach_tasks": "AttachTask",
    "answer_inputs": "AnswerInputs", "publish_signal": "PublishSignal", "fork_task": "ForkTask",
    "compact_signals": "CompactSignals", "claim_tasks": "LeaseTasks", "heartbeat_tasks": "HeartbeatTask",
    "append_checkpoints": "AppendCheckpoint", "report_progress": "ReportProgress", "finish_tasks": "CompleteTask",
    "suspend_tasks": "SuspendTask", "reserve_budget": "ReserveBudget", "settle_budget": "SettleBudget",
    "set_budget_policy": "SetBudgetPolicy", "confirm_budget_export": "ConfirmBudgetExport",
    "compact_budget_facts": "CompactBudgetFacts", "set_tenant_policy": "SetTenantPolicy", "pause_work": "PauseWork",
    "resume_work": "ResumeWork", "redrive_tasks": "RedriveTasks", "claim_cleanup": "ClaimCleanup",
    "heartbeat_cleanup": "HeartbeatCleanup", "release_cleanup": "ReleaseCleanup", "remove_tasks": "RemoveTasks",
    "place_hold": "PlaceHold", "release_hold": "ReleaseHold", "confirm_export": "ConfirmExport",
    "prepare_purge": "PreparePurge", "claim_purge": "ClaimPurge", "decide_purge": "ApprovePurge",
    "execute_purge": "ExecutePurge",
}  # fmt: skip
"""By which method a statement is reached."""
BY_ITSELF: Final = frozenset(
    {"promote_due", "forget_claims", "meter_budget_facts", "record_registrations", "forget_registrations", "notify"}
)
"""Statements that a store runs by itself, soon after its start."""
ONCE_A_MINUTE: Final = frozenset({"forget_claims", "forget_registrations"})
"""Those of them that a test sees once."""
OF_OPERATORS: Final = frozenset({"add_audit_line", "add_audit_outcome"})
"""Statements around a call of an operator, where callers are known."""
DONE_AGAIN: Final = frozenset({"ReportProgress", "SetBudgetPolicy"})
"""Methods whose repetition is another one: a report is kept again, a budget's window begins again."""
TOLD_TWICE: Final = {
    "AppendCheckpoint": "REVISION_CONFLICT", "AppendCheckpoints": "REVISION_CONFLICT", "ReleaseCleanup": "LEASE_LOST",
    "RemoveBudgetPolicy": "BUDGET_NOT_CONFIGURED",
}  # fmt: skip
"""How a repetition of what was done is answered otherwise than the first time, and tells so that it was done."""
LOST: Final = frozenset({"", "OUTCOME_UNKNOWN", "STORAGE_UNAVAILABLE"})
"""How whoever does not know is answered; the empty one is gRPC's own."""

BY_METHOD: Final = (
    {f"store.{method}.before_reply": method for method in WRITING}
    | {f"store.{method}.before_message": method for method in STREAMS}
    | {
        f"store.{query}.{at}": STATEMENT_OF[query]
        for query in WRITES & set(STATEMENT_OF)
        for at in ("before_commit", "after_commit")
    }
    | {f"store.{operation}.before_answers": STATEMENT_OF[operation] for operation in BATCHED}
)
TABLES: Final = (
    "SELECT relname FROM pg_class WHERE relnamespace = 'tenure'::regnamespace AND relkind = 'r' AND relname <> ALL ($1)"
)
UNCOUNTED: Final = ["registration", "budget_export"]
"""Tables that a store writes by itself."""
PARTS: Final = (
    "SELECT t::text FROM (SELECT state, token, lines, checkpoints, change FROM tenure.task_state) t ORDER BY 1",
    "SELECT t::text FROM (SELECT outstanding, leased, tombstones FROM tenure.tenant) t",
    "SELECT t::text FROM (SELECT facts, committed, reserved FROM tenure.budget) t",
)


@pytest.fixture
def armoury(tmp_path: Path) -> Armoury:
    """Where points are armed."""
    return Armoury(tmp_path / "faults")


def serving_with(dsn: str, armoury: Armoury, **settings: Any) -> AbstractAsyncContextManager[Stubs]:
    """A store that may go wrong."""
    return serving(dsn, fault_points=str(armoury.folder), **settings)


@pytest.fixture
async def faulty(dsn: str, armoury: Armoury) -> AsyncIterator[Stubs]:
    """The same, for as long as a test goes on."""
    async with serving_with(dsn, armoury) as stubs:
        yield stubs


async def outcome(store: Stubs, method: str, request: Message) -> str:
    """`OK`, or the reason of a refusal; empty for one of gRPC's own."""
    try:
        answer: Any = await call(store, method, request)
    except grpc.aio.AioRpcError as error:
        status = rpc_status.from_call(error)
        return "" if status is None else refusal_in(status).reason
    told = answer.items[-1] if "items" in answer.DESCRIPTOR.fields_by_name and answer.items else None
    return refusal_in(told.refused).reason if told is not None and told.HasField("refused") else "OK"


async def request_for(store: Stubs, database: asyncpg.Connection, method: str) -> Message:
    """A request that is granted, in a database where nothing else has happened."""
    await database.execute(EMPTY)
    if method in GRANTED:
        return await GRANTED[method](store, Clock(database))
    await set_budget(store, Amounts(tokens=1_000))
    return await a_request(Scene(store, database), method)


async def _confirm_export(store: Stubs, clock: Clock) -> retention_pb2.ConfirmExportRequest:
    await removed(store, clock, 1)
    return confirm_export(1)


async def _prepare_purge(store: Stubs, clock: Clock) -> Message:
    await store.governance.ConfirmExport(await _confirm_export(store, clock))
    return prepare_purge(await cleanup_lease(store))


async def _claim_purge(store: Stubs, clock: Clock) -> Message:
    await prepared(store, clock, 1)
    return claim_purge(1)


async def _approve_purge(store: Stubs, clock: Clock) -> retention_pb2.ApprovePurgeRequest:
    await prepared(store, clock, 1)
    return approve_purge(1)


async def _reject_purge(store: Stubs, clock: Clock) -> Message:
    await prepared(store, clock, 1)
    return reject_purge(1)


async def _execute_purge(store: Stubs, clock: Clock) -> Message:
    await store.governance.ApprovePurge(await _approve_purge(store, clock))
    return execute_purge(await cleanup_lease(store))


async def _remove_tasks(store: Stubs, clock: Clock) -> Message:
    await ended(store, ttl_ms=1)
    await clock.advance(seconds=2 * DAY)
    return remove_tasks(await cleanup_lease(store))


async def _release_hold(store: Stubs, _: Clock) -> Message:
    await hold(store, (await create(store)).task_id)
    return release_hold(1)


async def _confirm_cancel(store: Stubs, _: Clock) -> Message:
    leased = await create_and_lease(store)
    await store.tasks.CancelTask(cancel(leased.lease.task_id))
    return leases_pb2.ConfirmCancelRequest(lease=leased.lease)


async def _suspend_task(store: Stubs, _: Clock) -> Message:
    return suspend((await create_and_lease(store)).lease, timer_ms=3_600_000)


async def _watch_tasks(store: Stubs, _: Clock) -> Message:
    task_id = (await create(store)).task_id
    return tasks_pb2.WatchTasksRequest(add=[tasks_pb2.WatchedTask(number=1, tenant_id=TENANT, task_id=task_id)])


async def _watch_leases(_: Stubs, __: Clock) -> Message:
    return leases_pb2.WatchLeasesRequest(worker_id="w1")


GRANTED: Final[dict[str, Callable[[Stubs, Clock], Awaitable[Message]]]] = {
    "ConfirmExport": _confirm_export, "PreparePurge": _prepare_purge, "ClaimPurge": _claim_purge,
    "ApprovePurge": _approve_purge, "RejectPurge": _reject_purge, "ExecutePurge": _execute_purge,
    "RemoveTasks": _remove_tasks, "ReleaseHold": _release_hold, "ConfirmCancel": _confirm_cancel,
    "SuspendTask": _suspend_task, "WatchTasks": _watch_tasks, "WatchLeases": _watch_leases,
}  # fmt: skip
"""How a request is made that needs more to be granted than most."""


async def picture(database: asyncpg.Connection) -> list[Any]:
    """What there is, by state and count, after a look that nothing is wrong with the counters."""
    assert await database.fetch("SELECT a::text FROM tenure.audit a UNION ALL SELECT b::text FROM tenure.budget_audit b") == []
    tables = [row["relname"] for row in await database.fetch(TABLES, UNCOUNTED)]
    counts = " UNION ALL ".join(f"SELECT '{table}' AS name, count(*) FROM tenure.{table}" for table in tables)
    return [await database.fetch(query) for query in (*PARTS, f"{counts} ORDER BY name")]


@pytest.mark.parametrize("method", sorted(WRITING | STREAMS | {"GetTask"}))
async def test_what_is_lost_at_a_point_and_asked_again_is_done_once(
    faulty: Stubs, database: asyncpg.Connection, armoury: Armoury, method: str
) -> None:
    request = await request_for(faulty, database, method)
    plainly = await outcome(faulty, method, request), await picture(database)
    for point in sorted(point for point, reached_by in BY_METHOD.items() if reached_by == method):
        request = await request_for(faulty, database, method)
        armoury.arm(point, "raise")
        assert await outcome(faulty, method, request) in LOST, point
        assert armoury.fired[point] == 1, point
        again, seen = await outcome(faulty, method, request), await picture(database)
        assert again == plainly[0] or (again == TOLD_TWICE.get(method) and not point.endswith("before_commit")), point
        assert seen == plainly[1] or method in DONE_AGAIN, point


@pytest.mark.parametrize("query", sorted(BY_ITSELF))
async def test_a_store_outlives_what_breaks_in_its_own_work(
    dsn: str, database: asyncpg.Connection, armoury: Armoury, query: str
) -> None:
    before, after = f"store.{query}.before_commit", f"store.{query}.after_commit"
    armoury.arm(before if query not in ONCE_A_MINUTE else after, "raise")
    async with serving_with(dsn, armoury) as store:
        await create(store)
        await store.leases.LeaseTasks(claim(workflow="other", wait_ms=10))  # a registration, and hints, are of something
        if query in ONCE_A_MINUTE:
            await until(lambda: is_fired(armoury, after), f"{query} was reached")
        else:
            await until(lambda: is_fired(armoury, before), f"{query} was reached")
            armoury.arm(after, "raise")
            await until(lambda: is_fired(armoury, after), f"{query} was reached again")
        await create(store)
        [leased] = (await store.leases.LeaseTasks(claim(limit=1))).tasks
        await store.leases.CompleteTask(complete(leased.lease))
    await picture(database)


async def is_fired(armoury: Armoury, point: str) -> bool:
    return bool(armoury.fired[point])


@pytest.mark.parametrize("point", sorted(ARCHIVE_POINTS))
async def test_a_batch_that_was_archived_and_not_confirmed_is_archived_again_as_it_was(
    store: Stubs, clock: Clock, dsn: str, tmp_path: Path, armoury: Armoury, point: str
) -> None:
    await ended(store)
    await clock.advance(seconds=400 * DAY)
    armoury.arm(point, "raise")
    archive = tmp_path / "archive"
    archive.mkdir()
    async with serving_with(dsn, armoury, cleanup=True, cleanup_scan_seconds=0.05, archive=str(archive)) as cleaning:

        async def is_confirmed() -> bool:
            request = retention_pb2.GetRetentionRequest(tenant_id=TENANT)
            return (await cleaning.retention.GetRetention(request)).exported.through_cursor == 1

        await until(is_confirmed, "the tombstone is archived")
    assert armoury.fired[point] == 1
    assert await Folder(archive).list_batches(TENANT) == [BatchId(TENANT, 1, 1)]


@pytest.mark.parametrize("query", sorted(OF_OPERATORS))
async def test_a_call_whose_line_in_the_audit_is_lost_is_not_done_and_one_whose_outcome_is_lost_is(
    guarded: Guarded, dsn: str, database: asyncpg.Connection, armoury: Armoury, query: str
) -> None:
    request = tenants_pb2.PauseWorkRequest(tenant_id=TENANT, actor="ann", reason="enough")
    ca = str(guarded.folder / "ca.crt")
    async with guarding(dsn, guarded.folder, tls_client_ca=ca, fault_points=str(armoury.folder)) as running:
        there = replace(guarded, address=f"localhost:{running.port}")
        for point in (f"store.{query}.before_commit", f"store.{query}.after_commit"):
            await database.execute(EMPTY)
            armoury.arm(point, "raise")
            async with there.caller("operator") as operator:
                told = await outcome(operator, "PauseWork", request)
            is_paused = await database.fetchval("SELECT count(*) FROM tenure.pause") == 1
            assert (told == "OK", told in LOST, is_paused) == (
                (True, False, True) if query == "add_audit_outcome" else (False, True, False)
            )
            assert armoury.fired[point] == 1


async def test_a_dropped_reply_reaches_nobody_and_a_sleeping_one_comes_late(faulty: Stubs, armoury: Armoury) -> None:
    armoury.arm("store.CreateTask.before_reply", "drop")
    request = new_task()
    with pytest.raises(grpc.aio.AioRpcError) as lost:
        await faulty.tasks.CreateTask(request, timeout=2)
    assert lost.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    armoury.arm("store.CreateTask.before_reply", "sleep 0.01")
    assert (await faulty.tasks.CreateTask(request)).replayed
    assert armoury.fired == {"store.CreateTask.before_reply": 2}


async def test_a_store_that_ends_between_a_commit_and_its_reply_has_done_it_once(tmp_path: Path, armoury: Armoury) -> None:
    settings = {"TENURE_STORE_FAULT_POINTS": str(armoury.folder)}
    pair = Pair(tmp_path / "pair", routes=Path(__file__).parent / "routes.yaml", durable=False, store_settings=settings)
    try:
        await asyncio.to_thread(pair.start)
        async with TaskStore.connect(pair.store_address) as store:
            armoury.arm("store.create_tasks.after_commit", "exit")
            creating = asyncio.create_task(store.create_task(new_task(), timeout_seconds=120))
            assert await asyncio.to_thread(pair.store.wait_end) == EXIT_CODE
            await asyncio.to_thread(pair.start_store)
            assert (await creating).replayed
    finally:
        await asyncio.to_thread(pair.stop)


def test_points_are_for_stores_and_bridges_that_only_this_machine_reaches() -> None:
    store = {"TENURE_STORE_DSN": "postgresql://x", "TENURE_STORE_FAULT_POINTS": "/f", "TENURE_STORE_ALLOW_PLAINTEXT": "true"}
    assert read_config(store).fault_points == "/f"
    with pytest.raises(ConfigError, match="FAULT_POINTS"):
        read_config({**store, "TENURE_STORE_HOST": "0.0.0.0"})
    bridge = {"TENURE_BRIDGE_ROUTES": "r", "TENURE_BRIDGE_FAULT_POINTS": "/f"}
    assert read_bridge_config(bridge).fault_points == "/f"
    with pytest.raises(ConfigError, match="FAULT_POINTS"):
        read_bridge_config({**bridge, "TENURE_BRIDGE_ISSUERS": "i", "TENURE_BRIDGE_PUBLIC_URL": "https://a.example"})


def test_each_point_is_reached_by_some_test_here() -> None:
    others = {f"store.{query}.{at}" for query in BY_ITSELF | OF_OPERATORS for at in ("before_commit", "after_commit")}
    assert BY_METHOD.keys() | others == COMMIT_POINTS | REPLY_POINTS


def test_each_statement_that_writes_has_its_points() -> None:
    modules = [ast.parse(path.read_text()) for path in (ROOT / "store_service" / "db").glob("*.py")]
    functions = [ast.unparse(node) for module in modules for node in ast.walk(module) if isinstance(node, ast.AsyncFunctionDef)]
    writing = "\n".join(text for text in functions if "_database.write(" in text)
    assert {*re.findall(r"_queries\['(\w+)'\]", writing), "notify"} == WRITES
