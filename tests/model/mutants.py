"""Known defects, put into a scratch database one at a time, to show that the machine finds them.

`python -m tests.model.mutants` tells for each how many examples and seconds it took. Their sources are section 20 of the store
contract and the self-test of the reliability plan, as far as one operation after the other can show them.
"""

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from store_service.embedded import EmbeddedPostgres
from tests.changes import (
    CANCELS_ENDED,
    CURSORS_OF_A_SEQUENCE,
    FENCE,
    NO_TOKEN,
    REMOVES_HELD,
    REVIVES,
    STALE_CONSUMES,
    Change,
    try_each,
)
from tests.conftest import _make_template
from tests.model.conftest import make_database
from tests.model.coverage import Seen
from tests.model.machine import StoreMachine
from tests.model.real import Real

EXAMPLES: Final = 1_000
"""Most are found within 60; the one that takes longest, a rate that is not looked at, within 703."""
STEPS: Final = 60


MUTANTS: Final = {
    # Fences.
    "a finish that checks no token": NO_TOKEN,
    "a finish that checks no worker": Change("finish_tasks", FENCE, FENCE.replace("s.worker_id = u.w", "u.w IS NOT NULL")),
    "a finish after the lease's end": Change("finish_tasks", FENCE, FENCE.replace("s.expires_at > v_now", "true")),
    "a finish of another epoch": Change("finish_tasks", FENCE, FENCE.replace("u.e = v_epoch", "true")),
    "any finish again is the same": Change("finish_tasks", "AND s.finish_digest = u.digest AND", "AND"),
    "a finish that is not remembered": Change("finish_tasks", "finish_digest = d.digest", "finish_digest = NULL"),
    "a heartbeat that revives": REVIVES,
    "a heartbeat that shortens": Change(
        "heartbeat_tasks", "greatest(s.expires_at, v_now + coalesce(nullif(i.ms, 0), s.lease_ms) * interval '1 ms')",
        "v_now + coalesce(nullif(i.ms, 0), s.lease_ms) * interval '1 ms'"
    ),
    "a heartbeat that is a visible change": Change(
        "heartbeat_tasks", "SET lived = true,", "SET lived = true, change = s.change + 1,"
    ),
    "a checkpoint over another": Change("append_checkpoints", "s.checkpoints <> u.revision", "s.checkpoints < u.revision"),
    "a checkpoint that is answered and not kept": Change(
        "append_checkpoints", "i.k, v_now FROM item i WHERE i.outcome = 'OK'", "i.k, v_now FROM item i WHERE false"
    ),
    # Claims.
    "one length of a lease for all": Change("claim_tasks", "lease_ms = f.ms", "lease_ms = p_lease_ms[1]"),
    "a lease limit that is not looked at": Change("claim_tasks", "t.max_leased - t.leased) AS n", "10000) AS n"),
    "a priority that is not looked at": Change(
        "claim_tasks", "s.priority DESC, s.ready_at, s.task_id LIMIT r.n", "s.ready_at, s.task_id LIMIT r.n"
    ),
    "a tenant that is always first": Change("apply_deltas", "THEN nextval('turn') ELSE", "THEN 0 ELSE"),
    "a lane that does not follow what is ready earlier": Change(
        "apply_deltas", "least(x.ready_at, CASE WHEN x.ready < 0", "least(NULL, CASE WHEN x.ready < 0"
    ),
    "a repeated claim that takes more": Change("claim_tasks", "AND c.request_id = p_request", "AND false"),
    "a token that is used again": Change("claim_tasks", "token = s.token + 1", "token = greatest(s.token, 1)"),
    # Time.
    "a crash that is not counted": Change("promote_due", "crashes = d.crashed", "crashes = d.crashes"),
    "no guard against work that kills": Change("promote_due", "j.dead AND j.crashed > p_max_crashes", "false"),
    "a deadline that nobody keeps": Change(
        "promote_due", "WHEN j.deadline_at <= v_now THEN 'FAILED'", "WHEN false THEN 'FAILED'"
    ),
    "an abandoned task that goes on": Change(
        "promote_due", "AND (j.state <> 'LEASED' OR j.dead) THEN 'CANCELLED'", "AND j.dead THEN 'CANCELLED'"
    ),
    "a lost worker's wished end that is forgotten": Change(
        "promote_due", "OR (j.dead AND j.cancel_requested_at IS NOT NULL)", ""
    ),
    # Ends.
    "a cancel of what is complete": CANCELS_ENDED,
    "a cancel by another owner": Change("cancel_tasks", "t.subject = p_subject[u.o]", "true"),
    "a wished end that is forgotten": Change("finish_tasks", "WHEN h.wished AND h.event IN", "WHEN false AND h.event IN"),
    "a result that is written anew": Change(
        "finish_tasks", "x.media, p_data[x.o],", "x.media, rtrim(convert_from(p_data[x.o], 'UTF8'), '0')::bytea,"
    ),
    "a retry without a bound": Change("finish_tasks", "s.retries + 1 < u.max_attempts", "u.max_attempts IS NOT NULL"),
    # Creations.
    "a request id that is forgotten": Change("create_tasks", "x.request_digest = u.digest AS same", "false AS same"),
    "a request id that is enough": Change(
        "create_tasks", "x.request_digest = u.digest AS same", "x.task_id IS NOT NULL AS same"
    ),
    "a limit that lets one more in": Change("create_tasks", "i.nth > i.room", "i.nth > i.room + 1"),
    "a rate that is not looked at": Change("create_tasks", "WHEN i.nth > i.rate THEN", "WHEN false THEN"),
    "a fork with all checkpoints": Change("fork_task", " AND c.revision < p_checkpoints", ""),
    "a fork that no rate holds back": Change("fork_task", "RETURNING c.room < 1", "RETURNING false"),
    "a repeated fork that tells anyone": Change("fork_task", "WHEN v_owned THEN", "WHEN v_owned IS NOT NULL THEN"),
    # Waits.
    "a signal consumed and nobody woken": Change("publish_signal", "IF v_state = 'CONSUMED' THEN", "IF false THEN"),
    "a signal at the timeout wins": Change("publish_signal", "w.until <= v_now", "w.until < v_now"),
    "a stale worker consumes a signal": STALE_CONSUMES,
    "a key used again": Change("suspend_tasks", "WHEN a.times > 0 THEN '#' ||", "WHEN a.times > 1 THEN '#' ||"),
    "a second answer wins": Change("answer_inputs", "AND r.key = u.key AND r.state = 'OPEN'", "AND r.key = u.key"),
    "signals that outlive their task": Change(
        "close_signals", "UPDATE signal x SET state = 'DEAD_LETTER'", "UPDATE signal x SET state = x.state"
    ),
    # What is put away.
    "a removal before its time": Change("remove_tasks", "<= v_now - v_retention", "<= v_now"),
    "tombstones that count for all tenants": CURSORS_OF_A_SEQUENCE,
    "a held task that is removed": REMOVES_HELD,
    "a digest of something else": Change("remove_tasks", "sha256(d.history)", "sha256(d.tool::bytea)"),
    "a cleanup lease that ran out and holds": Change("has_cleanup", " AND c.expires_at > p_now", ""),
    "a cleanup lease that is taken from another": Change("claim_cleanup", "c.owner_id IS NULL OR", "true OR"),
    "a purge of what is not exported": Change("prepare_purge", "t.cursor <= v_watermark AND ", ""),
    "a purge of what is held": Change("execute_purge", "AND h.released_at IS NULL) THEN", "AND false) THEN"),
    "a purge that is decided twice": Change("decide_purge", "WHEN v_purge.state <> 'PENDING' THEN 'DECIDED'", ""),
    "an export that goes back": Change("confirm_export", "e.through_cursor >= p_through", "e.through_cursor = p_through"),
    "a pending signal that is compacted": Change("compact_signals", "AND x.state <> 'PENDING'\n", "\n"),
    # Budgets.
    "a finish before the settlement": Change("finish_tasks", "AND s.recovery_ms IS NULL", ""),
    "a reservation beyond the limits": Change(
        "reserve_budget", "vector_plus(v_budget.reserved, v_amount)", "v_amount"
    ),
    "a takeover that starts anew": Change(
        "reserve_budget", "AND r.ended IS NULL;", "AND r.ended IS NULL AND r.token = p_token;"
    ),
    "a lost reservation that costs nothing": Change(
        "forfeit_reservation", "v_held.amount, v_held.amount, p_cause",
        "v_held.amount, vector_minus(v_held.amount, v_held.amount), p_cause"
    ),
    "a reservation that is lost too early": Change(
        "promote_due", "+ j.recovery_ms * interval '1 ms' <= v_now THEN 'RECOVERY_EXPIRED'", "<= v_now THEN 'RECOVERY_EXPIRED'"
    ),
    "a window that is never over": Change("reserve_budget", "IF v_budget.reservations = 0 AND", "IF false AND"),
    "a settlement that is charged twice": Change("settle_budget", "v_held.digest = p_digest", "false"),
}  # fmt: skip


@contextmanager
def mutated(real: Real, mutant: Change) -> Iterator[None]:
    """The database with the defect."""
    sound = real.function(mutant.where)
    real.execute(mutant.of(sound))
    try:
        yield
    finally:
        real.execute(sound)


def find(real: Real, mutant: Change) -> str | None:
    """How many examples it took to see the defect, and what was seen; None when it was not seen."""
    machines: list[StoreMachine] = []

    def begin() -> StoreMachine:
        machines.append(StoreMachine(real, Seen(), []))
        return machines[-1]

    profile = settings(
        max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck), report_multiple_bugs=False,
    )  # fmt: skip
    machine: Any = seed(1)(partial(begin))
    with mutated(real, mutant):
        try:
            run_state_machine_as_test(machine, settings=profile)
        except AssertionError as error:
            told = str(error).partition("\n")[0]
            return f"example {len(machines):3}: {told}"
    return None


def main() -> int:
    """Tries them all, or those named."""
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedPostgres(Path(folder), durable=False, settings={"max_connections": "50"}) as server,
    ):
        asyncio.run(_make_template(server.dsn))
        with Real(asyncio.run(make_database(server.dsn))) as real:
            return try_each(sys.argv[1:] or MUTANTS, lambda name: find(real, MUTANTS[name]))


if __name__ == "__main__":
    sys.exit(main())
