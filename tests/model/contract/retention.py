"""What is over is put away and leaves its proof. Source: store contract, section 13."""

from collections.abc import Sequence
from uuid import UUID

from tests.model.contract.checks import MS, Answer, Refused, check, is_id, is_name, is_text, lean, page
from tests.model.contract.rows import Cleanup, CleanupLease, Task, Tenant
from tests.model.contract.state import State


def is_lease_ms(lease_ms: int) -> bool:
    """How long a lease may be."""
    return 1_000 <= lease_ms <= 900_000


def is_principal(principal: str) -> bool:
    """Who does it."""
    return is_text(principal, 2_048)


class Retention(State):
    """Cleanup leases, removal and tombstones."""

    def list_cleanup_tenants(
        self, *, tenant_ids: Sequence[str] = (), after_tenant_id: str = "", page_size: int = 0
    ) -> Answer:  # fmt: skip
        """Since when the oldest task of each is to be removed."""
        check(all(map(is_name, tenant_ids)) and len(tenant_ids) <= 1_000 and 0 <= page_size <= 1_000)
        check(not after_tenant_id or is_name(after_tenant_id))
        known = [one for one in sorted(self.tenants) if one > after_tenant_id and (not tenant_ids or one in tenant_ids)]
        looked = page(known, page_size)
        due = {name: self._due(name) for name in looked}
        items = [{"tenant_id": name, "due_since": tasks[0][0]} for name, tasks in due.items() if tasks]
        return lean(items=items, next_tenant_id=looked[-1] if len(looked) == (page_size or 100) else "")

    def claim_cleanup(self, *, tenant_id: str, owner_id: str, lease_ms: int, principal: str) -> Answer:
        """Whoever holds it may take it again."""
        check(is_name(tenant_id) and is_name(owner_id) and is_lease_ms(lease_ms) and is_principal(principal))
        if tenant_id not in self.tenants:
            raise Refused("TENANT_NOT_FOUND")
        tenant = self.tenants[tenant_id]
        held = tenant.cleanup = tenant.cleanup or Cleanup()
        is_mine = (held.owner_id, held.principal) == (owner_id, principal)
        if held.owner_id and held.expires_at > self.now and held.epoch == self.epoch and not is_mine:
            return {"expires_at": held.expires_at}
        held.token, held.epoch, held.owner_id, held.principal = held.token + 1, self.epoch, owner_id, principal
        held.expires_at = self.now + lease_ms * MS
        lease = CleanupLease(tenant_id, owner_id, held.token, self.epoch)
        return {"lease": lease._asdict(), "expires_at": held.expires_at}

    def heartbeat_cleanup(self, *, lease: CleanupLease, lease_ms: int, principal: str) -> Answer:
        """It never gets shorter."""
        check(lease.is_formed and is_lease_ms(lease_ms) and is_principal(principal))
        held = self._cleanup(lease, principal)
        held.expires_at = max(held.expires_at, self.now + lease_ms * MS)
        return {"expires_at": held.expires_at}

    def release_cleanup(self, *, lease: CleanupLease, principal: str) -> Answer:
        """Anybody may take it now."""
        check(lease.is_formed and is_principal(principal))
        held = self._cleanup(lease, principal)
        held.owner_id = held.principal = ""
        return {}

    def remove_tasks(self, *, lease: CleanupLease, principal: str, limit: int = 0) -> Answer:
        """What is past its handle and its retention goes, a tombstone stays."""
        check(lease.is_formed and is_principal(principal) and 0 <= limit <= 1_000)
        self._cleanup(lease, principal)
        tenant = self.tenants[lease.tenant_id]
        removed = []
        for _, _, task in page(self._due(lease.tenant_id), limit):
            tenant.last_cursor += 1
            tombstone = task.tombstone(tenant.last_cursor, self.now, principal)
            tenant.tombstones.append(tombstone)
            removed.append(without_history(tombstone))
            del self.tasks[task.key]
            for key in [key for key, one in self.signals.items() if (key[0], one.task_id) == task.key]:
                del self.signals[key]
        return lean(tombstones=removed)

    def list_tombstones(
        self, *, tenant_id: str, after_cursor: int = 0, page_size: int = 0, with_history: bool = False
    ) -> Answer:  # fmt: skip
        """By rising cursor."""
        check(is_name(tenant_id) and after_cursor >= 0 and 0 <= page_size <= 1_000)
        known = [one for one in self._tenant_or_new(tenant_id).tombstones if one["cursor"] > after_cursor]
        shown = page(known, page_size)
        return lean(tombstones=shown if with_history else [without_history(one) for one in shown])

    def get_tombstone(self, *, tenant_id: str, task_id: str) -> Answer:
        """The proof that a task existed."""
        check(is_name(tenant_id) and is_id(task_id))
        for tombstone in self._tenant_or_new(tenant_id).tombstones:
            if tombstone["task_id"] == task_id:
                return {"tombstone": tombstone}
        raise Refused("TOMBSTONE_NOT_FOUND")

    def _tenant_or_new(self, tenant_id: str) -> Tenant:
        return self.tenants.get(tenant_id) or Tenant()

    def _cleanup(self, lease: CleanupLease, principal: str) -> Cleanup:
        """The lease that is presented, if it holds."""
        held = self._tenant_or_new(lease.tenant_id).cleanup or Cleanup()
        presented = (lease.owner_id, principal, lease.token, lease.epoch)
        holds = (held.owner_id, held.principal, held.token, held.epoch) == presented
        if not holds or held.epoch != self.epoch or held.expires_at <= self.now:
            raise Refused("LEASE_LOST")
        return held

    def _due(self, tenant_id: str) -> list[tuple[int, UUID, Task]]:
        """What is to be removed, since when, oldest first."""
        tenant = self.tenants[tenant_id]
        ended = [(task.handle_ends_at, task) for task in self.tasks_of(tenant_id) if not tenant.is_held(task.task_id)]
        due = [
            (at + tenant.retention_ms * MS, UUID(task.task_id), task)
            for at, task in ended
            if at is not None and at + tenant.retention_ms * MS <= self.now
        ]
        return sorted(due, key=lambda one: one[:2])


def without_history(tombstone: Answer) -> Answer:
    """As lists show it that were not asked for more."""
    return {name: value for name, value in tombstone.items() if name != "history"}
