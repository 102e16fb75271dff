"""Known defects, put into a scratch database one at a time, to show that the machine finds them.

`python -m tests.model.mutants` tells for each how many steps and seconds it took.
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
from typing import Final

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from store_service.embedded import EmbeddedPostgres
from tests.conftest import _make_template
from tests.model.conftest import make_database
from tests.model.machine import StoreMachine
from tests.model.real import Real

EXAMPLES: Final = 150
STEPS: Final = 40


@dataclass(frozen=True)
class Mutant:
    """A defect: in this function, this text instead of that one."""

    function: str
    was: str
    becomes: str


FENCE: Final = "s.worker_id = u.w AND s.token = u.k AND u.e = v_epoch\n      AND s.expires_at > v_now"
MUTANTS: Final = {
    "a finish that checks no token": Mutant("finish_tasks", FENCE, FENCE.replace("AND s.token = u.k ", "")),
    "a finish that checks no worker": Mutant("finish_tasks", FENCE, FENCE.replace("s.worker_id = u.w", "u.w IS NOT NULL")),
    "a finish after the lease's end": Mutant("finish_tasks", FENCE, FENCE.replace("s.expires_at > v_now", "true")),
    "any finish again is the same": Mutant("finish_tasks", "AND s.finish_digest = u.digest AND", "AND"),
    "a heartbeat that revives": Mutant("heartbeat_tasks", "\n      AND s.expires_at > v_now", ""),
    "a heartbeat that shortens": Mutant(
        "heartbeat_tasks", "greatest(s.expires_at, v_now + i.ms * interval '1 ms')", "v_now + i.ms * interval '1 ms'"
    ),
    "a signal consumed and nobody woken": Mutant("publish_signal", "IF v_state = 'CONSUMED' THEN", "IF false THEN"),
    "a signal at the timeout wins": Mutant("publish_signal", "w.until <= v_now", "w.until < v_now"),
    "a stale worker consumes a signal": Mutant(
        "suspend_tasks", "SELECT e.epoch INTO v_epoch FROM epoch e;",
        "SELECT e.epoch INTO v_epoch FROM epoch e; UPDATE signal x SET state = 'CONSUMED' WHERE x.state = 'PENDING' "
        "AND x.task_id = ANY (p_task) AND x.name = ANY (p_signal) AND NOT EXISTS (SELECT FROM task_state s WHERE s.task_id = "
        "x.task_id AND s.token = ANY (p_token));",
    ),
    "a lease limit that is not looked at": Mutant(
        "claim_tasks", "t.max_leased - t.leased) AS n", "10000) AS n"
    ),
    "a priority that is not looked at": Mutant("claim_tasks", "s.priority DESC, s.ready_at", "s.ready_at"),
    "a tenant that is always first": Mutant("apply_deltas", "THEN nextval('turn') ELSE", "THEN 0 ELSE"),
    "a cancel of what is complete": Mutant("cancel_tasks", "WHEN s.state <> ALL (p_live) THEN", "WHEN false THEN"),
    "a key used again": Mutant("suspend_tasks", "WHEN a.times > 0 THEN '#' ||", "WHEN a.times > 1 THEN '#' ||"),
    "a second answer wins": Mutant("answer_inputs", "AND r.key = u.key AND r.state = 'OPEN'", "AND r.key = u.key"),
    "a crash that is not counted": Mutant("promote_due", "crashes = d.crashed", "crashes = d.crashes"),
    "a cancel by another owner": Mutant("cancel_tasks", "t.subject = p_subject[u.o]", "true"),
    "a fork with all checkpoints": Mutant("fork_task", " AND c.revision < p_checkpoints", ""),
    "a removal before its time": Mutant("remove_tasks", "<= v_now - v_retention", "<= v_now"),
    "a wished end that is forgotten": Mutant("finish_tasks", "WHEN h.wished AND h.event IN", "WHEN false AND h.event IN"),
    "a checkpoint over another": Mutant("append_checkpoints", "s.checkpoints <> u.revision", "s.checkpoints < u.revision"),
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
        machines.append(StoreMachine(real))
        return machines[-1]

    profile = settings(
        max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, derandomize=True, database=None,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck), report_multiple_bugs=False,
    )  # fmt: skip
    with mutated(real, mutant):
        try:
            run_state_machine_as_test(partial(begin), settings=profile)  # type: ignore[arg-type]  # any callable will do
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
                print(f"{name:38} {time.monotonic() - started:5.1f} s  {told}", flush=True)
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
