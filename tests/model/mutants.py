"""Known defects, put into a scratch database one at a time, to show that the machine finds them.

`python -m tests.model.mutants` tells for each how many examples and seconds it took. Their sources are section 20 of the store
contract and the self-test of the reliability plan, as far as one operation after the other can show them.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from store_service.embedded import EmbeddedPostgres
from tests.conftest import _make_template
from tests.model.conftest import make_database
from tests.model.coverage import Seen
from tests.model.machine import StoreMachine
from tests.model.real import Real

EXAMPLES: Final = 200
STEPS: Final = 60


@dataclass(frozen=True)
class Mutant:
    """A defect: in this function, this text instead of that one."""

    function: str
    was: str
    becomes: str


FENCE: Final = "s.worker_id = u.w AND s.token = u.k AND u.e = v_epoch\n      AND s.expires_at > v_now"
MUTANTS: Final = {
    # Fences.
    "a finish that checks no token": Mutant("finish_tasks", FENCE, FENCE.replace("AND s.token = u.k ", "")),
    "a finish that checks no worker": Mutant("finish_tasks", FENCE, FENCE.replace("s.worker_id = u.w", "u.w IS NOT NULL")),
    "a finish after the lease's end": Mutant("finish_tasks", FENCE, FENCE.replace("s.expires_at > v_now", "true")),
    "a finish of another epoch": Mutant("finish_tasks", FENCE, FENCE.replace("u.e = v_epoch", "true")),
    "any finish again is the same": Mutant("finish_tasks", "AND s.finish_digest = u.digest AND", "AND"),
    "a finish that is not remembered": Mutant("finish_tasks", "finish_digest = d.digest", "finish_digest = NULL"),
    "a heartbeat that revives": Mutant("heartbeat_tasks", "\n      AND s.expires_at > v_now", ""),
    "a heartbeat that shortens": Mutant(
        "heartbeat_tasks", "greatest(s.expires_at, v_now + coalesce(nullif(i.ms, 0), s.lease_ms) * interval '1 ms')",
        "v_now + coalesce(nullif(i.ms, 0), s.lease_ms) * interval '1 ms'"
    ),
    "a heartbeat that is a visible change": Mutant(
        "heartbeat_tasks", "SET lived = true,", "SET lived = true, change = s.change + 1,"
    ),
    "a checkpoint over another": Mutant("append_checkpoints", "s.checkpoints <> u.revision", "s.checkpoints < u.revision"),
    "a checkpoint that is answered and not kept": Mutant(
        "append_checkpoints", "i.k, v_now FROM item i WHERE i.outcome = 'OK'", "i.k, v_now FROM item i WHERE false"
    ),
    # Claims.
    "one length of a lease for all": Mutant("claim_tasks", "lease_ms = f.ms", "lease_ms = p_lease_ms[1]"),
    "a lease limit that is not looked at": Mutant("claim_tasks", "t.max_leased - t.leased) AS n", "10000) AS n"),
    "a priority that is not looked at": Mutant(
        "claim_tasks", "s.priority DESC, s.ready_at, s.task_id LIMIT r.n", "s.ready_at, s.task_id LIMIT r.n"
    ),
    "a tenant that is always first": Mutant("apply_deltas", "THEN nextval('turn') ELSE", "THEN 0 ELSE"),
    "a repeated claim that takes more": Mutant("claim_tasks", "AND c.request_id = p_request", "AND false"),
    "a token that is used again": Mutant("claim_tasks", "token = s.token + 1", "token = greatest(s.token, 1)"),
    # Time.
    "a crash that is not counted": Mutant("promote_due", "crashes = d.crashed", "crashes = d.crashes"),
    "no guard against work that kills": Mutant("promote_due", "j.dead AND j.crashed > p_max_crashes", "false"),
    "a deadline that nobody keeps": Mutant(
        "promote_due", "WHEN j.deadline_at <= v_now THEN 'FAILED'", "WHEN false THEN 'FAILED'"
    ),
    "an abandoned task that goes on": Mutant(
        "promote_due", "AND (j.state <> 'LEASED' OR j.dead) THEN 'CANCELLED'", "AND j.dead THEN 'CANCELLED'"
    ),
    "a lost worker's wished end that is forgotten": Mutant(
        "promote_due", "OR (j.dead AND j.cancel_requested_at IS NOT NULL)", ""
    ),
    # Ends.
    "a cancel of what is complete": Mutant("cancel_tasks", "WHEN s.state <> ALL (p_live) THEN", "WHEN false THEN"),
    "a cancel by another owner": Mutant("cancel_tasks", "t.subject = p_subject[u.o]", "true"),
    "a wished end that is forgotten": Mutant("finish_tasks", "WHEN h.wished AND h.event IN", "WHEN false AND h.event IN"),
    "a result that is written anew": Mutant(
        "finish_tasks", "x.media, p_data[x.o],", "x.media, rtrim(convert_from(p_data[x.o], 'UTF8'), '0')::bytea,"
    ),
    "a retry without a bound": Mutant("finish_tasks", "s.retries + 1 < u.max_attempts", "u.max_attempts IS NOT NULL"),
    # Creations.
    "a request id that is forgotten": Mutant("create_tasks", "x.request_digest = u.digest AS same", "false AS same"),
    "a request id that is enough": Mutant(
        "create_tasks", "x.request_digest = u.digest AS same", "x.task_id IS NOT NULL AS same"
    ),
    "a limit that lets one more in": Mutant("create_tasks", "i.nth > i.room", "i.nth > i.room + 1"),
    "a rate that is not looked at": Mutant("create_tasks", "WHEN i.nth > i.rate THEN", "WHEN false THEN"),
    "a fork with all checkpoints": Mutant("fork_task", " AND c.revision < p_checkpoints", ""),
    "a fork that no rate holds back": Mutant("fork_task", "RETURNING c.room < 1", "RETURNING false"),
    "a repeated fork that tells anyone": Mutant("fork_task", "WHEN v_owned THEN", "WHEN v_owned IS NOT NULL THEN"),
    # Waits.
    "a signal consumed and nobody woken": Mutant("publish_signal", "IF v_state = 'CONSUMED' THEN", "IF false THEN"),
    "a signal at the timeout wins": Mutant("publish_signal", "w.until <= v_now", "w.until < v_now"),
    "a stale worker consumes a signal": Mutant(
        "suspend_tasks", "SELECT e.epoch INTO v_epoch FROM epoch e;",
        "SELECT e.epoch INTO v_epoch FROM epoch e; UPDATE signal x SET state = 'CONSUMED' WHERE x.state = 'PENDING' "
        "AND x.task_id = ANY (p_task) AND x.name = ANY (p_signal) AND NOT EXISTS (SELECT FROM task_state s WHERE s.task_id = "
        "x.task_id AND s.token = ANY (p_token));",
    ),
    "a key used again": Mutant("suspend_tasks", "WHEN a.times > 0 THEN '#' ||", "WHEN a.times > 1 THEN '#' ||"),
    "a second answer wins": Mutant("answer_inputs", "AND r.key = u.key AND r.state = 'OPEN'", "AND r.key = u.key"),
    "signals that outlive their task": Mutant(
        "close_signals", "UPDATE signal x SET state = 'DEAD_LETTER'", "UPDATE signal x SET state = x.state"
    ),
    # What is put away.
    "a removal before its time": Mutant("remove_tasks", "<= v_now - v_retention", "<= v_now"),
    "tombstones that count for all tenants": Mutant(
        "remove_tasks", "v_last + row_number() OVER (ORDER BY d.handle_ends_at, d.task_id)", "nextval('turn')"
    ),
    "a held task that is removed": Mutant("remove_tasks", " AND NOT s.held\n", "\n"),
    "a digest of something else": Mutant("remove_tasks", "sha256(d.history)", "sha256(d.tool::bytea)"),
    "a cleanup lease that ran out and holds": Mutant("has_cleanup", " AND c.expires_at > p_now", ""),
    "a cleanup lease that is taken from another": Mutant("claim_cleanup", "c.owner_id IS NULL OR", "true OR"),
    "a purge of what is not exported": Mutant("prepare_purge", "t.cursor <= v_watermark AND ", ""),
    "a purge of what is held": Mutant("execute_purge", "AND h.released_at IS NULL) THEN", "AND false) THEN"),
    "a purge that is decided twice": Mutant("decide_purge", "WHEN v_purge.state <> 'PENDING' THEN 'DECIDED'", ""),
    "an export that goes back": Mutant("confirm_export", "e.through_cursor >= p_through", "e.through_cursor = p_through"),
    "a pending signal that is compacted": Mutant("compact_signals", "AND x.state <> 'PENDING'\n", "\n"),
    # Budgets.
    "a finish before the settlement": Mutant("finish_tasks", "AND s.recovery_ms IS NULL", ""),
    "a reservation beyond the limits": Mutant(
        "reserve_budget", "vector_plus(v_budget.reserved, v_amount)", "v_amount"
    ),
    "a takeover that starts anew": Mutant(
        "reserve_budget", "AND r.ended IS NULL;", "AND r.ended IS NULL AND r.token = p_token;"
    ),
    "a lost reservation that costs nothing": Mutant(
        "forfeit_reservation", "v_held.amount, v_held.amount, p_cause",
        "v_held.amount, vector_minus(v_held.amount, v_held.amount), p_cause"
    ),
    "a reservation that is lost too early": Mutant(
        "promote_due", "+ j.recovery_ms * interval '1 ms' <= v_now THEN 'RECOVERY_EXPIRED'", "<= v_now THEN 'RECOVERY_EXPIRED'"
    ),
    "a window that is never over": Mutant("reserve_budget", "IF v_budget.reservations = 0 AND", "IF false AND"),
    "a settlement that is charged twice": Mutant("settle_budget", "v_held.digest = p_digest", "false"),
}  # fmt: skip


@contextmanager
def mutated(real: Real, mutant: Mutant) -> Iterator[None]:
    """The database with the defect."""
    sound = real.function(mutant.function)
    assert mutant.was in sound, f"{mutant.function} has no longer\n{mutant.was}"
    real.execute(sound.replace(mutant.was, mutant.becomes))
    try:
        yield
    finally:
        real.execute(sound)


def find(real: Real, mutant: Mutant) -> tuple[int, str] | None:
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
            return len(machines), str(error).partition("\n")[0]
    return None


def main() -> int:
    """Tries them all, or those named."""
    missed = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedPostgres(Path(folder), durable=False, settings={"max_connections": "50"}) as server,
    ):
        asyncio.run(_make_template(server.dsn))
        with Real(asyncio.run(make_database(server.dsn))) as real:
            for name in sys.argv[1:] or MUTANTS:
                started = time.monotonic()
                found = find(real, MUTANTS[name])
                missed += found is None
                told = "NOT FOUND" if found is None else f"example {found[0]:3}: {found[1]}"
                print(f"{name:44} {time.monotonic() - started:5.1f} s  {told}", flush=True)
    print(f"{missed} not found")
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
