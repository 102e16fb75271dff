"""S1, S2, S3, S7: one live lease a task, no write of an old one, leases within the limit, checkpoints in order."""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from tests.robustness.evidence import Event, Evidence, Version

_LEASE = re.compile(r"-l(\d+)$")
_BY_WORKER = frozenset(("COMPLETED", "RELEASED", "RETRIED", "SUSPENDED"))
"""Events that only the holder of a lease that has not run out may cause. FAILED and CANCELLED may come from others too."""
LATE_US = 1_000_000
"""So long after a lease's end no write that needs it may happen, whichever clock it was decided by."""
_OVER = frozenset(("COMPLETED", "FAILED", "CANCELLED"))


def check_leases(evidence: Evidence) -> Iterator[str]:
    """S1, S2 and S7 for each task, S3 for each tenant."""
    for task, versions in evidence.versions.items():
        if evidence.was_removed(task):
            continue  # its history went with it
        yield from _check_task(task, versions, {event.line: event for event in evidence.events.get(task, ())})
    yield from _check_writes(evidence)
    yield from _check_checkpoints(evidence)
    yield from _check_limits(evidence)


def _check_task(task: str, versions: list[Version], events: dict[int, Event]) -> Iterator[str]:
    for before, after in pairwise(versions):
        if after.op == "D":
            continue
        if after.token < before.token or after.token > before.token + 1:
            yield f"S1 {task}: the token went from {before.token} to {after.token}"
        if after.token != before.token:
            if before.state == "LEASED":
                yield f"S1 {task}: taken with token {after.token} while {before.worker} held it"
            if after.state != "LEASED":
                yield f"S1 {task}: a new token without a lease"
            continue
        if before.state == "LEASED" and after.state == "LEASED":
            yield from _check_extension(task, before, after)
        elif before.state == "LEASED":
            yield from _check_end(task, before, after, events.get(after.lines - 1))
        elif after.state == "LEASED":
            yield f"S1 {task}: leased again under token {after.token}"


def _check_extension(task: str, before: Version, after: Version) -> Iterator[str]:
    """A heartbeat came in time, by the clock that it was decided by: the new end less the length of the lease."""
    if after.worker != before.worker:
        yield f"S1 {task}: {before.worker}'s lease became {after.worker}'s"
    length = _LEASE.search(after.worker)
    if after.expires != before.expires and length is not None:
        decided = after.expires - int(length.group(1)) * 1000
        if after.expires < before.expires:
            yield f"S1 {task}: a heartbeat shortened a lease"
        elif decided >= before.expires or after.at >= before.expires + LATE_US:
            yield f"S1 {task}: a lease was revived {(after.at - before.expires) / 1e6:.3f} s after its end"


def _check_end(task: str, before: Version, after: Version, event: Event | None) -> Iterator[str]:
    if event is None:
        yield f"S1 {task}: a lease ended without a line of history"
    elif event.event == "LEASE_EXPIRED" and event.at < before.expires:
        yield f"S1 {task}: a lease was taken away {(before.expires - event.at) / 1e6:.3f} s before its end"
    elif event.event in _BY_WORKER and (event.at >= before.expires or after.at >= before.expires + LATE_US):
        yield f"S2 {task}: {event.event} was accepted {(after.at - before.expires) / 1e6:.3f} s after the lease's end"
    elif event.event in _BY_WORKER and event.token != before.token:
        yield f"S2 {task}: {event.event} was accepted with token {event.token}, {before.token} held it"
    elif after.state == "FAILED" and after.failed_for == "WORKER" and event.at >= before.expires:
        yield f"S2 {task}: FAILED was accepted after the lease's end"


def _check_writes(evidence: Evidence) -> Iterator[str]:
    for write in evidence.writes:
        row = evidence.rows.get(write.task)
        if row is not None and write.revision < row.forked:
            continue  # copied at the fork, under no lease of its own
        if write.state != "LEASED" or write.token != write.current_token:
            what = f"checkpoint {write.revision} of token {write.token}"
            yield f"S2 {write.task}: {what} at token {write.current_token} in {write.state}"
        elif write.written >= write.expires or write.at >= write.expires + LATE_US:
            late = (write.at - write.expires) / 1e6
            yield f"S2 {write.task}: checkpoint {write.revision} {late:.3f} s after the lease's end"


def _check_checkpoints(evidence: Evidence) -> Iterator[str]:
    for task, row in evidence.rows.items():
        kept = evidence.checkpoints.get(task, [])
        if [revision for revision, _, _ in kept] != list(range(row.checkpoints)):
            yield f"S7 {task}: has checkpoints {[revision for revision, _, _ in kept]}, counts {row.checkpoints}"
        tokens = [token for revision, token, _ in kept if revision >= row.forked]
        if tokens != sorted(tokens):
            yield f"S7 {task}: the tokens of its checkpoints are {tokens}"


def _check_limits(evidence: Evidence) -> Iterator[str]:
    """Leases at once, counted from the versions and not from the store's own counters."""
    held: set[str] = set()
    count: Counter[str] = Counter()
    outstanding: Counter[str] = Counter()
    known: set[str] = set()
    over: set[str] = set()
    for version in evidence.order:
        tenant, task = version.tenant, version.task
        if version.op == "I" and task not in known:
            known.add(task)
            outstanding[tenant] += 1
            if outstanding[tenant] > evidence.limits[tenant][1]:
                yield f"S3 {tenant}: {outstanding[tenant]} unfinished tasks"
        if version.state in _OVER and task not in over:
            over.add(task)
            outstanding[tenant] -= 1
        if version.state == "LEASED" and task not in held:
            held.add(task)
            count[tenant] += 1
            if count[tenant] > evidence.limits[tenant][0]:
                yield f"S3 {tenant}: {count[tenant]} leases at once, at most {evidence.limits[tenant][0]}"
        elif version.state != "LEASED" and task in held:
            held.remove(task)
            count[tenant] -= 1
