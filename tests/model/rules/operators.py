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
        lease, principal = self._any_cleanup(draw, tenant_id)
        self._say(draw, "remove_tasks", lease=lease, limit=limit, principal=principal)

    def clean(self, draw: Draw) -> None:
        """Who may remove."""
        lease_ms, tenant_id = pick(draw, (10_000, 1_000, 900_000)), pick(draw, (*some.TENANTS, *some.TENANTS, "nobody"))
        match pick(draw, ("claim", "heartbeat", "release", "look")):
            case "claim":
                self._say(
                    draw, "claim_cleanup", tenant_id=tenant_id, owner_id=pick(draw, some.CLEANERS), lease_ms=lease_ms,
                    principal=pick(draw, some.PRINCIPALS),
                )  # fmt: skip
            case "heartbeat":
                lease, principal = self._any_cleanup(draw, tenant_id)
                self._say(draw, "heartbeat_cleanup", lease=lease, lease_ms=lease_ms, principal=principal)
            case "release":
                lease, principal = self._any_cleanup(draw, tenant_id)
                self._say(draw, "release_cleanup", lease=lease, principal=principal)
            case _:
                self._say(
                    draw, "list_cleanup_tenants", tenant_ids=pick(draw, ((), (), ("beta", "acme", "beta"), ("nobody",))),
                    after_tenant_id=pick(draw, ("", "", "acme")), page_size=pick(draw, (0, 1, 2)),
                )  # fmt: skip

    def hold(self, draw: Draw) -> None:
        """Mostly of what is over."""
        over = [task.key for task in self.model.tasks.values() if task.state in TERMINAL]
        tenant_id, task_id = pick(draw, (over[-1:] or [self._any_task(draw)]) * 3 + [self._any_task(draw)])
        self._say(
            draw, "place_hold", tenant_id=tenant_id, task_id=task_id, reason="why", principal=pick(draw, some.PRINCIPALS)
        )  # fmt: skip

    def end_hold(self, draw: Draw) -> None:
        """The last one, or another."""
        tenant_id = draw(some.tenants)
        placed = len(self.model.tenants[tenant_id].holds) if tenant_id in self.model.tenants else 0
        number = pick(draw, (placed, placed, 1, placed + 1))
        self._say(draw, "release_hold", tenant_id=tenant_id, number=number, principal=pick(draw, some.PRINCIPALS))

    def export(self, draw: Draw) -> None:
        """Mostly all that there is; where there is nothing, something is removed before."""
        tenant_id = draw(some.tenants)
        self._put_away(tenant_id, count=pick(draw, (1, 2)))
        last = self.model.tenants[tenant_id].last_cursor
        through = max(1, last - pick(draw, (0, 0, 0, 1)))
        self._say(
            draw, "confirm_export", tenant_id=tenant_id, through_cursor=through, receipt=pick(draw, ("r1", "r1", "r2")),
            principal=pick(draw, some.PRINCIPALS),
        )  # fmt: skip
        self._say(draw, "get_retention", tenant_id=pick(draw, (tenant_id, tenant_id, "nobody")))

    def purge(self, draw: Draw) -> None:
        """Prepared by one, decided by another, executed by any; where there is nothing to decide, it is prepared before."""
        tenant_id = draw(some.tenants)
        if pick(draw, (True, True, True, False)):
            self._prepared(draw, tenant_id)
        purges = self.model.tenants[tenant_id].purges if tenant_id in self.model.tenants else []
        number = pick(draw, (len(purges), len(purges), max(1, len(purges) - 1), 1, len(purges) + 1))
        who = pick(draw, some.PRINCIPALS)
        lease, principal = self._any_cleanup(draw, tenant_id)
        match pick(draw, ("prepare", "prepare", "claim", "approve", "approve", "reject", "execute", "execute", "look")):
            case "prepare":
                self.pair.advance(1_000)
                self._say(
                    draw, "prepare_purge", lease=lease, principal=principal, limit=pick(draw, (0, 1, 2)),
                    retention_ms=pick(draw, (1, 1, DAY_MS)), approval_ms=pick(draw, (30 * DAY_MS, 20_000)),
                    request_id=pick(draw, (self._new_id(), self._new_id(), "p1")),
                )  # fmt: skip
            case "claim":
                lease_ms = pick(draw, (10_000, 900_000))
                asked = pick(draw, (0, number))
                self._say(draw, "claim_purge", tenant_id=tenant_id, number=asked, lease_ms=lease_ms, principal=who)
            case "approve":
                self._say(draw, "approve_purge", tenant_id=tenant_id, number=number, **self._decision(draw, purges, number))
            case "reject":
                decision = self._decision(draw, purges, number)
                self._say(draw, "reject_purge", tenant_id=tenant_id, number=number, reason="too early", **decision)
            case "execute":
                self._say(draw, "execute_purge", lease=lease, principal=principal, number=number)
            case _:
                states = pick(draw, ((), (), ("PENDING", "CLAIMED"), ("APPROVED",), ("REJECTED", "EXPIRED", "EXECUTED")))
                paged = {"after_number": pick(draw, (0, 1)), "page_size": pick(draw, (0, 1))}
                self._say(draw, "list_purges", tenant_id=tenant_id, states=states, **paged)
                self._say(draw, "get_purge_evidence", tenant_id=tenant_id, number=number)

    def look_at_what_is_over(self, draw: Draw) -> None:
        """Holds and tombstones, by pages."""
        tenant_id = draw(some.tenants)
        size, after = pick(draw, (0, 1, 2)), pick(draw, (0, 0, 1))
        task_id = pick(draw, ("", "", self._any_task(draw)[1]))
        self._say(
            draw, "list_holds", tenant_id=tenant_id, task_id=task_id, active=pick(draw, (False, True)), after_number=after,
            page_size=size,
        )  # fmt: skip
        self._say(
            draw, "list_tombstones", tenant_id=tenant_id, after_cursor=after, page_size=size,
            with_history=pick(draw, (False, True)),
        )  # fmt: skip

    def compact(self, draw: Draw) -> None:
        older_than_ms, limit = pick(draw, [1, 5_000]), pick(draw, [0, 0, 1, 1_000])
        self._say(draw, "compact_signals", tenant_id=draw(some.tenants), older_than_ms=older_than_ms, limit=limit)
