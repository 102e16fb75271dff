"""Rows of the audit. Source of the texts: `audit.sql`."""

from store_service.db.pool import Database
from store_service.db.queries import Queries
from store_service.model.audit import AuditLine


class AuditRows:
    """The statements on what operators did."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = Queries("audit.sql")

    async def add_audit_line(self, tenant_id: str, caller: str, method: str, request: str) -> int:
        """Writes a line; returns its cursor."""
        rows = await self._database.write(self._queries["add_audit_line"], tenant_id, caller, method, request)
        cursor: int = rows[0]["cursor"]
        return cursor

    async def add_audit_outcome(self, tenant_id: str, cursor: int, outcome: str) -> None:
        """Writes how the call of a line ended."""
        await self._database.write(self._queries["add_audit_outcome"], tenant_id, cursor, outcome)

    async def list_audit_lines(self, tenant_id: str, after_cursor: int, limit: int) -> list[AuditLine]:
        """A page of lines, by rising cursor."""
        rows = await self._database.read(self._queries["list_audit_lines"], tenant_id, after_cursor, limit)
        return [AuditLine(**row) for row in rows]
