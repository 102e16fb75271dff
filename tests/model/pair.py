"""A store and the model of it: they are told the same, step by step; what they answer and what they are then is compared."""

from collections.abc import Sequence
from typing import Any, Final

from taskstore.v1 import leases_pb2, tasks_pb2

from tests.model import arguments as some
from tests.model import calls
from tests.model.checks import CODES, Refused
from tests.model.model import Model
from tests.model.plain import Outcome
from tests.model.real import GRACE_MS, MAX_CRASHES, START, Real
from tests.model.rows import Lease

BATCHES: Final = {
    "create_task": ("create_tasks", tasks_pb2.CreateTasksRequest, "created"),
    "get_task": ("get_tasks", tasks_pb2.GetTasksRequest, "task"),
    "heartbeat_task": ("heartbeat_tasks", leases_pb2.HeartbeatTasksRequest, "extended"),
    "append_checkpoint": ("append_checkpoints", leases_pb2.AppendCheckpointsRequest, "appended"),
    "complete_task": ("complete_tasks", leases_pb2.CompleteTasksRequest, "completed"),
    "fail_task": ("fail_tasks", leases_pb2.FailTasksRequest, "failed"),
}


class Pair:
    """A store and the model of it, told the same."""

    def __init__(self, real: Real) -> None:
        real.forget()
        self.real = real
        self.model = Model(START, cancel_grace_ms=GRACE_MS, max_crashes=MAX_CRASHES)
        self.said: list[tuple[str, dict[str, Any]]] = []
        self.granted: list[Lease] = []
        self.dice = 0.5
        self.agreed = True

    def say(self, name: str, /, **fields: Any) -> Any:
        """One operation on both. Returns the answer, or the reason of the refusal."""
        self.said.append((name, fields))
        answer = self.real.call(name, fields)
        self._compare(name, answer, self._expect(name, fields, answer))
        self._keep(answer)
        self.look()
        return answer[1]

    def say_batch(self, name: str, items: Sequence[dict[str, Any]], claim: dict[str, Any] | None = None) -> None:
        """Many of one operation in one call."""
        method, message, kind = BATCHES[name]
        made = [getattr(calls, name)(**fields) for fields in items]
        if claim is None:
            request: Any = message(items=made)
        else:
            method = "complete_and_lease_tasks"
            request = leases_pb2.CompleteAndLeaseTasksRequest(items=made, lease=calls.lease_tasks(**claim))
        self.said.append((method, {"items": items, "claim": claim}))
        code, answer = self.real.call_batch(method, request)
        assert code == "OK", (code, answer)
        expected = []
        for fields, item in zip(items, answer["items"], strict=True):
            seen = ("REFUSED", item["refused"]) if "refused" in item else ("OK", item[kind] if name != "get_task" else item)
            code, value = self._expect(name, fields, seen)
            if code != "OK" and {value, item.get("refused")} == {"CREATE_RATE", "OUTSTANDING_LIMIT"}:
                value = seen[1]  # a batch that is beyond both may name either
            expected.append({"refused": value} if code != "OK" else value if name == "get_task" else {kind: value})
        whole = {"items": expected}
        if claim is not None:
            whole |= self._expect("lease_tasks", claim, ("OK", answer))[1]
            self._keep(("OK", answer))
        self._compare(method, ("OK", answer), ("OK", whole))
        self.look()

    def advance(self, us: int) -> None:
        """It gets later. Nothing else happens."""
        self.said.append(("advance", {"us": us}))
        self.model.now += us
        self.real.set_clock(self.model.now, self.dice)

    def throw(self, dice: float) -> None:
        """What the store's dice show from now on."""
        self.said.append(("throw", {"dice": dice}))
        self.dice = dice
        self.real.set_clock(self.model.now, dice)

    def bump_epoch(self) -> None:
        """The database was restored."""
        self.said.append(("bump_epoch", {}))
        self.model.epoch += 1
        self.real.execute("UPDATE tenure.epoch SET epoch = epoch + 1")

    def look(self, *, everywhere: bool = False) -> None:
        """What was touched looks the same from outside, everything stands where it should, and nothing is wrong."""
        touched = sorted(self.model.tasks if everywhere else self.model.touched)
        self.model.touched.clear()
        reads: list[tuple[str, dict[str, Any]]] = []
        for tenant_id, task_id in touched:
            reads += [("get_task", {"tenant_id": tenant_id, "task_id": task_id, "view": 3})]
            reads += [(n, {"tenant_id": tenant_id, "task_id": task_id}) for n in ("list_task_history", "list_checkpoints")]
        for tenant_id, signal_id in self.model.signals:
            if everywhere or (tenant_id, self.model.signals[tenant_id, signal_id].task_id) in touched:
                reads.append(("get_signal", {"tenant_id": tenant_id, "signal_id": signal_id}))
        names = self.model.tenants if everywhere else {tenant_id for tenant_id, _ in touched}
        reads += [("get_tenant", {"tenant_id": tenant_id}) for tenant_id in sorted(names)]
        if everywhere:
            reads += [(n, {"tenant_id": t}) for t in some.TENANTS for n in ("list_tasks", "list_tombstones")]
        seen, states, wrong = self.real.look(reads, self._within_limits())
        for (name, fields), answer in zip(reads, seen, strict=True):
            self._compare(name, answer, self._expect(name, fields, answer))
        self.model.touched.clear()
        expected = [
            (task.tenant_id, task.task_id, task.state, task.change, task.token, len(task.lines), task.ready)
            for task in self.model.tasks.values()
        ]
        self._compare("states", ("OK", sorted(states)), ("OK", sorted(expected)))
        self.agreed = self.agreed and not wrong
        assert not wrong, f"{wrong}\n{self.story()}"

    def story(self) -> str:
        """What was said so far, as a regression test would say it."""
        return "\n".join(f"pair.{call}" for call in map(_told, self.said))

    def _within_limits(self) -> list[str]:
        leased = {name: sum(task.state == "LEASED" for task in self.model._of(name)) for name in self.model.tenants}
        return [name for name, tenant in self.model.tenants.items() if leased[name] <= tenant.max_leased]

    def _expect(self, name: str, fields: dict[str, Any], seen: Outcome) -> Outcome:
        code, answer = seen
        choices: dict[str, Any] = {}
        match name:
            case "create_task" | "fork_task":
                choices["chosen"] = answer["task"]["task_id"] if code == "OK" else some.UNKNOWN
            case "fail_task":
                choices["chosen"] = answer.get("retry_at", self.model.now) if code == "OK" else self.model.now
            case "lease_tasks" if code == "OK":
                tenants = {task["lease"]["tenant_id"] for task in answer.get("tasks", ())}
                choices["served"] = [one for one in self.real.turns() if one in tenants] if len(tenants) > 1 else ()
        try:
            return "OK", getattr(self.model, name)(**fields, **choices)
        except Refused as refused:
            return CODES[str(refused)], str(refused)

    def _compare(self, name: str, seen: Outcome, expected: Outcome) -> None:
        self.agreed = self.agreed and seen == expected
        assert seen == expected, f"{name}: the store says\n  {seen}\nand the model\n  {expected}\nafter\n{self.story()}"

    def _keep(self, answer: Outcome) -> None:
        if answer[0] == "OK":
            self.granted += [Lease(**{"epoch": 0} | task["lease"]) for task in answer[1].get("tasks", ()) if "lease" in task]


def _told(call: tuple[str, dict[str, Any]]) -> str:
    name, fields = call
    if "items" in fields:
        return f"say_batch({name!r}, {fields['items']!r}, {fields['claim']!r})"
    told = ", ".join(f"{field}={value!r}" for field, value in fields.items())
    return f"{name}({told})" if name in ("advance", "throw", "bump_epoch") else f"say({name!r}, {told})"
