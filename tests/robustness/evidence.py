"""What is left of a run to be judged: the history, the audit of the database, its rows at the end, and the effects outside."""

import csv
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

import asyncpg

from tests.robustness.history import Call, read_history
from tests.robustness.ledger import Effect, read_effects

csv.field_size_limit(sys.maxsize)

# Read at the end of a run, by name of the file that has it.
QUERIES: Final = {
    "versions": "SELECT seq, at, tenant, task, op, state, token, worker, expires, change, checkpoints, lines, wished, changed, "
    "finish_token, failed_for, attempts, crashes, waits, held FROM robustness.version ORDER BY seq",
    "writes": "SELECT seq, at, tenant, task, kind, revision, token, written, state, current_token, expires "
    "FROM robustness.write ORDER BY seq",
    "signals": "SELECT seq, at, tenant, signal, task, op, state FROM robustness.signal ORDER BY seq",
    "breaches": "SELECT at, what FROM robustness.breach ORDER BY seq",
    "tasks": "SELECT t.tenant_id, t.task_id, t.request_id, t.workflow, coalesce(t.forked_checkpoints, 0), s.state, "
    "s.checkpoints, md5(o.data), md5(t.input), t.forked_from IS NOT NULL "
    "FROM tenure.task t LEFT JOIN tenure.task_state s USING (tenant_id, task_id) "
    "LEFT JOIN tenure.outcome o USING (tenant_id, task_id)",
    "checkpoints": "SELECT task_id, revision, token, step FROM tenure.checkpoint ORDER BY task_id, revision",
    "events": "SELECT task_id, line, event, robustness.us(at), token FROM tenure.history ORDER BY task_id, line",
    "final_signals": "SELECT tenant_id, signal_id, task_id, state FROM tenure.signal",
    "wakes": "SELECT tenant, task, signal FROM robustness.wake ORDER BY seq",
    "tombstones": "SELECT tenant_id, task_id, cursor FROM tenure.tombstone ORDER BY tenant_id, cursor",
    "stones": "SELECT seq, at, tenant, task, cursor, op, held, exported FROM robustness.stone ORDER BY seq",
    "exports": "SELECT tenant_id, through_cursor, receipt FROM tenure.tombstone_export ORDER BY tenant_id, through_cursor",
    "purges": "SELECT tenant_id, sum(tombstones) FROM tenure.purge_evidence GROUP BY tenant_id",
    "limits": "SELECT tenant_id, max_leased, max_outstanding FROM tenure.tenant",
    "audit": "SELECT x::text FROM tenure.audit x UNION ALL SELECT x::text FROM tenure.budget_audit x",
}


class Version(NamedTuple):
    """One version of a task's state, see audit.sql."""

    seq: int
    at: int
    tenant: str
    task: str
    op: str
    state: str
    token: int
    worker: str
    expires: int
    change: int
    checkpoints: int
    lines: int
    wished: bool
    changed: int
    finish_token: int
    failed_for: str
    attempts: int
    crashes: int
    waits: str
    held: bool


class Write(NamedTuple):
    """One write that only a lease allows."""

    seq: int
    at: int
    tenant: str
    task: str
    kind: str
    revision: int
    token: int
    written: int
    state: str
    current_token: int
    expires: int


class Stone(NamedTuple):
    """A tombstone that came or went."""

    seq: int
    at: int
    tenant: str
    task: str
    cursor: int
    op: str
    held: bool
    exported: bool


class Row(NamedTuple):
    """A task at the end."""

    tenant: str
    task: str
    request: str
    workflow: str
    forked: int
    state: str
    checkpoints: int
    result: str
    input: str = ""
    is_fork: bool = False


class Event(NamedTuple):
    """One line of a task's history."""

    task: str
    line: int
    event: str
    at: int
    token: int


@dataclass
class Evidence:
    """All of it."""

    calls: list[Call] = field(default_factory=list)
    versions: dict[str, list[Version]] = field(default_factory=dict)
    """By task, in their order."""
    order: list[Version] = field(default_factory=list)
    """Of all tasks."""
    writes: list[Write] = field(default_factory=list)
    signals: list[tuple[int, int, str, str, str, str, str]] = field(default_factory=list)
    breaches: list[str] = field(default_factory=list)
    rows: dict[str, Row] = field(default_factory=dict)
    checkpoints: dict[str, list[tuple[int, int, str]]] = field(default_factory=dict)
    events: dict[str, list[Event]] = field(default_factory=dict)
    final_signals: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    wakes: list[tuple[str, str, str]] = field(default_factory=list)
    tombstones: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By task: the tenant, and its cursor."""
    stones: list[Stone] = field(default_factory=list)
    exports: dict[str, tuple[int, str]] = field(default_factory=dict)
    """By tenant: up to which cursor tombstones are kept elsewhere, and the receipt."""
    purges: dict[str, int] = field(default_factory=dict)
    """By tenant: how many tombstones there is evidence of that they were purged."""
    archive: Path | None = None
    """The folder in which tombstones are kept."""
    limits: dict[str, tuple[int, int]] = field(default_factory=dict)
    effects: list[Effect] = field(default_factory=list)
    audit: list[str] = field(default_factory=list)

    @cached_property
    def purged(self) -> dict[str, Stone]:
        """By task: how its tombstone went."""
        return {stone.task: stone for stone in self.stones if stone.op == "D"}

    def was_removed(self, task: str) -> bool:
        """Whether it has a tombstone, or had one."""
        return task in self.tombstones or task in self.purged


async def keep_evidence(dsn: str, folder: Path) -> None:
    """Copies what the database has into files of a run."""
    connection = await asyncpg.connect(dsn, command_timeout=600)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):  # all of one moment
            for name, query in QUERIES.items():
                await connection.copy_from_query(query, output=str(folder / f"{name}.csv"), format="csv")
    finally:
        await connection.close()


def read_evidence(folder: Path) -> Evidence:
    """Reads a run's files."""
    found = Evidence(calls=read_history(folder / "history.jsonl"), effects=read_effects(folder / "effects.jsonl"))
    versions: dict[str, list[Version]] = defaultdict(list)
    for row in _rows(folder, "versions"):
        version = _version(row)
        versions[version.task].append(version)
        found.order.append(version)
    found.versions = dict(versions)
    for row in _rows(folder, "writes"):
        seq, at, tenant, task, kind, revision, token, written, state, current, expires = row
        write = Write(_int(seq), _int(at), tenant, task, kind, _int(revision), _int(token), _int(written), state, _int(current),
                      _int(expires))  # fmt: skip
        found.writes.append(write)
    found.signals = [(_int(row[0]), _int(row[1]), row[2], row[3], row[4], row[5], row[6]) for row in _rows(folder, "signals")]
    found.breaches = [row[1] for row in _rows(folder, "breaches")]
    for tenant, task, request, workflow, forked, state, checkpoints, result, given, is_fork in _rows(folder, "tasks"):
        made = Row(tenant, task, request, workflow, _int(forked), state, _int(checkpoints), result, given, is_fork == "t")
        found.rows[task] = made
    for task, revision, token, step in _rows(folder, "checkpoints"):
        found.checkpoints.setdefault(task, []).append((_int(revision), _int(token), step))
    for task, line, event, at, token in _rows(folder, "events"):
        found.events.setdefault(task, []).append(Event(task, _int(line), event, _int(at), _int(token)))
    found.final_signals = {(row[0], row[1]): (row[2], row[3]) for row in _rows(folder, "final_signals")}
    found.wakes = [(row[0], row[1], row[2]) for row in _rows(folder, "wakes")]
    found.tombstones = {row[1]: (row[0], _int(row[2])) for row in _rows(folder, "tombstones")}
    for row in _rows(folder, "stones"):
        seq, at, tenant, task, cursor, op, held, exported = row
        found.stones.append(Stone(_int(seq), _int(at), tenant, task, _int(cursor), op, held == "t", exported == "t"))
    found.exports = {row[0]: (_int(row[1]), row[2]) for row in _rows(folder, "exports")}
    found.purges = {row[0]: _int(row[1]) for row in _rows(folder, "purges")}
    found.archive = folder / "archive"
    found.limits = {row[0]: (_int(row[1]), _int(row[2])) for row in _rows(folder, "limits")}
    found.audit = [row[0] for row in _rows(folder, "audit")]
    return found


def _rows(folder: Path, name: str) -> list[list[str]]:
    with (folder / f"{name}.csv").open(newline="") as lines:
        return list(csv.reader(lines))


def _version(row: list[str]) -> Version:
    seq, at, tenant, task, op, state, token, worker, expires, change, checkpoints, lines, wished, changed, finish, failed, \
        attempts, crashes, waits, held = row  # fmt: skip
    return Version(
        _int(seq), _int(at), tenant, task, op, state, _int(token), worker, _int(expires), _int(change), _int(checkpoints),
        _int(lines), wished == "t", _int(changed), _int(finish), failed, _int(attempts), _int(crashes), waits, held == "t",
    )  # fmt: skip


def _int(text: str) -> int:
    return int(text) if text else 0
