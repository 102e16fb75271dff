"""What is over is put away and leaves its proof. Source: store contract, section 13."""

from uuid import UUID

from tests.model.contract.checks import MS, Answer, Refused, check, is_id, is_name, lean, page
from tests.model.contract.state import State


class Retention(State):
    """Removal and tombstones."""

    def remove_tasks(self, *, tenant_id: str, limit: int = 0) -> Answer:
        """What is past its handle and its retention goes, a tombstone stays."""
        check(is_name(tenant_id) and 0 <= limit <= 1_000)
        if tenant_id not in self.tenants:
            return {}
        tenant = self.tenants[tenant_id]
        due = [(task.handle_ends_at, UUID(task.task_id), task) for task in self.tasks_of(tenant_id) if task.handle_ends_at]
        due = [one for one in due if (one[0] or 0) <= self.now - tenant.retention_ms * MS]
        removed = []
        for _, _, task in page(sorted(due, key=lambda one: one[:2]), limit):
            tombstone = task.tombstone(len(tenant.tombstones) + 1, self.now)
            tenant.tombstones.append(tombstone)
            removed.append(tombstone)
            del self.tasks[task.key]
            for key in [key for key, one in self.signals.items() if (key[0], one.task_id) == task.key]:
                del self.signals[key]
        return lean(tombstones=removed)

    def list_tombstones(self, *, tenant_id: str, after_cursor: int = 0, page_size: int = 0) -> Answer:
        """By rising cursor."""
        check(is_name(tenant_id) and after_cursor >= 0 and 0 <= page_size <= 1_000)
        known = self.tenants[tenant_id].tombstones if tenant_id in self.tenants else []
        return lean(tombstones=page(known[after_cursor:], page_size))

    def get_tombstone(self, *, tenant_id: str, task_id: str) -> Answer:
        """The proof that a task existed."""
        check(is_name(tenant_id) and is_id(task_id))
        known = self.tenants[tenant_id].tombstones if tenant_id in self.tenants else []
        for tombstone in known:
            if tombstone["task_id"] == task_id:
                return {"tombstone": tombstone}
        raise Refused("TOMBSTONE_NOT_FOUND")
