"""Rows of why tasks are where they are, and of who asks for work. Source of the texts: `explanations.sql`."""

from collections.abc import Collection

from store_service.db.pool import Database
from store_service.db.queries import Queries
from store_service.model.explanations import MOST_AHEAD, Situation
from store_service.model.leases import Registration
from store_service.model.states import TaskState
from store_service.model.tasks import TaskRef
from store_service.model.waits import WaitKind


class ExplanationRows:
    """The statements that explain."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = Queries("explanations.sql")

    async def read_situation(self, ref: TaskRef) -> Situation | None:
        """What there is to say about a task, if there is one."""
        owner = ref.owner
        rows = await self._database.read(
            self._queries["explain_task"],
            ref.tenant_id,
            ref.task_id,
            owner and owner.issuer,
            owner and owner.subject,
            MOST_AHEAD,
        )
        if not rows:
            return None
        row = dict(rows[0])
        row["state"] = TaskState(row["state"])
        row["wait_kind"] = row["wait_kind"] and WaitKind(row["wait_kind"])
        row["questions"] = tuple(row["questions"] or ())
        return Situation(**row)

    async def record_registrations(self, heard: Collection[tuple[str, str, int]]) -> None:
        """Keeps that workers asked just now: tenant or empty, workflow, version; sorted, as their rows are locked so."""
        tenants, workflows, versions = zip(*heard, strict=True)
        await self._database.write(self._queries["record_registrations"], tenants, workflows, versions)

    async def list_registrations(self, tenant_id: str, limit: int) -> list[Registration]:
        """What workers asked for on behalf of a tenant, by name."""
        rows = await self._database.read(self._queries["list_registrations"], tenant_id, limit)
        return [Registration(row["workflow"], row["version"], row["asked_at"]) for row in rows]

    async def forget_registrations(self, older_than_ms: int, limit: int) -> None:
        """Forgets what nobody asked for any more."""
        await self._database.write(self._queries["forget_registrations"], older_than_ms, limit)
