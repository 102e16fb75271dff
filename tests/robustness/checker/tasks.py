"""S4, S5, S6, S10: what was acknowledged is there, ends once, stays as it is; and each task's history is linearizable.

A task is one object. Its versions, as the database wrote them, are one line, and each call happened at one of them. The order
of real time asks that a call which ended before another began happened at no later version than the other. To take for each
call, in the order in which they began, the first version that explains it and comes not before those of the calls that had
ended, decides exactly whether all can be explained, as a choice that is earlier never hinders a later one.
So nothing is searched.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

from tests.robustness.evidence import Evidence, Version
from tests.robustness.history import OK, Call

OVER = frozenset(("COMPLETED", "FAILED", "CANCELLED"))
SLACK_US = 2_000
"""Between the clock of a client and that of the database, which are the same machine's."""
_STATUSES = {"completed": "COMPLETED", "failed": "FAILED", "cancelled": "CANCELLED"}


def check_tasks(evidence: Evidence) -> Iterator[str]:
    """All of it."""
    yield from _check_creations(evidence)
    yield from _check_ends(evidence)
    yield from _check_results(evidence)
    by_task: dict[str, list[Call]] = defaultdict(list)
    for call in evidence.calls:
        if call.task:
            by_task[call.task].append(call)
    for task, calls in by_task.items():
        versions = evidence.versions.get(task)
        if versions is not None:
            yield from check_linearizable(task, versions, calls)


def _check_creations(evidence: Evidence) -> Iterator[str]:
    told: dict[tuple[str, str], str] = {}
    for call in evidence.calls:
        if call.op != "create" or call.outcome != OK:
            continue
        key = call.tenant, call.detail["request"]
        if told.setdefault(key, call.task) != call.task and not _is_over(evidence, told[key], call):
            yield f"S4 {key}: acknowledged as {told[key]} and as {call.task}"
        told[key] = call.task
        if call.task not in evidence.rows and not evidence.was_removed(call.task):
            yield f"S4 {call.task}: acknowledged to {call.client}, and is not there"
    requests: dict[tuple[str, str], str] = {}
    for row in evidence.rows.values():
        if requests.setdefault((row.tenant, row.request), row.task) != row.task:
            yield f"S4 {row.request}: made twice"
    inputs: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in evidence.rows.values():
        if row.input and not row.is_fork:
            inputs[row.tenant, row.input].append(row.task)
    for tasks in inputs.values():
        if len(tasks) > 1:
            yield f"S4 {tasks}: wanted once, as each input is another, and made {len(tasks)} times"


def _is_over(evidence: Evidence, task: str, call: Call) -> bool:
    """Whether a task had been removed when a call was answered: its request id is free again."""
    last = evidence.versions[task][-1] if task in evidence.versions else None
    return last is not None and last.op == "D" and last.at <= call.returned + SLACK_US


def _check_ends(evidence: Evidence) -> Iterator[str]:
    for task, versions in evidence.versions.items():
        ends = [after for before, after in pairwise(versions) if after.state != before.state and after.state in OVER]
        if len(ends) > 1:
            yield f"S5 {task}: ended as {[end.state for end in ends]}"
        for before, after in pairwise(versions):
            if before.state in OVER and after.state != before.state:
                yield f"S5 {task}: left {before.state} for {after.state}"
            if before.state in OVER and after.checkpoints != before.checkpoints:
                yield f"S10 {task}: a checkpoint after {before.state}"
        row = evidence.rows.get(task)
        if row is not None and row.state not in OVER:
            yield f"L {task}: {row.workflow} is still {row.state} at the end"
        if row is not None and row.state == "COMPLETED" and not row.result:
            yield f"S6 {task}: completed without a result"


def _check_results(evidence: Evidence) -> Iterator[str]:
    seen: dict[tuple[str, str], str] = {}
    handed: dict[tuple[str, int], str] = {}
    for call in evidence.calls:
        result = call.detail.get("result")
        if call.outcome != OK or not result:
            continue
        if call.op == "complete":
            if handed.setdefault((call.task, call.detail["token"]), result) != result:
                yield f"S6 {call.task}: two results were accepted under token {call.detail['token']}"
            continue
        if seen.setdefault((call.task, call.op), result) != result:
            yield f"S6 {call.task}: was read with two results"
    for (task, _), result in handed.items():
        for op in ("read", "poll"):
            if seen.get((task, op), result) != result:
                yield f"S6 {task}: is answered to a {op} otherwise than it was handed over"


def check_linearizable(task: str, versions: list[Version], calls: list[Call]) -> Iterator[str]:
    """Whether every call can have happened at one moment of its interval. See above."""
    done: list[tuple[int, int]] = []  # when a call ended, and its version; by the end
    for call in sorted(calls, key=lambda each: each.invoked):
        explains = _explanation(call)
        if explains is None:
            continue
        floor = max((at for ended, at in done if ended + SLACK_US < call.invoked), default=0)
        index = _first(versions, floor, call, explains)
        if index is None:
            was = f"{versions[floor].state}, change {versions[floor].change}, token {versions[floor].token}"
            yield (
                f"S5 {task}: {call.client} {call.op} -> {call.outcome} {call.detail} at {call.invoked} has no explanation from "
                f"version {floor} of {len(versions)} on ({was})"
            )
            continue
        done.append((call.returned, index))
        if len(done) > 400:
            cut = max(at for _, at in done[:200])
            last = max(ended for ended, _ in done[:200])
            done = [(last, cut), *done[200:]]


def _first(versions: list[Version], floor: int, call: Call, explains: "_Explains") -> int | None:
    for index in range(floor, len(versions)):
        if versions[index].at > call.returned + SLACK_US:
            return None
        if explains(versions[index], versions[index - 1] if index else None):
            return index
    return None


_Explains = Callable[[Version, Version | None], bool]


def _explanation(call: Call) -> _Explains | None:
    """Which versions explain a call; None for calls that any version explains."""
    detail, outcome = call.detail, call.outcome
    if call.op in ("heartbeat", "append", "complete", "release", "fail", "lease"):
        return _lessee(call)
    if outcome != OK:
        is_gone = outcome == "TASK_NOT_FOUND" or (call.op == "poll" and outcome == "-32602")
        return (lambda now, _: now.op == "D") if is_gone else None
    if call.op == "create":
        return lambda now, _: now.op != "D"
    if call.op == "read":
        return lambda now, _: (
            now.change == detail["change"] and now.state == detail["state"] and now.token == detail["token"]
            and now.checkpoints == detail["checkpoints"]
        )  # fmt: skip
    if call.op == "poll":
        status = detail["status"]
        if status in _STATUSES:
            return lambda now, _: now.state == _STATUSES[status]
        if status == "input_required":
            return lambda now, _: now.state == "WAITING"
        return lambda now, _: now.state not in OVER
    if call.op == "checkpoints":
        count = len(detail["seen"])
        return lambda now, _: now.checkpoints == count
    if call.op == "cancel":
        return {
            "CANCELLED": lambda now, before: now.state == "CANCELLED" and before is not None and before.state not in OVER,
            "REQUESTED": lambda now, _: now.state == "LEASED" and now.wished,
            "ALREADY_TERMINAL": lambda now, _: now.state in OVER,
        }[detail["found"]]
    return None


def _lessee(call: Call) -> _Explains | None:
    """What a worker was told goes with the lease as it was."""
    if call.outcome not in (OK, "LEASE_LOST", "REVISION_CONFLICT") or "token" not in call.detail:
        return None
    token, worker = call.detail["token"], call.detail["worker"]

    def is_held(now: Version) -> bool:
        return now.state == "LEASED" and now.token == token and now.worker == worker

    if call.outcome == "LEASE_LOST":
        return lambda now, _: not is_held(now) or now.expires <= call.returned + SLACK_US
    if call.outcome == "REVISION_CONFLICT":
        return lambda now, _: is_held(now) and now.checkpoints != call.detail["revision"]
    if call.op in ("lease", "heartbeat"):
        return lambda now, _: is_held(now)
    if call.op == "append":
        revision = call.detail["revision"]
        return lambda now, before: is_held(now) and now.checkpoints == revision + 1 and before is not None and is_held(before)
    if call.op == "complete":
        return lambda now, _: now.state == "COMPLETED" and now.finish_token == token
    return lambda now, _: now.state != "LEASED" and now.finish_token == token
