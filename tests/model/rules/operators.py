"""What operators say."""

from tests.model import arguments as some
from tests.model.choices import Choices, Draw, pick
from tests.model.contract.checks import DAY_MS, MS
from tests.model.contract.rows import TERMINAL


class Operators(Choices):
    """Policies, pauses, budgets, what is sent back to work, and what is put away."""

    def set_policy(self, draw: Draw) -> None:
        most, leased = draw(some.policies)
        self._say(
            draw, "set_tenant_policy", tenant_id=draw(some.tenants), max_outstanding=most, max_leased=leased,
            retention_ms=draw(some.retentions_ms), max_input_bytes=draw(some.input_bytes),
            max_creates_per_second=draw(some.rates),
        )  # fmt: skip

    def set_budget(self, draw: Draw) -> None:
        self._say(
            draw, "set_budget_policy", tenant_id=draw(some.tenants), limits=draw(some.budgets),
            window_ms=draw(some.windows_ms), recovery_ms=draw(some.recoveries_ms),
        )  # fmt: skip

    def remove_budget(self, draw: Draw) -> None:
        self._say(draw, "remove_budget_policy", tenant_id=pick(draw, (*some.TENANTS, "nobody")))

    def forget_facts(self, draw: Draw) -> None:
        """What was exported and counted is forgotten."""
        tenant_id = draw(some.tenants)
        facts = self.model.budgets[tenant_id].facts if tenant_id in self.model.budgets else []
        through = len(facts) - min(len(facts), pick(draw, (0, 0, 1, 5)))
        self._say(draw, "confirm_budget_export", tenant_id=tenant_id, through_cursor=through)
        if pick(draw, (True, True, False)):
            self.pair.meter()
        limit, older_than_ms = pick(draw, (0, 1, 3, 1_000)), pick(draw, (1, 5_000))
        self._say(draw, "compact_budget_facts", tenant_id=tenant_id, older_than_ms=older_than_ms, limit=limit)

    def pause(self, draw: Draw) -> None:
        """Mostly not for long."""
        tenant_id, scope = draw(some.tenants), draw(some.scopes)
        actor, reason = pick(draw, (("ann", ""), ("bob", "it is late")))
        self._say(draw, "pause_work", tenant_id=tenant_id, actor=actor, reason=reason, **scope)
        if pick(draw, (False, True)):
            self._say(draw, "lease_tasks", **self._claim(draw))
            self._say(draw, "resume_work", tenant_id=tenant_id, **scope)

    def resume(self, draw: Draw) -> None:
        tenant_id = pick(draw, (*some.TENANTS, "nobody"))
        pauses = list(self.model.tenants[tenant_id].pauses) if tenant_id in self.model.tenants else []
        workflow, version = pick(draw, [*pauses * 2, ("", 0)])
        self._say(draw, "resume_work", tenant_id=tenant_id, workflow=workflow, version=version)

    def redrive(self, draw: Draw) -> None:
        """What failed; where nothing did, something fails before."""
        if not any(task.state == "FAILED" for task in self.model.tasks.values()):
            self.pair.say("fail_task", lease=self._ending_lease(draw), message="it broke")
        failed = [key for key, task in self.model.tasks.items() if task.state == "FAILED"]
        tenant_id, task_id = pick(draw, failed or [self._any_task(draw)])
        ended_at = self.model.tasks[tenant_id, task_id].ended_at if failed else self.model.now
        named = pick(draw, [(), (), (task_id,), (task_id, self._any_task(draw)[1], task_id)])
        self._say(
            draw, "redrive_tasks", tenant_id=tenant_id, actor="ann", request_id=pick(draw, (self._new_id(), "d1", "d1")),
            reasons=pick(draw, ((), (), ("WORKER",), ("CRASH_LIMIT", "EXECUTION_DEADLINE"))), task_ids=named,
            failed_from=pick(draw, (None,) * 5 + (ended_at,)), failed_before=pick(draw, (None,) * 5 + (ended_at,)),
            limit=pick(draw, (0, 1, 1_000)), dry_run=pick(draw, (False, False, True)),
            **pick(draw, ({}, {}, {}, draw(some.scopes))),
        )  # fmt: skip

    def remove(self, draw: Draw) -> None:
        tenant_id = draw(some.tenants)
        limit = pick(draw, [0, 1, 1_000])
        days = pick(draw, [0, 2])
        if days and any(task.state in TERMINAL for task in self.model.tasks.values()):
            self.pair.advance(days * DAY_MS * MS)
        self._say(draw, "remove_tasks", tenant_id=tenant_id, limit=limit)

    def compact(self, draw: Draw) -> None:
        older_than_ms, limit = pick(draw, [1, 5_000]), pick(draw, [0, 0, 1, 1_000])
        self._say(draw, "compact_signals", tenant_id=draw(some.tenants), older_than_ms=older_than_ms, limit=limit)
