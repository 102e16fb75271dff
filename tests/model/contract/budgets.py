"""What a tenant's tasks may use in a window of time. Source: store contract, section 12."""

from tests.model.contract.checks import MS, YEARS, Answer, Refused, check, is_name, lean, page
from tests.model.contract.ledger import DIMENSIONS, Amounts, Budget, Reservation, check_amounts, is_negative, minus, plus
from tests.model.contract.rows import Lease, Task, Tenant
from tests.model.contract.state import State


class Budgets(State):
    """Policies, reservations and settlements."""

    def set_budget_policy(self, *, tenant_id: str, limits: Amounts, window_ms: int, recovery_ms: int) -> Answer:
        """A new window, nothing committed; never while anything is reserved."""
        check(is_name(tenant_id) and bool(limits) and 1 <= window_ms < 10 * YEARS and 0 <= recovery_ms < YEARS)
        check_amounts(limits)
        self.tenants.setdefault(tenant_id, Tenant())
        budget = self.budgets.setdefault(tenant_id, Budget(tenant_id))
        if budget.reservations:
            raise Refused("BUDGET_RESERVED")
        budget.limits, budget.window_ms, budget.recovery_ms = limits, window_ms, recovery_ms
        budget.reserved = minus(limits, limits)
        budget.start_window(self.now)
        budget.tell("POLICY_CONFIGURED", self.now)
        return {"budget": budget.shown()}

    def remove_budget_policy(self, *, tenant_id: str) -> Answer:
        """The facts stay."""
        check(is_name(tenant_id))
        budget = self._budget(tenant_id)
        if budget.reservations:
            raise Refused("BUDGET_RESERVED")
        budget.limits, budget.committed, budget.reserved = None, {}, {}
        budget.tell("POLICY_REMOVED", self.now)
        return {}

    def get_budget(self, *, tenant_id: str) -> Answer:
        """As it stands."""
        check(is_name(tenant_id))
        return {"budget": self._budget(tenant_id).shown()}

    def list_budget_facts(self, *, tenant_id: str, after_cursor: int = 0, page_size: int = 0) -> Answer:
        """By rising cursor."""
        check(is_name(tenant_id) and after_cursor >= 0 and 0 <= page_size <= 1_000)
        budget = self.budgets.get(tenant_id) or Budget(tenant_id)
        left = budget.facts[max(after_cursor, budget.compacted) :]
        return lean(facts=page(left, page_size), compacted_cursor=budget.compacted)

    def confirm_budget_export(self, *, tenant_id: str, through_cursor: int) -> Answer:
        """It never goes back, and not past what there is."""
        check(is_name(tenant_id) and through_cursor >= 0)
        budget = self.budgets.get(tenant_id) or Budget(tenant_id)
        check(through_cursor <= len(budget.facts))
        budget.exported = max(budget.exported, through_cursor)
        return lean(exported_cursor=budget.exported)

    def compact_budget_facts(self, *, tenant_id: str, older_than_ms: int, limit: int = 0) -> Answer:
        """What was exported and counted, is old enough, and of a window that is over; the oldest first."""
        check(is_name(tenant_id) and 1 <= older_than_ms < 10 * YEARS and 0 <= limit <= 1_000)
        budget = self.budgets.get(tenant_id) or Budget(tenant_id)
        last = min(budget.exported, budget.metered, budget.window_fact - 1, budget.compacted + (limit or 100))
        before = budget.compacted
        while budget.compacted < last and budget.facts[budget.compacted]["at"] <= self.now - older_than_ms * MS:
            budget.compacted += 1
        return lean(compacted=budget.compacted - before, compacted_cursor=budget.compacted)

    def meter_facts(self) -> None:
        """The figures of the store count what there is."""
        for budget in self.budgets.values():
            budget.metered = len(budget.facts)

    def reserve_budget(self, *, lease: Lease, limits: Amounts, usage: Amounts) -> Answer:
        """What lies between the use so far and the limits; or what the task holds already, less what it used since."""
        check_amounts(limits)
        check_amounts(usage)
        task = self._held(lease)
        budget = self._budget(task.tenant_id)
        bounded = budget.limits or {}
        check(all(name in limits for name in bounded))
        if held := task.holds:
            return self._adopt(task, held, lease, limits, usage)
        amount = minus({name: limits[name] for name in bounded}, usage)
        if is_negative(amount):
            raise Refused("BUDGET_CONFLICT")
        if not budget.reservations and self.now >= budget.window_started_at + budget.window_ms * MS:
            budget.start_window(self.now)
            budget.tell("WINDOW_RESET", self.now)
        baseline = plus(minus(bounded, bounded), usage)
        new = Reservation(lease.worker_id, lease.token, baseline, amount, self.now, budget.recovery_ms)
        if is_negative(minus(minus(bounded, plus(budget.committed, budget.reserved)), amount)):
            budget.tell("ADMISSION_DENIED", self.now, task_id=task.task_id, held=new, amount=amount)
            raise Refused("BUDGET_DENIED")
        task.reservation, task.lived = new, True
        budget.tell("RESERVED", self.now, task_id=task.task_id, held=new, amount=amount)
        return {"reserved": amount}

    def settle_budget(self, *, lease: Lease, usage: Amounts) -> Answer:
        """What was used is charged, the rest given back. The same settlement by the same lease is answered again."""
        check_amounts(usage)
        check(lease.is_formed)
        settlement = (lease._replace(epoch=0), plus(dict.fromkeys(DIMENSIONS, 0), usage))
        known = self.tasks.get((lease.tenant_id, lease.task_id))
        last = known.reservation if known else None
        if known and last and last.ended and lease.epoch == self.epoch and last.settlement == settlement:
            if last.ended != "SETTLED":
                raise Refused("BUDGET_EXCEEDED")
            return {"charged": last.charged, "released": minus(last.amount, last.charged)}
        task = self._held(lease)
        budget = self._budget(task.tenant_id)
        held = task.holds
        if held is None:
            raise Refused("BUDGET_CONFLICT")
        used = minus(plus(minus(held.amount, held.amount), usage), held.baseline)
        if is_negative(used):
            raise Refused("BUDGET_CONFLICT")
        held.worker_id, held.token, held.settlement, task.lived = lease.worker_id, lease.token, settlement, True
        if is_negative(minus(held.amount, used)):
            self._exceed(task, held, budget, used)
        held.ended, held.charged = "SETTLED", used
        rest = minus(held.amount, used)
        budget.tell("SETTLED", self.now, task_id=task.task_id, held=held, amount=used, charged=used, released=rest)
        return {"charged": used, "released": rest}

    def _adopt(self, task: Task, held: Reservation, lease: Lease, limits: Amounts, usage: Amounts) -> Answer:
        budget = self.budgets[task.tenant_id]
        used = minus(plus(minus(held.amount, held.amount), usage), held.baseline)
        envelope = minus({name: limits[name] for name in held.amount}, held.baseline)
        if is_negative(used) or envelope != held.amount:
            raise Refused("BUDGET_CONFLICT")
        taken_over = held.token != lease.token
        held.worker_id, held.token, task.lived = lease.worker_id, lease.token, True
        if is_negative(minus(held.amount, used)):
            self._exceed(task, held, budget, used)
        if taken_over or any(used.values()):
            held.baseline, held.amount = plus(held.baseline, used), minus(held.amount, used)
            budget.tell("ADOPTED", self.now, task_id=task.task_id, held=held, amount=used, charged=used)
        return {"reserved": held.amount, "adopted": True}

    def _exceed(self, task: Task, held: Reservation, budget: Budget, used: Amounts) -> None:
        """All that it held is charged, and no more: the fact says the truth, the limits hold."""
        held.ended, held.charged = "USAGE_EXCEEDED", held.amount
        rest = minus(held.amount, held.amount)
        budget.tell(
            "USAGE_EXCEEDED", self.now, task_id=task.task_id, held=held, amount=used, charged=held.amount, released=rest
        )
        raise Refused("BUDGET_EXCEEDED")

    def _budget(self, tenant_id: str) -> Budget:
        budget = self.budgets.get(tenant_id)
        if budget is None or budget.limits is None:
            raise Refused("BUDGET_NOT_CONFIGURED")
        return budget
