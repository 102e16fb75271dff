"""S8, S9, S12, S13: signals, effects outside, secrets of tenants, budgets; and what the database itself says is wrong."""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from tests.robustness.evidence import Evidence
from tests.robustness.history import OK

_FATES = {"PENDING": ("CONSUMED", "DEAD_LETTER"), "CONSUMED": (), "DEAD_LETTER": ()}
LIBRARY_WORKFLOWS = frozenset(("steps", "nap", "signal", "ask", "flaky", "spend"))
_WAITS = frozenset(("sleep", "go", "sure"))

MISSED_US: Final = 50_000
"""So long at most a signal is pending and waited for, by the clock of the triggers: no time at all, by the task's lock."""


def check_effects(evidence: Evidence) -> Iterator[str]:
    """All of it."""
    yield from _check_signals(evidence)
    yield from _check_heard(evidence)
    yield from _check_ledger(evidence)
    yield from (f"{breach}" for breach in evidence.breaches)
    yield from (f"S13/S3 the counters disagree with the rows: {line}" for line in evidence.audit)


def _check_signals(evidence: Evidence) -> Iterator[str]:
    state: dict[tuple[str, str], str] = {}
    for _, _, tenant, signal, task, op, now in evidence.signals:
        before = state.get((tenant, signal))
        if op == "U" and before is not None and now != before and now not in _FATES[before]:
            yield f"S8 {signal}: went from {before} to {now}"
        if op == "I" and before is not None:
            yield f"S8 {signal} of {task}: accepted twice"
        state[tenant, signal] = now
    for call in evidence.calls:
        if call.op != "signal" or call.outcome != OK:
            continue
        kept = evidence.final_signals.get((call.tenant, call.detail["signal"]))
        if kept is None and evidence.was_removed(call.task):
            continue
        if kept is None:
            yield f"S8 {call.detail['signal']}: acknowledged, and is not there"
        elif call.detail["state"] in ("CONSUMED", "DEAD_LETTER") and kept[1] != call.detail["state"]:
            yield f"S8 {call.detail['signal']}: was told as {call.detail['state']}, is {kept[1]}"
    woke = Counter((tenant, signal) for tenant, _, signal in evidence.wakes)
    for (tenant, signal), count in woke.items():
        if count > 1:
            yield f"S8 {signal} of {tenant}: ended {count} waits"
    for key, now in state.items():
        if (now == "CONSUMED") != (key in woke):
            yield f"S8 {key[1]} of {key[0]}: is {now} and ended {woke[key]} waits"
    for (tenant, signal), (task, now) in evidence.final_signals.items():
        row = evidence.rows.get(task)
        if now == "PENDING" and row is not None and row.state in ("COMPLETED", "FAILED", "CANCELLED"):
            yield f"S8 {tenant} {signal}: pending for a task that has ended"


def _check_heard(evidence: Evidence) -> Iterator[str]:
    """No signal is pending while its task waits for it. All signals of a run have one name."""
    pending: dict[str, dict[str, int]] = defaultdict(dict)
    spans: list[tuple[str, str, int, int]] = []
    for _, at, _, signal, task, _, now in evidence.signals:
        if now == "PENDING":
            pending[task].setdefault(signal, at)
        elif (since := pending[task].pop(signal, None)) is not None:
            spans.append((task, signal, since, at))
    spans += [(task, signal, since, sys.maxsize) for task, left in pending.items() for signal, since in left.items()]
    for task, signal, since, until in spans:
        for before, after in pairwise(evidence.versions.get(task, ())):
            if before.state == "WAITING" and before.waits == "SIGNAL":
                both = min(until, after.at) - max(since, before.at)
                if both > MISSED_US:
                    yield f"S8 {signal}: was pending for {both / 1e6:.3f} s while {task} waited for it"


def _check_ledger(evidence: Evidence) -> Iterator[str]:
    """Each step that is saved had its effect under the very token that saved it, and the ledger took none after a later one."""
    accepted: dict[str, set[tuple[str, int]]] = defaultdict(set)
    highest: dict[str, int] = {}
    for effect in evidence.effects:
        if effect.is_accepted:
            if effect.token < highest.get(effect.task, 0):
                yield f"S9 {effect.task}: the ledger took token {effect.token} after {highest[effect.task]}"
            highest[effect.task] = max(effect.token, highest.get(effect.task, 0))
            accepted[effect.task].add((effect.step, effect.token))
    for task, row in evidence.rows.items():
        if row.workflow not in LIBRARY_WORKFLOWS or row.forked:
            continue
        steps = [
            (step, token) for _, token, step in evidence.checkpoints.get(task, []) if step[0] in "sba" and step not in _WAITS
        ]
        names = [step for step, _ in steps]
        if len(names) != len(set(names)):
            yield f"S9 {task}: a step is saved twice: {names}"
        for step, token in steps:
            if (step, token) not in accepted[task]:
                yield f"S9 {task}: step {step} of token {token} is saved, and its effect did not happen under it"
