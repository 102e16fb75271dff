"""Reads what a run left behind and says what is wrong with it: python -m tests.robustness.checker.judge FOLDER"""

import sys
from collections import Counter
from pathlib import Path

from store_service.model.refusals import Reason
from tests.robustness.checker.effects import check_effects
from tests.robustness.checker.leases import check_leases
from tests.robustness.checker.removals import check_removals
from tests.robustness.checker.sizes import check_sizes
from tests.robustness.checker.tasks import check_tasks
from tests.robustness.evidence import Evidence, read_evidence
from tests.robustness.history import UNKNOWN


def judge(evidence: Evidence) -> list[str]:
    """Every violation, each beginning with the invariant's name."""
    checks = check_leases, check_tasks, check_removals, check_effects, check_sizes
    return [found for check in checks for found in check(evidence)]


def resolve_unknowns(evidence: Evidence) -> dict[str, int]:
    """What became of the writes of which nobody knew: by the rows at the end, each was done or was not. A creation is repeated
    until it is known; a fork of what was removed meanwhile is refused then."""
    found: Counter[str] = Counter()
    requests = {(row.tenant, row.request) for row in evidence.rows.values()}
    acknowledged = {
        (call.tenant, call.detail["request"]): call.task
        for call in evidence.calls
        if call.op == "create" and call.outcome == "ok"
    }
    refused = {
        (call.tenant, call.detail["request"])
        for call in evidence.calls
        if call.op == "create" and call.outcome == Reason.TASK_NOT_FOUND.value
    }
    for call in evidence.calls:
        if call.outcome != UNKNOWN:
            continue
        if call.op == "create" and not call.detail["request"].startswith("mcp:"):
            key = call.tenant, call.detail["request"]
            if key in acknowledged:
                found["creations repeated until acknowledged"] += 1
                found["of them made exactly once"] += key in requests or evidence.was_removed(acknowledged[key])
            elif key in refused and key not in requests:
                found["creations repeated until refused"] += 1
            else:
                found["creations unresolved"] += 1
        elif call.op == "complete":
            versions = evidence.versions.get(call.task, [])
            done = any(each.state == "COMPLETED" and each.finish_token == call.detail["token"] for each in versions)
            found["completions done" if done else "completions not done"] += 1
        elif call.op == "append":
            kept = evidence.checkpoints.get(call.task, [])
            done = any((at, token) == (call.detail["revision"], call.detail["token"]) for at, token, _ in kept)
            found["checkpoints done" if done else "checkpoints not done"] += 1
    return dict(found)


def main() -> int:
    """Prints what is wrong."""
    evidence = read_evidence(Path(sys.argv[1]))
    violations = judge(evidence)
    print("\n".join(violations[:200]))
    print(len(evidence.calls), "calls,", len(evidence.rows), "tasks,", len(violations), "violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
