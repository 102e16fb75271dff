"""Defects that were found in systems like this one, put into a test's own database, to see its tests fail.

A defect is an edit of the function as it stands, so that nothing else differs; each text that it replaces is there once. The
numbers are those of the store contract's section 20 and of the public bug reports.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.interleaving.stage import Stage


@dataclass(frozen=True)
class Defect:
    """What is wrong, in which function, by which edits of its text; or the whole of a wrong function."""

    what: str
    function: str
    edits: Mapping[str, str] = field(default_factory=dict)
    whole: str = ""

    async def put_into(self, stage: Stage) -> None:
        """Replaces the function by one with the defect."""
        text: str = (await stage.look.read("SELECT pg_get_functiondef($1::text::regproc)", f"tenure.{self.function}"))[0][0]
        for right, wrong in self.edits.items():
            assert text.count(right) == 1, f"{self.function} has changed: say anew how it would be wrong: {right!r}"
            text = text.replace(right, wrong)
        await stage.look.connection.execute(self.whole or text)


COUNTED_BEFORE_THE_LOCK: Final = Defect(
    "1: live leases are counted by the statement that waits for the lock, as they were before it",
    "claim_tasks",
    {
        "IF v_wait THEN": "IF false THEN",
        " FOR NO KEY UPDATE OF t SKIP LOCKED) x;": ") x;",
        "t.max_leased - t.leased) AS n": (
            "t.max_leased - (SELECT count(*)::int FROM task_state s "
            "WHERE s.tenant_id = t.tenant_id AND s.state = 'LEASED')) AS n"
        ),
        "= ANY (v_locked) AND t.leased < t.max_leased": "= ANY (v_locked) FOR NO KEY UPDATE OF t",
    },
)
TRIED_IN_THE_FILTER: Final = Defect(
    "2: a lock that is tried in the WHERE of a sorted query takes every tenant, not just the one wanted",
    "claim_tasks",
    {
        "ORDER BY c.o LIMIT v_visits FOR NO KEY UPDATE OF t SKIP LOCKED": (
            "WHERE pg_try_advisory_xact_lock(2, hashtext(t.tenant_id)) ORDER BY t.turn LIMIT v_visits"
        )
    },
)
WOKEN_FROM_A_SNAPSHOT: Final = Defect(
    "3: the row that was locked says WAITING, the snapshot of the UPDATE beside it says LEASED",
    "publish_signal",
    whole="""
CREATE OR REPLACE FUNCTION tenure.publish_signal(
  p_tenant text, p_signal text, p_task uuid, p_issuer text, p_subject text, p_name text, p_digest bytea, p_media text,
  p_data bytea, p_max_pending int
) RETURNS TABLE (outcome text, replayed boolean, opened text[])
LANGUAGE plpgsql SET search_path = tenure, pg_temp AS $$
DECLARE v_now timestamptz := task_now(); v_state text;
BEGIN
  WITH held AS MATERIALIZED (
    SELECT s.tenant_id, s.task_id, s.state FROM task_state s
    WHERE s.tenant_id = p_tenant AND s.task_id = p_task FOR NO KEY UPDATE
  ), kept AS (
    INSERT INTO signal (tenant_id, signal_id, task_id, name, digest, media_type, data, state, accepted_at)
    SELECT p_tenant, p_signal, p_task, p_name, p_digest, p_media, p_data,
           CASE WHEN h.state = 'WAITING' THEN 'CONSUMED' ELSE 'PENDING' END, v_now FROM held h RETURNING signal.state
  ), woken AS (
    UPDATE task_state s SET state = 'QUEUED', ready = true, ready_at = v_now
    FROM held h WHERE s.tenant_id = h.tenant_id AND s.task_id = h.task_id AND s.state = 'WAITING'
  )
  SELECT k.state INTO v_state FROM kept k;
  RETURN QUERY SELECT v_state, false, '{}'::text[];
END $$
""",
)
CONSUMED_WITHOUT_THE_FENCE: Final = Defect(
    "3b: what consumes the signal does not depend on the row that was fenced",
    "suspend_tasks",
    {
        "FROM held h WHERE x.tenant_id = h.t AND x.signal_id = h.signal_id": (
            "FROM unnest(p_tenant, p_task, p_signal) u(t, id, name) "
            "WHERE x.tenant_id = u.t AND x.task_id = u.id AND x.name = u.name AND x.state = 'PENDING'"
        )
    },
)
ADDED_WITHOUT_A_LOCK: Final = Defect(
    "4: what is added to a task does not lock it, so the removal of the task misses it",
    "publish_signal",
    {
        "  PERFORM 1 FROM tenant WHERE tenant_id = p_tenant FOR NO KEY UPDATE;\n": "",
        "  PERFORM 1 FROM task_state WHERE tenant_id = p_tenant AND task_id = p_task FOR NO KEY UPDATE;\n": "",
    },
)
ROOM_WITHOUT_A_LOCK: Final = Defect(
    "a budget: what is left of it is read without the tenant's lock",
    "reserve_budget",
    {"FROM tenant t WHERE t.tenant_id = p_tenant FOR NO KEY UPDATE": "FROM tenant t WHERE t.tenant_id = p_tenant"},
)
HEARTBEAT_BY_AN_EARLY_CLOCK: Final = Defect(
    "case 43: a heartbeat reads the clock before it waits for the row",
    "heartbeat_tasks",
    {"DECLARE v_now timestamptz;": "DECLARE v_now timestamptz := task_now();", "  v_now := task_now();\n": ""},
)
CLAIM_BY_AN_EARLY_CLOCK: Final = Defect(
    "case 43: a claim reads the clock before it waits for the tenant",
    "claim_tasks",
    {"v_now timestamptz;": "v_now timestamptz := task_now();", "      v_now := task_now();\n      -- A new": "      -- A new"},
)
RECLAIMED_FROM_A_SNAPSHOT: Final = Defect(
    "case 30: what fell due is decided from a look that holds nothing",
    "promote_due",
    {
        " FOR NO KEY UPDATE SKIP LOCKED) x;": ") x;",
        "ORDER BY s.check_at LIMIT p_limit FOR NO KEY UPDATE SKIP LOCKED": "ORDER BY s.check_at LIMIT p_limit",
    },
)
LOCKED_AS_THEY_COME: Final = Defect(
    "case 53: the tenants of a batch are locked in the order of its items",
    "finish_tasks",
    {
        "FROM tenant WHERE tenant_id = ANY (p_tenant) ORDER BY tenant_id FOR NO KEY UPDATE": (
            "FROM unnest(p_tenant) WITH ORDINALITY u(t, o) JOIN tenant x ON x.tenant_id = u.t "
            "ORDER BY u.o FOR NO KEY UPDATE OF x"
        )
    },
)
