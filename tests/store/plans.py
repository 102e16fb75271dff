"""The plans of what workers and callers ask for most, as Postgres ran them, within functions too.

`python -m tests.store.plans` fills a database of its own with tasks of many tenants and prints them: `make plans`.
"""

import asyncio
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import asyncpg

from store_service.db.leases import LeaseRows
from store_service.db.migrate import migrate
from store_service.db.pool import SETTINGS
from store_service.db.tasks import TaskRows
from store_service.embedded import EmbeddedPostgres
from store_service.model.leases import Claim, Disposition, Finish, Heartbeat, LeasedTask, WorkflowVersion
from store_service.model.payloads import JSON, Payload
from store_service.model.tasks import TaskRead, TaskRef, TaskView

WORKFLOW: Final = "report"
BATCH: Final = 100
_SHOWN: Final = {
    "log_min_duration": "0",
    "log_nested_statements": "on",
    "log_analyze": "on",
    "log_timing": "off",
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
)
INSERT INTO tenure.lane (tenant_id, workflow, version, ready, open)
SELECT m.tenant, 'report', 1, count(*), true FROM made m GROUP BY 1
"""
_SCAN: Final = re.compile(
    r"(Seq Scan|using (?P<index>\w+)) on (?:tenure\.)?(?P<table>\w+).*?actual rows=(?P<rows>[\d.]+) loops=(?P<loops>\d+)"
)


@dataclass(frozen=True, slots=True)
class Plan:
    """One statement that was run, and how."""

    text: str

    def scans(self) -> Iterator[tuple[str, str, int]]:
        """Each look at a table: by which index or `Seq Scan`, at which table, how many rows came of it."""
        for found in _SCAN.finditer(self.text):
            rows = round(float(found["rows"]) * int(found["loops"]))
            yield found["index"] or "Seq Scan", found["table"], rows


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

    def take(self) -> list[Plan]:
        """The plans since the last time, the innermost first."""
        taken, self._plans = self._plans, []
        return taken

    def _listen(self, _: Any, message: Any) -> None:
        self._plans.append(Plan(str(message)))


async def watch(dsn: str) -> Watched:
    """Opens a session with the store's settings and rights, whose plans are kept."""
    settings = {name: value for name, value in SETTINGS.items() if name != "role"}
    connection = await asyncpg.connect(dsn, server_settings=settings)
    await connection.execute("LOAD 'auto_explain'")
    for name, value in _SHOWN.items():
        await connection.execute(f"SET auto_explain.{name} = '{value}'")
    await connection.execute(f"SET ROLE {SETTINGS['role']}")
    return Watched(connection)


async def fill(dsn: str, *, tasks: int, tenants: int) -> None:
    """Makes tasks that wait, of so many tenants."""
    connection = await asyncpg.connect(dsn)
    await connection.execute(_FILL.format(tasks=tasks, tenants=tenants))
    await connection.execute("VACUUM ANALYZE")
    await connection.close()


async def hot_plans(dsn: str) -> dict[str, list[Plan]]:
    """The plans of a claim, heartbeats, reads and finishes of a batch, each run twice: the first one reads catalogs."""
    session = await watch(dsn)
    leases, tasks = LeaseRows(session), TaskRows(session)  # type: ignore[arg-type]  # they only read and write
    plans: dict[str, list[Plan]] = {}
    for _ in range(2):
        taken = await leases.claim_tasks(_claim())
        plans["claim_tasks"] = session.take()
        await leases.heartbeat_tasks([Heartbeat(one.lease, 0) for one in taken])
        plans["heartbeat_tasks"] = session.take()
        await tasks.get_tasks([TaskRead(TaskRef(one.lease.tenant_id, one.lease.task_id), TaskView.OUTCOME) for one in taken])
        plans["get_tasks"] = session.take()
        await leases.finish_tasks([_finish(one) for one in taken])
        plans["finish_tasks"] = session.take()
    return plans


def _claim() -> Claim:
    return Claim(
        request_id=uuid4().hex, worker_id="w", workflows=(WorkflowVersion(WORKFLOW, 1, 30_000),), tenant_ids=(), limit=BATCH,
        wait_ms=0,
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
            for name, plans in (await hot_plans(server.dsn)).items():
                print(f"== {name}")
                for plan in plans:
                    print(plan.text, "\n")
                print(
                    *(f"{name}: {rows} rows of {table} by {index}" for plan in plans for index, table, rows in plan.scans()),
                    sep="\n",
                )
        finally:
            await asyncio.to_thread(server.stop)


if __name__ == "__main__":
    asyncio.run(_show(int(os.environ.get("TASKS", "1000000")), int(os.environ.get("TENANTS", "10000"))))
