"""How the machine chooses whom and what: mostly what makes sense, now and then what does not."""

from typing import Any

from hypothesis import strategies as st

from tests.model import arguments as some
from tests.model.model import Model
from tests.model.pair import Pair
from tests.model.rows import Lease

Data = st.DataObject


class Choices:
    """Draws tasks, leases and requests from what there is."""

    pair: Pair
    model: Model
    claims = 0

    def _say(self, data: Data, name: str, /, **fields: Any) -> None:
        self.pair.say(name, **self._spoil(data, name, fields))

    def _spoil(self, data: Data, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        match data.draw(some.spoiled(name)):
            case None:
                return fields
            case "wait", dict(wait):
                return {"lease": fields["lease"], "step": fields["step"]} | wait
            case field, value:
                return fields | {field: value}

    def _set_policy(self, tenant_id: str, policy: tuple[int, int], retention_ms: int) -> None:
        fields = {"max_outstanding": policy[0], "max_leased": policy[1], "retention_ms": retention_ms}
        self.pair.say("set_tenant_policy", tenant_id=tenant_id, **fields)

    def _new_task(self, data: Data) -> dict[str, Any]:
        return data.draw(some.new_tasks)

    def _claim(self, data: Data) -> dict[str, Any]:
        lanes = data.draw(st.one_of(st.just(some.LANES), st.lists(some.lanes, min_size=1, max_size=2).map(tuple)))
        again = data.draw(st.integers(0, 5)) == 0
        return {
            "request_id": data.draw(some.claim_ids) if again else self._new_id(), "worker_id": data.draw(some.workers),
            "workflows": lanes, "limit": data.draw(some.limits), "lease_ms": data.draw(some.leases_ms),
            "tenant_ids": data.draw(st.sampled_from([(), (), (), ("acme",), ("beta", "acme", "beta"), ("nobody",)])),
        }  # fmt: skip

    def _new_id(self) -> str:
        self.claims += 1
        return f"n{self.claims}"

    def _checkpoint(self, data: Data) -> dict[str, Any]:
        lease = self._any_lease(data)
        task = self.model.tasks.get((lease.tenant_id, lease.task_id))
        revision = max(0, (len(task.checkpoints) if task else 0) + data.draw(st.sampled_from([0, 0, 0, 0, 1, -1])))
        return {"lease": lease, "revision": revision, "step": "step", "data": data.draw(some.payloads)}

    def _result(self, data: Data) -> dict[str, Any]:
        return {"lease": self._any_lease(data), "data": data.draw(some.payloads), "media_type": data.draw(some.media_types)}

    def _failure(self, data: Data) -> dict[str, Any]:
        fields = {"lease": self._any_lease(data), "message": "it broke", "retry": data.draw(some.retries)}
        more = st.one_of(st.none(), some.payloads)
        return fields | {"data": data.draw(more), "code": data.draw(st.sampled_from([-32000, 0, 1]))}

    def _any_task(self, data: Data) -> tuple[str, str]:
        """Mostly one that is there; also one that was, one of another tenant, one that never was."""
        known = list(self.model.tasks)
        gone = [(name, one["task_id"]) for name, tenant in self.model.tenants.items() for one in tenant.tombstones]
        foreign = [("beta" if tenant_id == "acme" else "acme", task_id) for tenant_id, task_id in known[:1]]
        return data.draw(st.sampled_from(known * 6 + gone[:2] + foreign + [("acme", some.UNKNOWN)]))

    def _waiting_task(self, data: Data, kind: str) -> tuple[str, str]:
        """Mostly one that waits for this; if there is none, one is made to."""
        if not self._waiting(kind) and data.draw(st.booleans()):
            self._suspend(data, kind)
        waiting = self._waiting(kind)
        mostly = data.draw(st.sampled_from([True, True, False]))
        return data.draw(st.sampled_from(waiting)) if waiting and mostly else self._any_task(data)

    def _waiting(self, kind: str) -> list[tuple[str, str]]:
        waits = [(key, one.wait) for key, one in self.model.tasks.items() if one.state == "WAITING"]
        return [key for key, wait in waits if wait and wait.kind == kind.upper()]

    def _owner(self, data: Data, tenant_id: str, task_id: str) -> dict[str, Any]:
        task = self.model.tasks.get((tenant_id, task_id))
        right = task.owner if task else some.OWNERS[0]
        return {"owner": data.draw(st.sampled_from([None, None, right, right, *some.OWNERS]))}

    def _any_lease(self, data: Data) -> Lease:
        """Mostly one that holds; also one that held, one of the other epoch, worker, tenant, and one made up."""
        granted = self.pair.granted
        kind = data.draw(st.sampled_from(["held"] * 7 + ["old", "old", "forged", "forged"]))
        holding = [lease for lease in granted if self.model._holder(lease)]
        for attempt in range(2):
            if kind == "held" and not holding:
                if attempt:
                    lane = {"workflow": some.LANES[0][0], "version": some.LANES[0][1]}
                    new = {"tenant_id": data.draw(some.tenants), "owner": some.OWNERS[0], "data": b"1"} | lane
                    self.pair.say("create_task", request_id=self._new_id(), **new)
                claim = {"worker_id": data.draw(some.workers), "workflows": some.LANES, "limit": 2, "lease_ms": 30_000}
                self.pair.say("lease_tasks", request_id=self._new_id(), **claim)
                holding = [lease for lease in granted if self.model._holder(lease)]
        if not granted:
            return Lease("acme", next(iter(self.model.tasks), ("", some.UNKNOWN))[1], "w1", 1, 1)
        if kind == "held" and holding:
            return data.draw(st.sampled_from(holding[-4:]))
        if kind == "old":
            return data.draw(st.sampled_from(granted[-6:]))
        lease = data.draw(st.sampled_from(holding[-4:] or granted[-1:]))
        forged: list[dict[str, Any]] = [
            {"token": lease.token + 1}, {"token": lease.token - 1}, {"epoch": lease.epoch - 1}, {"epoch": lease.epoch + 1},
            {"worker_id": "w1" if lease.worker_id != "w1" else "w2"},
            {"tenant_id": "beta" if lease.tenant_id == "acme" else "acme"},
            {"task_id": some.UNKNOWN}, data.draw(st.sampled_from([{"task_id": "x"}, {"worker_id": ""}, {"tenant_id": ""}])),
        ]  # fmt: skip
        return lease._replace(**data.draw(st.sampled_from(forged)))

    def _suspend(self, data: Data, kind: str) -> None:
        fields: dict[str, Any] = {"lease": self._any_lease(data), "step": "wait"}
        match kind:
            case "timer":
                fields["timer_ms"] = data.draw(some.timeouts_ms.filter(bool))
            case "signal":
                fields |= {"signal": data.draw(st.sampled_from(some.NAMES)), "timeout_ms": data.draw(some.timeouts_ms)}
            case _:
                fields |= {"questions": tuple(data.draw(some.questions)), "timeout_ms": data.draw(some.timeouts_ms)}
                fields["fitting"] = tuple(data.draw(some.fitting))
        self._say(data, "suspend_task", **fields)
