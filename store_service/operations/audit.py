"""What operators do is written down before it is done."""

import structlog

from store_service.db.audit import AuditRows
from store_service.model.audit import AuditLine
from store_service.model.refusals import Refusal


class Audit:
    """The lines of what operators did, and how it ended."""

    def __init__(self, rows: AuditRows) -> None:
        self._rows = rows

    async def begin(self, tenant_id: str, *, caller: str, method: str, request: str) -> int:
        """Writes that a call begins; returns its cursor. Where it cannot be written, the call must not be made."""
        return await self._rows.add_audit_line(tenant_id, caller, method, request)

    async def end(self, tenant_id: str, cursor: int, outcome: str) -> None:
        """Writes how a call ended. What was done is done, also where this cannot be written: then the log alone has it."""
        try:
            await self._rows.add_audit_outcome(tenant_id, cursor, outcome)
        except Refusal as refusal:
            structlog.get_logger().error(
                "audit_outcome_lost", tenant_id=tenant_id, cursor=cursor, outcome=outcome, reason=refusal.reason.value
            )

    async def list_audit_lines(self, tenant_id: str, *, after_cursor: int, limit: int) -> list[AuditLine]:
        """A page of lines."""
        return await self._rows.list_audit_lines(tenant_id, after_cursor, limit)
