"""The plans of what workers and callers ask for most, as Postgres ran them, within functions too.

`python -m tests.store.plans` fills a database of its own with tasks of many tenants and prints them, and at the end what the
README of the store says of them: `make plans`.
"""

import asyncio
import os
import re
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import asyncpg

from store_service.db.chores import ChoreRows
from store_service.db.leases import LeaseRows
from store_service.db.migrate import migrate
from store_service.db.pool import SETTINGS
from store_service.db.tasks import TaskRows
from store_service.db.waits import WaitRows
from store_service.embedded import EmbeddedPostgres
from store_service.model.leases import Claim, Disposition, Finish, Heartbeat, LeasedTask, NewCheckpoint, WorkflowVersion
from store_service.model.payloads import JSON, Payload
from store_service.model.states import TaskState
from store_service.model.tasks import NewTask, Owner, TaskContract, TaskFilter, TaskRead, TaskRef, TaskView
from store_service.model.waits import SignalFilter

WORKFLOW: Final = "report"
BATCH: Final = 100
Plans = dict[str, list["Plan"]]
"""Of each statement by its name."""
_Place = tuple[datetime, str]
"""Where a page of a list ends: when that was made, and its id."""
_SHOWN: Final = {
    "log_min_duration": "0",
    "log_nested_statements": "on",
    "log_analyze": "on",
    "log_timing": "off",
    "log_buffers": "on",
    "log_level": "notice",
}
_FILL: Final = """
WITH made AS MATERIALIZED (
  SELECT gen_random_uuid() AS id, 't' || n % {tenants} AS tenant FROM generate_series(1, {tasks}) n
), cold AS (
  INSERT INTO tenure.task
  SELECT m.tenant, m.id, m.id::text, sha256('x'), 'job', 'report', 1, 'i', 's', '', '', 86400000, 1000, 0, '', '', '', 0,
         'application/json', '{{}}', clock_timestamp() FROM made m
), hot AS (
  INSERT INTO tenure.task_state (tenant_id, task_id, workflow, version, priority, created_at, state, ready, ready_at, ttl_ms,
                                 lines, changed_at)
  SELECT m.tenant, m.id, 'report', 1, 0, clock_timestamp(), 'QUEUED', true, clock_timestamp(), 86400000, 1, clock_timestamp()
  FROM made m
), told AS (
  INSERT INTO tenure.history (tenant_id, task_id, line, event, at)
  SELECT m.tenant, m.id, 0, 'CREATED', clock_timestamp() FROM made m
), counted AS (
  INSERT INTO tenure.tenant (tenant_id, outstanding, max_outstanding, max_leased)
  SELECT m.tenant, count(*), 10000000, 10000 FROM made m GROUP BY 1
  ON CONFLICT (tenant_id) DO UPDATE SET outstanding = tenant.outstanding + excluded.outstanding
)
INSERT INTO tenure.lane (tenant_id, workflow, version, ready, ready_from, open)
SELECT m.tenant, 'report', 1, count(*), now(), true FROM made m GROUP BY 1
ON CONFLICT (tenant_id, workflow, version)
DO UPDATE SET ready = lane.ready + excluded.ready, ready_from = least(lane.ready_from, excluded.ready_from)
"""
_MORE: Final = """;
UPDATE tenure.task_state SET lines = 20, progress = 16;
INSERT INTO tenure.history (tenant_id, task_id, line, event, at)
SELECT s.tenant_id, s.task_id, n, 'CREATED', s.created_at FROM tenure.task_state s, generate_series(1, 19) n;
INSERT INTO tenure.progress (tenant_id, task_id, slot, sequence, value, message)
SELECT s.tenant_id, s.task_id, n % 16, n, n, '' FROM tenure.task_state s, generate_series(1, 16) n;
INSERT INTO tenure.signal (tenant_id, signal_id, task_id, name, digest, media_type, data, state, accepted_at)
SELECT s.tenant_id, s.task_id::text, s.task_id, 'go', '', '', '', 'PENDING', s.created_at FROM tenure.task_state s;
INSERT INTO tenure.early_answer SELECT s.tenant_id, s.task_id, 'early', '{}' FROM tenure.task_state s;
INSERT INTO tenure.input_request (tenant_id, task_id, number, key, name, token, method, params, asked_at, state)
SELECT s.tenant_id, s.task_id, 0, 'old', 'old', 1, 'elicitation/create', '{}', s.created_at, 'OVER' FROM tenure.task_state s;
INSERT INTO tenure.checkpoint SELECT s.tenant_id, s.task_id, 1, 's', 'application/json', '{}', 1, s.created_at
FROM tenure.task_state s"""
_PLANNED: Final = "PLANNER STATISTICS"
_TEST_CLOCK: Final = 'SQL function "task_now"'
"""Which is in a table. The store's own is a part of the statements that ask for it."""
_SCAN: Final = re.compile(
    r"(?:Seq Scan|Index (?P<only>Only )?Scan (?:Backward )?using (?P<index>\w+)) on (?:tenure\.)?(?P<table>\w+)"
    r".*?actual rows=(?P<rows>[\d.]+) loops=(?P<loops>\d+)"
)
_IN_VAIN: Final = re.compile(r"Rows Removed by Filter: (\d+)")
_NEXT: Final = "->  "
_BUFFERS: Final = re.compile(r"Buffers: shared(?: hit=(?P<hit>\d+))?(?: read=(?P<read>\d+))?")


@dataclass(frozen=True, slots=True)
class Scan:
    """One look at a table: by which index or `Seq Scan`, whether by that alone, how many rows came of it, and how many were
    looked at in vain."""

    index: str
    table: str
    rows: int
    in_vain: int
    is_index_only: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """One statement that was run, and how."""

    text: str

    def scans(self) -> Iterator[Scan]:
        """Each look at a table that was taken."""
        for found in _SCAN.finditer(self.text):
            loops = int(found["loops"])
            removed = _IN_VAIN.search(self.text[found.end() :].partition(_NEXT)[0])
            yield Scan(
                found["index"] or "Seq Scan",
                found["table"],
                rows=round(float(found["rows"]) * loops),
                in_vain=int(removed[1]) * loops if removed else 0,
                is_index_only=found["only"] is not None,
            )

    def buffers(self) -> int:
        """How many pages were looked at, by what it calls, too."""
        found = _BUFFERS.search(self.text)
        return int(found["hit"] or 0) + int(found["read"] or 0) if found else 0


class Watched:
    """A session of the store's kind that keeps the plans of what it runs."""

    size: Final = 1

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self._plans: list[Plan] = []
        connection.add_log_listener(self._listen)

    async def read(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        """Runs a statement."""
        found: list[asyncpg.Record] = await self._connection.fetch(query, *arguments)
        return found

    write = read

    async def tell_planning(self) -> None:
        """From now on it keeps, too, that something was planned."""
        await self._connection.execute(
            f"RESET ROLE; SET log_planner_stats = on; SET client_min_messages = log; SET ROLE {SETTINGS['role']}"
        )
        self.take()

    async def close(self) -> None:
        """Ends it."""
        await self._connection.close()

    def take(self) -> list[Plan]:
        """The plans since the last time, the innermost first."""
        taken, self._plans = self._plans, []
        return taken

    def _listen(self, _: Any, message: Any) -> None:
        self._plans.append(Plan(f"{message.message} {message.context}" if message.message == _PLANNED else message.message))


async def watch(dsn: str) -> Watched:
    """Opens a session with the store's settings and rights, whose plans are kept."""
    settings = {name: value for name, value in SETTINGS.items() if name != "role"}
    connection = await asyncpg.connect(dsn, server_settings=settings)
    await connection.execute("LOAD 'auto_explain'")
    for name, value in _SHOWN.items():
        await connection.execute(f"SET auto_explain.{name} = '{value}'")
    await connection.execute(f"SET ROLE {SETTINGS['role']}")
    return Watched(connection)


async def fill(dsn: str, *, tasks: int, tenants: int, then: str = "VACUUM ANALYZE", with_more: bool = False) -> None:
    """Makes tasks that wait, of so many tenants, and does `then`. With more, each has a history of 20 lines, 16 reports,
    and a signal, an early answer, a question and a checkpoint."""
    connection = await asyncpg.connect(dsn)
    await connection.execute(_FILL.format(tasks=tasks, tenants=tenants) + (_MORE if with_more else ""))
    if then:
        await connection.execute(then)
    await connection.close()


async def run_twice(dsn: str, go_through: Callable[[Watched], Awaitable[Plans]]) -> Plans:
    """The plans of a second run in the same session: the first one reads catalogs."""
    session = await watch(dsn)
    plans = [await go_through(session) for _ in range(2)]
    await session.close()
    return plans[-1]


async def hot_plans(dsn: str, *, tenant_ids: Sequence[str] = ()) -> Plans:
    """The plans of what a task goes through, of these tenants or of any, in batches, of looks for what is due and of lists."""
    return await run_twice(dsn, partial(_go_through, tenant_ids=tenant_ids))


async def pages_of_lists(dsn: str) -> dict[str, list[int]]:
    """How many of its pages Postgres looks at for each page of a list, to the end of it: all tasks of the first tenant, its
    queued ones, its signals."""
    session = await watch(dsn)
    tasks, waits = TaskRows(session), WaitRows(session)  # type: ignore[arg-type]  # see Watched
    every = TaskFilter(tenant_id="t0", states=(), workflow=None, created_from=None, created_before=None)
    queued = replace(every, states=(TaskState.QUEUED,))
    signals = SignalFilter(tenant_id="t0", states=(), task_id=None)

    async def list_signals(after: _Place | None) -> list[_Place]:
        return [(one.accepted_at, one.signal_id) for one in await waits.list_signals(signals, after, BATCH)]

    lists: dict[str, Callable[[_Place | None], Awaitable[list[_Place]]]] = {
        "every task": lambda after: tasks.list_tasks(every, after, BATCH),
        "queued tasks": lambda after: tasks.list_tasks(queued, after, BATCH),
        "signals": list_signals,
    }
    looked_at: dict[str, list[int]] = {name: [] for name in lists}
    for name, read in lists.items():
        page = await read(None)  # which reads catalogs, too
        while page:
            page = await read(page[-1])
            looked_at[name].append(session.take()[-1].buffers())
    await session.close()
    return looked_at


async def planned_anew(dsn: str) -> list[str]:
    """What a session still plans that has gone through the same before: the least of some rounds, as whoever analyzes a table
    has all that look at it plan once more."""
    session = await watch(dsn)
    await _go_through(session)
    await session.tell_planning()
    rounds = [[plan.text for plans in (await _go_through(session)).values() for plan in plans] for _ in range(4)]
    await session.close()
    return min(([text for text in told if text.startswith(_PLANNED) and _TEST_CLOCK not in text] for told in rounds), key=len)


async def _go_through(session: Watched, *, tenant_ids: Sequence[str] = ()) -> Plans:
    leases, tasks, chores = LeaseRows(session), TaskRows(session), ChoreRows(session)  # type: ignore[arg-type]  # see Watched
    plans: Plans = {}
    await tasks.create_tasks([(_new(f"t{number % 10}"), str(uuid4()), b"digest") for number in range(BATCH)])
    plans["create_tasks"] = session.take()
    taken = (await leases.claim_tasks(claim_any(tenant_ids=tenant_ids))).tasks
    plans["claim_tasks"] = session.take()
    await leases.heartbeat_tasks([Heartbeat(one.lease, 0) for one in taken])
    plans["heartbeat_tasks"] = session.take()
    await leases.append_checkpoints([NewCheckpoint(one.lease, 0, "step", Payload(JSON, b"{}")) for one in taken])
    plans["append_checkpoints"] = session.take()
    await tasks.changed_tasks([(TaskRef(one.lease.tenant_id, one.lease.task_id), 0) for one in taken])
    plans["changed_tasks"] = session.take()
    await tasks.get_tasks([TaskRead(TaskRef(one.lease.tenant_id, one.lease.task_id), TaskView.OUTCOME) for one in taken])
    plans["get_tasks"] = session.take()
    await leases.finish_tasks([_finish(one) for one in taken])
    plans["finish_tasks"] = session.take()
    await leases.claim_tasks(claim_any(tenant_ids=tenant_ids, lease_ms=1))
    session.take()
    await chores.promote_due(BATCH, grace_ms=30_000, max_crashes=20)
    plans["promote_due"] = session.take()
    for states in ((), (TaskState.QUEUED, TaskState.FAILED)):
        wanted = TaskFilter(tenant_id="t1", states=states, workflow=None, created_from=None, created_before=None)
        await tasks.list_tasks(wanted, None, BATCH)
        plans["list_tasks" if states else "list_all_tasks"] = session.take()
    return plans


def in_short(plans: Sequence[Plan]) -> str:
    """What was looked at, in the order in which it was, and how many pages that were."""
    looks: Counter[tuple[str, str]] = Counter()
    for plan in plans:
        for scan in plan.scans():
            way = (
                f"{'only ' if scan.is_index_only else ''}`{scan.index}`"
                if scan.index != "Seq Scan"
                else f"`{scan.table}` whole,"
            )
            looks[way, f"{scan.rows:,}"] += 1
    told = (f"{way} {rows}{f' x {times}' if times > 1 else ''}" for (way, rows), times in looks.items())
    return f"{'; '.join(told)} | {plans[-1].buffers():,}"


def _new(tenant_id: str) -> NewTask:
    contract = TaskContract(
        tool="job", workflow=WORKFLOW, workflow_version=1, owner=Owner("i", "s"), client_capabilities=b"", output_schema=b"",
        ttl_ms=86_400_000, poll_interval_ms=1_000, execution_deadline_ms=0, trace_parent="", trace_state="", baggage="",
    )  # fmt: skip
    return NewTask(
        tenant_id=tenant_id, request_id=uuid4().hex, contract=contract, priority=0, input=Payload(JSON, b"{}"),
        abandon_after_ms=0,
    )  # fmt: skip


def claim_any(*, tenant_ids: Sequence[str] = (), lease_ms: int = 30_000) -> Claim:
    """A claim of a batch, of these tenants or of any."""
    return Claim(
        request_id=uuid4().hex, worker_id="w", workflows=(WorkflowVersion(WORKFLOW, 1, lease_ms),),
        tenant_ids=tuple(tenant_ids), limit=BATCH, wait_ms=0,
    )  # fmt: skip


def _finish(one: LeasedTask) -> tuple[Finish, bytes]:
    return Finish(lease=one.lease, disposition=Disposition.COMPLETED, payload=Payload(JSON, b"{}")), b"digest"


async def _show(tasks: int, tenants: int) -> None:
    with tempfile.TemporaryDirectory(prefix="tenure-plans-") as folder:
        server = EmbeddedPostgres(Path(folder) / "postgres", durable=False)
        await asyncio.to_thread(server.start)
        try:
            await migrate(server.dsn)
            await fill(server.dsn, tasks=tasks, tenants=tenants)
            found = await hot_plans(server.dsn)
            for name, plans in found.items():
                print(f"== {name}", *(plan.text for plan in plans), sep="\n\n")
            print("", *(f"| `{name}` | {in_short(plans)} |" for name, plans in found.items()), sep="\n")
        finally:
            await asyncio.to_thread(server.stop)


if __name__ == "__main__":
    asyncio.run(_show(int(os.environ.get("TASKS", "1000000")), int(os.environ.get("TENANTS", "10000"))))
