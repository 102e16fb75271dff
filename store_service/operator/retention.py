"""`tenure-store retention`: remove what is over, and see what is left to remove."""

import argparse
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from taskstore.v1 import retention_pb2

from store_service.operator.connection import PAGE, Connection
from store_service.operator.display import Display, shown
from store_service.operator.leases import Busy, cleanup_lease, heartbeat

STATUS: Final = ("tenant_id", "due_since", "last_cursor", "exported_cursor", "holds", "purges_waiting", "cleanup_owner_id")
REMOVED: Final = ("tenant_id", "removed", "note")
_BATCH: Final = 100


def add_actions(actions: Any, usual: Mapping[str, Any]) -> None:
    """Adds run, status."""
    run = actions.add_parser("run", **usual, help="remove what is over, now, as stores do by themselves")
    run.set_defaults(run=run_retention)
    status = actions.add_parser("status", **usual, help="how far the retention of tenants has come")
    status.set_defaults(run=show_status)
    for each, text in ((run, "only this one; may be repeated"), (status, "this one, else those that have tasks to remove")):
        each.add_argument("--tenant", action="append", default=[], help=text)


async def run_retention(connection: Connection, options: argparse.Namespace, display: Display) -> int:
    """Removes all that is over, tenant by tenant. One that somebody else cleans is left to him."""
    async for tenant_id in _tenants(connection, options.tenant):
        try:
            async with cleanup_lease(connection, tenant_id) as lease:
                row = {"tenant_id": tenant_id, "removed": await _remove(connection, lease, display), "note": ""}
        except Busy as busy:
            row = {"tenant_id": tenant_id, "removed": 0, "note": str(busy)}
        display.row(row, REMOVED)
    return 0


async def show_status(connection: Connection, options: argparse.Namespace, display: Display) -> int:
    """A row for each tenant."""
    if options.tenant:
        for tenant_id in options.tenant:
            display.row(await _status(connection, tenant_id), STATUS)
    else:
        async for tenant_id in _tenants(connection, ()):
            display.row(await _status(connection, tenant_id), STATUS)
    return 0


async def _status(connection: Connection, tenant_id: str) -> dict[str, Any]:
    request = retention_pb2.GetRetentionRequest(tenant_id=tenant_id)
    row = shown(await connection.ask(connection.retention.GetRetention, request))
    exported = row.pop("exported") or {}
    return {**row, "exported_cursor": exported.get("through_cursor", 0), "receipt": exported.get("receipt", "")}


async def _remove(connection: Connection, lease: retention_pb2.CleanupLease, display: Display) -> int:
    removed = 0
    while True:
        request = retention_pb2.RemoveTasksRequest(lease=lease, limit=_BATCH, principal=connection.principal)
        batch = len((await connection.ask(connection.retention.RemoveTasks, request)).tombstones)
        removed += batch
        display.progress(f"{lease.tenant_id}: {removed} removed")
        if not batch:
            return removed
        await heartbeat(connection, lease)


async def _tenants(connection: Connection, tenant_ids: Sequence[str]) -> AsyncIterator[str]:
    """Of these tenants, or of all, those that have tasks to remove."""
    after = ""
    while True:
        request = retention_pb2.ListCleanupTenantsRequest(tenant_ids=tenant_ids, after_tenant_id=after, page_size=PAGE)
        page = await connection.ask(connection.retention.ListCleanupTenants, request)
        for item in page.items:
            yield item.tenant_id
        if not page.next_tenant_id:
            return
        after = page.next_tenant_id
