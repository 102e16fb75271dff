"""How the machine chooses whom and what: mostly what makes sense, now and then what does not."""

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from hypothesis import strategies as st

from tests.model import arguments as some
from tests.model.contract.checks import DAY_MS, MS
from tests.model.contract.ledger import Reservation
from tests.model.contract.model import Model
from tests.model.contract.rows import CleanupLease, Lease, Purge, Task
from tests.model.pair import Pair

T = TypeVar("T")
Draw = st.DrawFn
Fields = dict[str, Any]

FATES: Final = ("said",) * 22 + ("spoiled",) * 2 + ("unheard",)


def pick(draw: Draw, options: Sequence[T]) -> T:
    """One of them. The first is the one most wanted: shrinking leads to it."""
    return options[draw(st.integers(0, len(options) - 1))]


class Choices:
    """Draws tasks, leases and requests from what there is."""

    pair: Pair
    model: Model
    ids = 0

    def _say(self, draw: Draw, name: str, /, **fields: Any) -> None:
        """Mostly as any caller does; now and then a field is wrong, or the answer is lost on its way."""
        match pick(draw, FATES):
            case "unheard":
                self.pair.say_unheard(name, **fields)
            case "spoiled":
                self.pair.say(name, **self._spoil(draw, name, fields))
            case _:
                self.pair.say(name, **fields)

    def _spoil(self, draw: Draw, name: str, fields: Fields) -> Fields:
        """One field is not as it must be."""
        match pick(draw, some.SPOILED[name]):
            case "wait", dict(wait):
                return {"lease": fields["lease"], "step": fields["step"]} | wait
            case field, value:
                return fields | {field: value}

    def _perhaps_spoil(self, draw: Draw, name: str, fields: Fields) -> Fields:
        return self._spoil(draw, name, fields) if pick(draw, FATES) == "spoiled" else fields

    def _new_id(self) -> str:
        self.ids += 1
        return f"n{self.ids}"

    def _new_task(self, draw: Draw) -> Fields:
        return draw(some.new_tasks)

    def _claim(self, draw: Draw) -> Fields:
        lanes = draw(some.wanted_lanes)
        again = pick(draw, (False,) * 5 + (True,))
        return {
            "request_id": draw(some.claim_ids) if again else self._new_id(), "worker_id": draw(some.workers),
            "workflows": lanes, "limit": draw(some.limits), "lease_ms": draw(some.leases_ms),
            "own_ms": pick(draw, (0, 0, 2_000)),
            "tenant_ids": pick(draw, [(), (), (), ("acme",), ("beta", "acme", "beta"), ("nobody",)]),
            "wait_ms": draw(some.waits_ms),
        }  # fmt: skip

    def _checkpoint(self, draw: Draw) -> Fields:
        lease = self._any_lease(draw)
        task = self.model.tasks.get((lease.tenant_id, lease.task_id))
        revision = max(0, (len(task.checkpoints) if task else 0) + pick(draw, [0, 0, 0, 0, 1, -1]))
        return {"lease": lease, "revision": revision, "step": "step", "data": draw(some.payloads)}

    def _result(self, draw: Draw) -> Fields:
        lease = self._ending_lease(draw)
        return {"lease": lease, "data": draw(some.payloads), "media_type": draw(some.media_types)}

    def _failure(self, draw: Draw) -> Fields:
        fields = {"lease": self._ending_lease(draw), "message": "it broke", "retry": draw(some.retries)}
        return fields | {"data": draw(some.perhaps_payloads), "code": pick(draw, [-32000, 0, 2**31 - 1, -(2**31)])}

    def _release(self, draw: Draw) -> Fields:
        return {"lease": self._ending_lease(draw), "delay_ms": draw(some.delays_ms)}

    def _suspension(self, draw: Draw, kind: str) -> Fields:
        fields: Fields = {"lease": self._ending_lease(draw), "step": "wait"}
        match kind:
            case "timer":
                return fields | {"timer_ms": draw(some.timers_ms)}
            case "signal":
                return fields | {"signal": pick(draw, some.NAMES), "timeout_ms": draw(some.timeouts_ms)}
            case _:
                fields |= {"questions": draw(some.questions), "timeout_ms": draw(some.timeouts_ms)}
                return fields | {"fitting": draw(some.fitting)}

    def _signal(self, draw: Draw, task: Task | None, key: tuple[str, str]) -> Fields:
        wanted = task.wait.signal_name if task and task.wait and task.wait.signal_name else some.NAMES[0]
        return {
            "tenant_id": key[0], "task_id": key[1], "data": draw(some.payloads),
            "signal_id": pick(draw, (*some.SIGNAL_IDS, *[self._new_id()] * 5)),
            "name": pick(draw, [wanted, wanted, *some.NAMES]),
        }  # fmt: skip

    def _any_task(self, draw: Draw) -> tuple[str, str]:
        """Mostly one that is there; also one that was, one of another tenant, one that never was."""
        known = list(self.model.tasks)
        gone = [(name, one["task_id"]) for name, tenant in self.model.tenants.items() for one in tenant.tombstones]
        foreign = [("beta" if tenant_id == "acme" else "acme", task_id) for tenant_id, task_id in known[:1]]
        return pick(draw, known * 6 + gone[:2] + foreign + [("acme", some.UNKNOWN)])

    def _waiting_task(self, draw: Draw, kind: str) -> tuple[str, str]:
        """Mostly one that waits for this; if there is none, one is made to."""
        if pick(draw, (False,) * 5 + (True,)):
            return self._any_task(draw)
        if not self._waiting(kind):
            self.pair.say("suspend_task", **self._suspension(draw, kind))
        return pick(draw, self._waiting(kind) or [self._any_task(draw)])

    def _waiting(self, kind: str) -> list[tuple[str, str]]:
        waits = [(key, one.wait) for key, one in self.model.tasks.items() if one.state == "WAITING"]
        return [key for key, wait in waits if wait and wait.kind == kind.upper()]

    def _owner(self, draw: Draw, tenant_id: str, task_id: str) -> Fields:
        task = self.model.tasks.get((tenant_id, task_id))
        right = task.owner if task else some.OWNERS[0]
        return {"owner": pick(draw, [None, None, right, right, *some.OWNERS])}

    def _holding(self) -> list[Lease]:
        return [lease for lease in dict.fromkeys(self.pair.granted) if self.model.holder(lease)]

    def _any_lease(self, draw: Draw) -> Lease:
        """Mostly one that holds; also one that held, one of the other epoch, worker, tenant, and one made up."""
        granted = self.pair.granted
        kind = pick(draw, ["held"] * 8 + ["old"] * 2 + ["forged"] * 3)
        for attempt in range(2):
            if kind == "held" and not self._holding():
                if attempt:
                    lane = {"workflow": some.LANES[0][0], "version": some.LANES[0][1]}
                    new = {"tenant_id": draw(some.tenants), "owner": some.OWNERS[0], "data": b"1"} | lane
                    self.pair.say("create_task", request_id=self._new_id(), **new)
                claim = {"worker_id": draw(some.workers), "workflows": some.LANES, "limit": 2, "lease_ms": 30_000}
                self.pair.say("lease_tasks", request_id=self._new_id(), **claim)
        holding = self._holding()[-4:]
        if not granted:
            return Lease("acme", next(iter(self.model.tasks), ("", some.UNKNOWN))[1], "w1", 1, 1)
        if kind == "held" and holding:
            return pick(draw, holding)
        if kind == "old":
            return pick(draw, granted[-6:])
        lease = pick(draw, holding or granted[-1:])
        forged: list[Fields] = [
            {"token": lease.token + 1}, {"token": lease.token - 1}, {"epoch": lease.epoch - 1}, {"epoch": lease.epoch + 1},
            {"worker_id": "w1" if lease.worker_id != "w1" else "w2"},
            {"tenant_id": "beta" if lease.tenant_id == "acme" else "acme"},
            {"task_id": some.UNKNOWN},
        ]  # fmt: skip
        return lease._replace(**pick(draw, forged))

    def _any_cleanup(self, draw: Draw, tenant_id: str) -> tuple[CleanupLease, str]:
        """Mostly a cleanup lease that holds, and whose it is; also one that held, and one made up."""
        if pick(draw, (True, True, True, False)) and tenant_id in self.model.tenants:
            fields = {"owner_id": pick(draw, some.CLEANERS), "principal": pick(draw, some.PRINCIPALS)}
            self.pair.say("claim_cleanup", tenant_id=tenant_id, lease_ms=30_000, **fields)
        known = [one for one in self.pair.cleanups if one[0].tenant_id == tenant_id]
        if not known:
            return CleanupLease(tenant_id, "c1", 1, self.model.epoch), "ann"
        lease, principal = pick(draw, [*known[-1:] * 6, known[0]])
        forged: list[Fields] = [{}] * 8 + [{"token": lease.token + 1}, {"epoch": lease.epoch + 1}, {"owner_id": "c3"}]
        return lease._replace(**pick(draw, forged)), pick(draw, [principal] * 8 + ["eve"])

    def _put_away(self, tenant_id: str, *, count: int) -> None:
        """Lets so many tombstones be there, at least."""
        left = count - (len(self.model.tenants[tenant_id].tombstones) if tenant_id in self.model.tenants else 0)
        if left <= 0:
            return
        policy = {"max_outstanding": 10_000, "max_leased": 100, "retention_ms": DAY_MS}
        self.pair.say("set_tenant_policy", tenant_id=tenant_id, **policy)
        for _ in range(left):
            fields = {"workflow": "mail", "version": 1, "owner": some.OWNERS[0], "data": b"1", "ttl_ms": 1}
            made = self.pair.say("create_task", tenant_id=tenant_id, request_id=self._new_id(), **fields)
            self.pair.say("cancel_task", tenant_id=tenant_id, task_id=made["task"]["task_id"], mode=2)
        self.pair.advance(2 * DAY_MS * MS)
        lease = self._claimed_cleanup(tenant_id)
        self.pair.say("remove_tasks", lease=lease, principal="ann")

    def _claimed_cleanup(self, tenant_id: str) -> CleanupLease:
        """The lease of a tenant, whoever had it before."""
        self.pair.advance(900_000 * MS)
        self.pair.say("claim_cleanup", tenant_id=tenant_id, owner_id="c1", principal="ann", lease_ms=900_000)
        return self.pair.cleanups[-1][0]

    def _prepared(self, draw: Draw, tenant_id: str) -> None:
        """Lets a purge wait for a decision, or for its execution."""
        self._put_away(tenant_id, count=2)
        tenant = self.model.tenants[tenant_id]
        if any(one.is_open(self.model.now) for one in tenant.purges):
            return
        if not tenant.exports or tenant.exports[-1]["through_cursor"] < tenant.last_cursor:
            through = {"through_cursor": tenant.last_cursor, "receipt": "r1"}
            self.pair.say("confirm_export", tenant_id=tenant_id, principal="ann", **through)
        lease = self._claimed_cleanup(tenant_id)
        asked = {"limit": pick(draw, (0, 1)), "retention_ms": 1, "approval_ms": 30 * DAY_MS}
        self.pair.say("prepare_purge", lease=lease, principal="ann", request_id=self._new_id(), **asked)

    def _decision(self, draw: Draw, purges: Sequence[Purge], number: int) -> Fields:
        """Mostly under the claim, by whose it is, if there is one; or directly."""
        reviewer, token = (purges[number - 1].reviewer, purges[number - 1].token) if 1 <= number <= len(purges) else ("", 0)
        return {
            "claim_token": pick(draw, (token, token, 0, token + 1)),
            "principal": pick(draw, (reviewer or "bob", reviewer or "bob", *some.PRINCIPALS)),
        }

    def _usage(self, draw: Draw, held: Reservation | None) -> dict[str, int]:
        """Of a budget: what fits to what the task holds, now and then more than that."""
        if held is None or pick(draw, (False,) * 5 + (True,)):
            return draw(some.usages)
        more = pick(draw, (0, 1, 2, 3, 9))
        return {
            name: held.baseline[name] + (amount, min(more, amount), 0, amount + more)[more % 4]
            for name, amount in held.amount.items()
        }

    def _reserving_lease(self, draw: Draw) -> Lease:
        """Mostly one whose task holds a reservation; if there is none, one is made."""
        lease = self._any_lease(draw)
        holding = [one for one in self._holding() if self._held(one)]
        if not holding and self.model.holder(lease) and pick(draw, (True, True, True, False)):
            budget = self.model.budgets.get(lease.tenant_id)
            limits = dict(budget.limits) if budget and budget.limits else {}
            if not limits:
                limits = {"tokens": 100}
                policy = {"limits": limits, "window_ms": 30_000, "recovery_ms": draw(some.recoveries_ms)}
                self.pair.say("set_budget_policy", tenant_id=lease.tenant_id, **policy)
            self.pair.say("reserve_budget", lease=lease, limits={name: min(one, 30) for name, one in limits.items()}, usage={})
            return lease
        return pick(draw, [*holding[-2:] * 3, lease])

    def _held(self, lease: Lease) -> Reservation | None:
        task = self.model.holder(lease)
        return task.holds if task else None

    def _ending_lease(self, draw: Draw) -> Lease:
        """As any; where it holds a reservation, that is mostly settled before."""
        lease = self._any_lease(draw)
        if (held := self._held(lease)) and pick(draw, (True, True, False)):
            self.pair.say("settle_budget", lease=lease, usage=self._usage(draw, held))
        return lease
