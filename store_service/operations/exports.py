"""Tombstones are archived, tenant by tenant."""

import time
from collections.abc import Sequence
from datetime import UTC
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, Counter

from store_service.archive.batches import Destination, Receipt
from store_service.archive.documents import Record
from store_service.archive.errors import ArchiveError, Fault
from store_service.archive.exports import export_batch
from store_service.model.limits import LIST_PAGE
from store_service.model.retention import Tombstone
from store_service.operations.purges import Purges
from store_service.operations.retention import Retention

REST_SECONDS: Final = 30.0
"""How long an archive that failed is left alone, so that nobody waits for it with each tenant."""


class Exports:
    """What moves tombstones into the archive, and the watermark behind them."""

    def __init__(
        self, retention: Retention, purges: Purges, destination: Destination, *, principal: str, registry: CollectorRegistry
    ) -> None:
        self._retention = retention
        self._purges = purges
        self._destination = destination
        self._principal = principal
        self._rests_until = 0.0
        self._archived = Counter("tenure_store_archived_tombstones", "Tombstones that were archived.", registry=registry)
        self._failures = Counter(
            "tenure_store_archive_failures", "Batches that could not be archived, by why.", ["fault"], registry=registry
        )
        for fault in Fault:
            self._failures.labels(fault)

    @property
    def is_resting(self) -> bool:
        """Whether the archive failed a short while ago."""
        return time.monotonic() < self._rests_until

    async def export_batch(self, tenant_id: str) -> bool:
        """Archives one batch of a tenant. Returns whether another may follow.

        A failure of the archive is counted and logged. The tombstones stay, and are archived another time.
        """
        try:
            receipt = await export_batch(self, self._destination, tenant_id)
        except ArchiveError as error:
            self._failures.labels(error.fault).inc()
            structlog.get_logger().error("archive_failed", tenant_id=tenant_id, fault=error.fault, error=str(error))
            if error.fault is not Fault.INTEGRITY:  # that is about this tenant alone
                self._rests_until = time.monotonic() + REST_SECONDS
            return False
        if receipt is None:
            return False
        self._archived.inc(receipt.batch_id.last - receipt.batch_id.first + 1)
        return True

    async def list_tenants(self, *, after_tenant_id: str, limit: int) -> tuple[list[str], str | None]:
        """Of so many tenants, those that have something to archive; and where to look on, None at the end."""
        return await self._purges.list_unexported_tenants(after_tenant_id=after_tenant_id, limit=limit)

    async def close(self) -> None:
        """Lets go of the archive."""
        await self._destination.close()

    async def get_receipt(self, tenant_id: str) -> str:
        """See `archive.exports.Source`."""
        exported = (await self._retention.get_retention(tenant_id)).exported
        return exported.receipt if exported is not None else ""

    async def list_records(self, tenant_id: str, *, after_cursor: int) -> Sequence[Record]:
        """See `archive.exports.Source`."""
        page = await self._retention.list_tombstones(tenant_id, after_cursor=after_cursor, limit=LIST_PAGE, with_history=True)
        return [_record(each) for each in page]

    async def confirm_export(self, receipt: Receipt) -> None:
        """See `archive.exports.Source`."""
        batch_id = receipt.batch_id
        await self._purges.confirm_export(batch_id.tenant_id, batch_id.last, receipt=str(receipt), principal=self._principal)


def _record(stone: Tombstone) -> Record:
    return Record(
        cursor=stone.cursor,
        task_id=str(stone.task_id),
        tool=stone.tool,
        workflow=stone.workflow,
        workflow_version=stone.version,
        state=stone.state.value,
        created_at=stone.created_at.astimezone(UTC),
        ended_at=stone.ended_at.astimezone(UTC),
        removed_at=stone.removed_at.astimezone(UTC),
        removed_by=stone.removed_by,
        history_lines=stone.history_lines,
        history_digest=stone.history_digest.hex(),
        history=(stone.history or b"").decode(),
    )
