"""What a database holds, in one query, beside what the model says that it should."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from tests.model.contract.checks import Answer, lean
from tests.model.contract.ledger import DIMENSIONS, Amounts
from tests.model.contract.model import Model

Picture = dict[str, Any]

VIOLATIONS: Final = """
SELECT 'audit ' || to_jsonb(a)::text FROM tenure.audit a
UNION ALL SELECT 'S13 budget audit ' || to_jsonb(a)::text FROM tenure.budget_audit a
UNION ALL SELECT 'S1 tokens are not dense ' || h.task_id FROM tenure.history h
  JOIN tenure.task_state s USING (tenant_id, task_id)
  WHERE h.event = 'LEASED' GROUP BY h.tenant_id, h.task_id HAVING max(h.token) <> count(*) OR max(h.token) <> max(s.token)
UNION ALL SELECT 'S3 over the lease limit ' || t.tenant_id FROM tenure.tenant t
  WHERE t.tenant_id = ANY ($2) AND t.leased > t.max_leased
UNION ALL SELECT 'S5 ended not exactly once ' || s.task_id FROM tenure.task_state s
  WHERE (s.ended_at IS NOT NULL)::int IS DISTINCT FROM (
    SELECT count(*) FILTER (WHERE h.event IN ('COMPLETED', 'FAILED', 'CANCELLED'))
           - count(*) FILTER (WHERE h.event = 'REDRIVEN')
    FROM tenure.history h WHERE h.task_id = s.task_id)
UNION ALL SELECT 'S5 ended, and then ' || h.event FROM tenure.history h JOIN tenure.task_state s USING (tenant_id, task_id)
  JOIN tenure.history e USING (tenant_id, task_id)
  WHERE (e.event IN ('COMPLETED', 'CANCELLED') AND h.line > e.line)
    OR (e.event = 'FAILED' AND h.line = e.line + 1 AND h.event <> 'REDRIVEN')
UNION ALL SELECT 'S7 checkpoints ' || s.task_id FROM tenure.task_state s JOIN LATERAL (
    SELECT count(*) AS n, coalesce(max(c.revision), -1) AS last, bool_and(c.token >= c.before) AS rising
    FROM (SELECT k.*, lag(k.token, 1, 0::bigint) OVER (ORDER BY k.revision) AS before FROM tenure.checkpoint k
          WHERE k.task_id = s.task_id) c) x ON x.n <> s.checkpoints OR x.last <> x.n - 1 OR NOT x.rising
UNION ALL SELECT 'S8 a signal is not received ' || g.signal_id FROM tenure.signal g
  JOIN tenure.task_state s USING (tenant_id, task_id) LEFT JOIN tenure.wait w USING (tenant_id, task_id)
  WHERE g.state = 'PENDING' AND (s.ended_at IS NOT NULL OR (s.state = 'WAITING' AND w.signal_name = g.name))
UNION ALL SELECT 'S10 cancelled with an outcome ' || s.task_id FROM tenure.task_state s
  JOIN tenure.outcome o USING (tenant_id, task_id)
  WHERE s.state NOT IN ('COMPLETED', 'FAILED')
UNION ALL SELECT 'S11 a tombstone and a task ' || s.task_id FROM tenure.task_state s
  JOIN tenure.tombstone USING (tenant_id, task_id)
UNION ALL SELECT 'S11 a task is held and its row does not say so, or not held ' || s.task_id FROM tenure.task_state s
  WHERE s.held <> EXISTS (SELECT FROM tenure.hold h WHERE h.tenant_id = s.tenant_id AND h.task_id = s.task_id
                          AND h.released_at IS NULL)
UNION ALL SELECT 'S11 a hold of what is gone ' || h.task_id FROM tenure.hold h
  WHERE h.released_at IS NULL AND NOT EXISTS (
    SELECT FROM tenure.task t WHERE (t.tenant_id, t.task_id) = (h.tenant_id, h.task_id) UNION ALL
    SELECT FROM tenure.tombstone t WHERE (t.tenant_id, t.task_id) = (h.tenant_id, h.task_id))
UNION ALL SELECT 'S11 purged without evidence or an export ' || n.cursor FROM (
    SELECT t.tenant_id, g.cursor FROM tenure.tenant t, generate_series(1, t.tombstones) g(cursor)) n
  WHERE NOT EXISTS (SELECT FROM tenure.tombstone t WHERE (t.tenant_id, t.cursor) = (n.tenant_id, n.cursor))
    AND NOT EXISTS (SELECT FROM tenure.purge_evidence e WHERE e.tenant_id = n.tenant_id
                    AND n.cursor BETWEEN e.first_cursor AND e.last_cursor AND e.last_cursor <= e.watermark)
UNION ALL SELECT 'S11 approved by who prepared it ' || e.number FROM tenure.purge_evidence e
  WHERE e.prepared_by = e.approved_by
UNION ALL SELECT 'S11 a digest is not that of its history ' || t.task_id FROM tenure.tombstone t
  WHERE sha256(t.history) <> t.history_digest
"""
"""Invariants of the reliability plan, section 5, by its numbers; no row, ever. $2 are the tenants whose policy was not made
tighter than what they have."""


def _rows(columns: str, source: str) -> str:
    return f"(SELECT coalesce(jsonb_agg(jsonb_build_array({columns})), '[]') FROM tenure.{source})"


_PARTS: Final = {
    "cleanups": _rows("tenant_id, token, owner_id, principal, clock.us(expires_at)", "cleanup_lease"),
    "holds": _rows("tenant_id, number, task_id, released_by", "hold"),
    "purges": _rows("tenant_id, number, state, claim_token, decided_by", "purge"),
    "exports": _rows("tenant_id, through_cursor, receipt", "tombstone_export"),
    "stones": _rows("tenant_id, cursor, task_id", "tombstone"),
    "tasks": _rows("tenant_id, task_id, state, change, token, lines, checkpoints, ready", "task_state"),
    "tenants": _rows("tenant_id, outstanding, leased, tombstones", "tenant"),
    "signals": _rows("tenant_id, signal_id, task_id, name, state", "signal"),
    "questions": _rows("tenant_id, task_id, key, state, encode(response, 'hex')", "input_request"),
    "budgets": _rows("tenant_id, facts, reservations, limits, committed, reserved", "budget"),
    "history": _rows(
        "task_id, line, event, clock.us(at), worker_id, token, detail", "history WHERE task_id = ANY ($1::uuid[])"
    ),
    "checkpoints": _rows(
        "task_id, revision, step, media_type, encode(data, 'hex'), token, clock.us(created_at)",
        "checkpoint WHERE task_id = ANY ($1::uuid[])",
    ),
    "wrong": f"(SELECT coalesce(jsonb_agg(jsonb_build_array(v.told)), '[]') FROM ({VIOLATIONS}) v(told))",
}
QUERY: Final = "SELECT jsonb_build_object(" + ", ".join(f"'{name}', {query}" for name, query in _PARTS.items()) + ")::text"
"""Everything that changes seldom, and of the tasks $1 what happened to them. One row, one text of JSON."""


_SORTED: Final = ("cleanups", "holds", "purges", "exports", "stones")


def read_picture(text: str) -> Picture:
    """What the query says."""
    found = json.loads(text)
    picture: Picture = {name: sorted(map(tuple, found[name])) for name in ("tasks", "tenants", "signals")}
    picture |= {name: sorted(map(tuple, found[name]), key=str) for name in _SORTED}
    picture["questions"] = sorted(map(tuple, found["questions"]), key=str)
    picture["budgets"] = sorted([(*row[:3], *map(_amounts, row[3:])) for row in found["budgets"]], key=str)
    picture["history"] = _by_task(found["history"], ("line", "event", "at", "worker_id", "token", "detail"))
    picture["checkpoints"] = _by_task(found["checkpoints"], ("revision", "step", "media_type", "data", "token", "created_at"))
    picture["wrong"] = [row[0] for row in found["wrong"]]
    return picture


def draw_picture(model: Model, touched: Iterable[tuple[str, str]]) -> Picture:
    """What the model says."""
    tasks = model.tasks.values()
    known = [model.tasks[key] for key in touched if key in model.tasks]
    tenants = []
    for name, tenant in model.tenants.items():
        told = model.get_tenant(tenant_id=name)["tenant"]
        tenants.append((name, told.get("outstanding", 0), told.get("leased", 0), tenant.last_cursor))
    checkpoints = {
        task.task_id: [
            lean(**{k: v for k, v in one.items() if k != "payload"}, media_type=one["payload"]["media_type"],
                 data=one["payload"].get("data", b"").hex())
            for one in task.checkpoints
        ]
        for task in known
    }  # fmt: skip
    return {
        "tasks": sorted(
            (*task.key, task.state, task.change, task.token, len(task.lines), len(task.checkpoints), task.ready)
            for task in tasks
        ),
        "tenants": sorted(tenants),
        "cleanups": sorted(
            ((name, one.token, one.owner_id or None, one.principal or None, one.expires_at if one.owner_id else None)
             for name, tenant in model.tenants.items() if (one := tenant.cleanup)), key=str,
        ),
        "holds": sorted(
            ((name, hold["number"], hold["task_id"], hold.get("released_by"))
             for name, tenant in model.tenants.items() for hold in tenant.holds), key=str,
        ),
        "purges": sorted(
            ((name, one.about["number"], one.state, one.token, one.decided_by or None)
             for name, tenant in model.tenants.items() for one in tenant.purges), key=str,
        ),
        "exports": sorted(
            ((name, one["through_cursor"], one["receipt"])
             for name, tenant in model.tenants.items() for one in tenant.exports), key=str,
        ),
        "stones": sorted(
            ((name, one["cursor"], one["task_id"]) for name, tenant in model.tenants.items() for one in tenant.tombstones),
            key=str,
        ),
        "signals": sorted((*key, one.task_id, one.name, one.state) for key, one in model.signals.items()),
        "questions": sorted(
            ((*task.key, one.key, one.state, None if one.response is None else one.response.hex())
             for task in tasks for one in task.questions), key=str,
        ),
        "budgets": sorted(
            ((name, len(one.facts), one.reservations, *(
                (one.limits, one.committed, one.reserved) if one.limits is not None else (None, None, None)))
             for name, one in model.budgets.items()), key=str,
        ),
        "history": {task.task_id: task.lines for task in known},
        "checkpoints": {task.task_id: one for task, one in zip(known, checkpoints.values(), strict=True) if one},
        "wrong": [],
    }  # fmt: skip


def _amounts(vector: Sequence[int | None] | None) -> Amounts | None:
    return None if vector is None else {name: one for name, one in zip(DIMENSIONS, vector, strict=True) if one is not None}


def _by_task(rows: Iterable[Sequence[Any]], names: Sequence[str]) -> dict[str, list[Answer]]:
    found: dict[str, list[Answer]] = {}
    for task_id, *values in sorted(map(tuple, rows)):
        found.setdefault(task_id, []).append(lean(**dict(zip(names, values, strict=True))))
    return found
