"""Which outcomes of which operations a run has met, and which it should have."""

from collections import Counter
from typing import Final

from tests.descriptors import READS
from tests.model.operations import BATCHES, LEFT_OUT, in_python, read_operations
from tests.store.refusals.promised import pairs

Seen = Counter[tuple[str, str]]
"""How often each operation came to each outcome."""

UNREACHED: Final = {
    ("GetTasks", "BATCH_FULL"): "an answer is full with 4 MiB: tests/store/test_batches.py",
    ("WatchTasks", "DRAINING"): "a store that stops: tests/store/test_watch.py",
}
"""Promised refusals that no rule brings about."""
KINDS: Final = {
    "create_task": ("OK", "OK replayed"),
    "fork_task": ("OK", "OK replayed"),
    "cancel_task": ("OK CANCELLED", "OK REQUESTED", "OK ALREADY_TERMINAL"),
    "answer_inputs": ("OK ACCEPTED", "OK IGNORED", "OK ACCEPTED IGNORED"),
    "publish_signal": ("OK CONSUMED", "OK PENDING", "OK DEAD_LETTER", "OK CONSUMED replayed", "OK PENDING replayed",
                       "OK DEAD_LETTER replayed"),
    "watch_tasks": ("OK", "OK then a change", "OK then the end"),
    "redrive_tasks": ("OK", "OK replayed", "OK REDRIVEN", "OK OUTSTANDING_LIMIT", "OK NOT_FAILED"),
    "lease_tasks": ("OK", "OK tasks", "OK woken by signal", "OK woken by input", "OK woken by timer", "OK woken by timeout",
                    "OK left out"),
    "fail_task": ("OK", "OK retry_at"),
    "suspend_task": ("OK", "OK keys"),
    "list_tasks": ("OK", "OK tasks", "OK tasks next_page_token"),
    "list_signals": ("OK", "OK signals", "OK signals next_page_token"),
    "reserve_budget": ("OK", "OK adopted"),
    "claim_cleanup": ("OK", "OK lease"),
    "remove_tasks": ("OK", "OK tombstones"),
    "place_hold": ("OK", "OK replayed"),
    "claim_purge": ("OK", "OK claim_token"),
    "list_tombstones": ("OK", "OK tombstones"),
    "budget": ("POLICY_CONFIGURED", "POLICY_REMOVED", "WINDOW_RESET", "RESERVED", "ADOPTED", "ADMISSION_DENIED",
               "USAGE_EXCEEDED", "SETTLED", "FORFEITED CANCELLED", "FORFEITED FAILED", "FORFEITED RECOVERY_EXPIRED"),
    "history": ("CREATED", "LEASED", "LEASE_EXPIRED", "RELEASED", "RETRIED", "CANCEL_REQUESTED", "COMPLETED", "FAILED",
                "FAILED EXECUTION_DEADLINE", "FAILED CRASH_LIMIT", "CANCELLED", "SUSPENDED", "WOKEN", "REDRIVEN"),
}  # fmt: skip
"""Answers that differ in more than their values; and what shall have happened to tasks and budgets."""


def wanted() -> set[tuple[str, str]]:
    """An answer of every operation, every promised refusal of it, a wrong argument, and an answer that was lost."""
    promised = {(in_python(method), reason) for method, reason in pairs() - UNREACHED.keys()}
    every = {(name, kind) for name in read_operations().keys() - LEFT_OUT.keys() for kind in KINDS.get(name, ("OK",))}
    kinds = {(name, kind) for name in ("budget", "history") for kind in KINDS[name]}
    wrong = {(name, "INVALID_INPUT") for name in read_operations().keys() - LEFT_OUT.keys()}
    reads = {in_python(name) for name in READS}
    unheard = {(name, "OUTCOME_UNKNOWN") for name in read_operations().keys() - reads - BATCHES.keys() - LEFT_OUT.keys()}
    return promised | every | kinds | wrong | unheard


def missing(seen: Seen) -> list[str]:
    """What a run did not meet."""
    return sorted(" ".join(one) for one in wanted() if not seen[one])


def table(seen: Seen) -> str:
    """A line for each operation."""
    names = sorted({name for name, _ in seen})
    lines = [
        f"  {name}: " + ", ".join(f"{outcome} {count}" for (one, outcome), count in sorted(seen.items()) if one == name)
        for name in names
    ]
    return "\n".join([f"{len(seen)} outcomes of {len(names)} operations, {seen.total()} in all", *lines])
