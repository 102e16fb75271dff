"""What operators decide for a tenant. Source: store contract, section 4; decisions, 17."""

from collections.abc import Sequence
from uuid import UUID

from tests.model.contract.checks import (
    DAY_MS,
    INT31,
    MIB,
    MS,
    TIMES,
    YEARS,
    Answer,
    Refused,
    check,
    is_id,
    is_name,
    is_text,
    lean,
    page,
)  # fmt: skip # isort: skip
from tests.model.contract.rows import TERMINAL, Task, Tenant
from tests.model.contract.state import State

REASONS = ("WORKER", "CRASH_LIMIT", "EXECUTION_DEADLINE")
MEMORY_MS = 30 * DAY_MS


class Tenants(State):
    """Policies and their use, pauses, and failed work that is sent back."""

    def set_tenant_policy(
        self, *, tenant_id: str, max_outstanding: int, max_leased: int, retention_ms: int, max_input_bytes: int = 0,
        max_creates_per_second: int = 0,
    ) -> Answer:  # fmt: skip
        """The last writer wins; nothing that runs is ended."""
        check(is_name(tenant_id) and 1 <= max_leased <= max_outstanding < 2**31 and DAY_MS <= retention_ms < 100 * YEARS)
        check(0 <= max_input_bytes <= MIB and max_creates_per_second in INT31)
        tenant = self.tenants.setdefault(tenant_id, Tenant())
        tenant.max_outstanding, tenant.max_leased, tenant.retention_ms = max_outstanding, max_leased, retention_ms
        tenant.max_input_bytes, tenant.max_creates_per_second = max_input_bytes or MIB, max_creates_per_second
        return self.get_tenant(tenant_id=tenant_id)

    def get_tenant(self, *, tenant_id: str) -> Answer:
        """A policy and its use, and what is held back."""
        check(is_name(tenant_id))
        tenant = self._tenant(tenant_id)
        live = [task for task in self.tasks_of(tenant_id) if task.state not in TERMINAL]
        leased = sum(task.state == "LEASED" for task in live)
        pauses = [tenant.pauses[scope] for scope in sorted(tenant.pauses)]
        return {"tenant": lean(tenant_id=tenant_id, policy=tenant.policy, outstanding=len(live), leased=leased, pauses=pauses)}

    def pause_work(self, *, tenant_id: str, actor: str, workflow: str = "", version: int = 0, reason: str = "") -> Answer:
        """From now on none of it is leased. A pause that is there stays as it is."""
        check(is_name(tenant_id) and is_text(actor, 256) and is_text(reason, 1024, blank=True) and is_scope(workflow, version))
        tenant = self.tenants.setdefault(tenant_id, Tenant())
        if (workflow, version) not in tenant.pauses and len(tenant.pauses) >= self.limits.pauses:
            raise Refused("PAUSE_LIMIT")
        scope = lean(workflow=workflow, workflow_version=version)
        tenant.pauses.setdefault(
            (workflow, version), {"scope": scope} | lean(actor=actor, reason=reason, paused_at=self.now)
        )  # fmt: skip
        return self.get_tenant(tenant_id=tenant_id)

    def resume_work(self, *, tenant_id: str, workflow: str = "", version: int = 0) -> Answer:
        """This pause alone goes."""
        check(is_name(tenant_id) and is_scope(workflow, version))
        self._tenant(tenant_id).pauses.pop((workflow, version), None)
        return self.get_tenant(tenant_id=tenant_id)

    def redrive_tasks(
        self, *, tenant_id: str, actor: str, request_id: str = "", workflow: str = "", version: int = 0,
        reasons: Sequence[str | int] = (), failed_from: int | None = None, failed_before: int | None = None,
        task_ids: Sequence[str] = (), limit: int = 0, dry_run: bool = False, forgotten: bool = False,
    ) -> Answer:  # fmt: skip
        """Failed tasks go back to work, those that failed first before others, as far as there is room for them."""
        check(is_name(tenant_id) and is_text(actor, 256) and is_text(request_id, 128, blank=dry_run))
        check(is_scope(workflow, version) and all(one in REASONS for one in reasons) and 0 <= limit <= 1_000)
        check(all(at is None or at in TIMES for at in (failed_from, failed_before)))
        check(len(task_ids) <= 1_000 and all(map(is_id, task_ids)))
        named = tuple(dict.fromkeys(task_ids))
        content = (actor, workflow, version, tuple(dict.fromkeys(reasons)), failed_from, failed_before, named, limit or 100)
        tenant = self._tenant(tenant_id)
        known = None if dry_run else tenant.redrives.get(request_id)
        if known and not (forgotten and known[2] < self.now - MEMORY_MS * MS):
            if known[0] != content:
                raise Refused("REQUEST_ID_CONFLICT")
            return lean(items=known[1], replayed=True)
        failed = [
            task
            for task in self.tasks_of(tenant_id)
            if task.state == "FAILED" and workflow in ("", task.lane[0]) and version in (0, task.lane[1])
            and (not reasons or task.outcome["error"]["reason"] in reasons) and (not named or task.task_id in named)
            and (failed_from is None or (task.ended_at or 0) >= failed_from)
            and (failed_before is None or (task.ended_at or 0) < failed_before)
        ]  # fmt: skip
        failed = page(sorted(failed, key=lambda task: (task.ended_at or 0, UUID(task.task_id))), limit)
        room = tenant.max_outstanding - sum(task.state not in TERMINAL for task in self.tasks_of(tenant_id))
        items = []
        for number, task in enumerate(failed):
            items.append({"task_id": task.task_id, "outcome": "REDRIVEN" if number < room else "OUTSTANDING_LIMIT"})
            if number < room and not dry_run:
                self._redrive(task, actor)
        found = {task.task_id for task in failed}
        items += [{"task_id": task_id, "outcome": "NOT_FAILED"} for task_id in named if task_id not in found]
        if not dry_run:
            tenant.redrives[request_id] = content, items, self.now
        return lean(items=items)

    def _redrive(self, task: Task, actor: str) -> None:
        """As new, but for what it is and what it has."""
        task.state, task.ready, task.ready_at, task.outcome, task.ended_at = "QUEUED", True, self.now, {}, None
        task.deadline_at = self._in(task.contract.get("execution_deadline_ms", 0))
        task.abandon_at = task.cancel_at = None
        task.redriven_at = task.redriven_at or self.now
        task.wished = task.lived = False
        task.attempts = task.crashes = task.retries = 0
        self._tell(task, "REDRIVEN", detail=actor)

    def _tenant(self, tenant_id: str) -> Tenant:
        if tenant_id not in self.tenants:
            raise Refused("TENANT_NOT_FOUND")
        return self.tenants[tenant_id]


def is_scope(workflow: str, version: int) -> bool:
    """All work, a workflow, or one version of it."""
    return is_text(workflow, 256, blank=not workflow) and version in INT31 and bool(workflow) >= bool(version)
