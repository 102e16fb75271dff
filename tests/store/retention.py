"""What the tests of retention say again and again."""

from collections.abc import Sequence
from typing import Any, Final

from taskstore.v1 import retention_pb2

from tests.conftest import Clock, Stubs
from tests.store.builders import TENANT, cancel, create

REMOVE_ONE: Final = "SELECT outcome FROM tenure.remove_tasks(tenure.allow($1), $2, $3, $4, $5, 1)"
EXECUTE: Final = "SELECT outcome FROM tenure.execute_purge(tenure.allow($1), $2, $3, $4, $5, 1)"
PLACE_HOLD: Final = "SELECT outcome FROM tenure.place_hold(tenure.allow($1), $2, 'why', 'ann')"
DAY: Final = 86_400.0
HOUR_MS: Final = 3_600_000
OPERATOR: Final = "ann"
REVIEWER: Final = "bob"


def claim_cleanup(
    *, tenant_id: str = TENANT, owner_id: str = "cleaner", principal: str = OPERATOR, lease_ms: int = 900_000
) -> retention_pb2.ClaimCleanupRequest:
    """A claim of a tenant's cleanup lease."""
    return retention_pb2.ClaimCleanupRequest(
        tenant_id=tenant_id, owner_id=owner_id, lease_ms=lease_ms, principal=principal
    )  # fmt: skip


async def cleanup_lease(store: Stubs, **fields: Any) -> retention_pb2.CleanupLease:
    """A cleanup lease, taken anew by the same owner."""
    claimed = await store.retention.ClaimCleanup(claim_cleanup(**fields))
    assert claimed.HasField("lease"), "another holds it"
    return claimed.lease


def fence(lease: retention_pb2.CleanupLease) -> tuple[Any, ...]:
    """A lease of the operator as statements take it."""
    return lease.tenant_id, lease.owner_id, OPERATOR, lease.token, lease.epoch


def remove_tasks(lease: retention_pb2.CleanupLease, *, limit: int = 0) -> retention_pb2.RemoveTasksRequest:
    """A removal under a lease."""
    return retention_pb2.RemoveTasksRequest(lease=lease, limit=limit, principal=OPERATOR)


async def remove(store: Stubs, *, limit: int = 0, tenant_id: str = TENANT) -> Sequence[retention_pb2.Tombstone]:
    """Removes what is due."""
    lease = await cleanup_lease(store, tenant_id=tenant_id)
    return (await store.retention.RemoveTasks(remove_tasks(lease, limit=limit))).tombstones


async def ended(store: Stubs, *, ttl_ms: int = HOUR_MS, tenant_id: str = TENANT) -> str:
    """A task that ended now."""
    task = await create(store, workflow="ended", ttl_ms=ttl_ms, tenant_id=tenant_id)
    await store.tasks.CancelTask(cancel(task.task_id, tenant_id=tenant_id))
    return task.task_id


def place_hold(task_id: str, *, reason: str = "a lawsuit", principal: str = OPERATOR) -> retention_pb2.PlaceHoldRequest:
    """A hold."""
    return retention_pb2.PlaceHoldRequest(tenant_id=TENANT, task_id=task_id, reason=reason, principal=principal)


def release_hold(number: int, *, principal: str = OPERATOR) -> retention_pb2.ReleaseHoldRequest:
    """The end of a hold."""
    return retention_pb2.ReleaseHoldRequest(tenant_id=TENANT, number=number, principal=principal)


async def hold(store: Stubs, task_id: str, *, principal: str = OPERATOR) -> retention_pb2.Hold:
    """Holds a task."""
    return (await store.governance.PlaceHold(place_hold(task_id, principal=principal))).hold


def confirm_export(
    through_cursor: int, *, receipt: str = "receipt", principal: str = OPERATOR
) -> retention_pb2.ConfirmExportRequest:
    """That tombstones are kept elsewhere."""
    return retention_pb2.ConfirmExportRequest(
        tenant_id=TENANT, through_cursor=through_cursor, receipt=receipt, principal=principal
    )  # fmt: skip


def prepare_purge(
    lease: retention_pb2.CleanupLease, *, request_id: str = "purge", limit: int = 0, retention_ms: int = 1,
    approval_ms: int = HOUR_MS, principal: str = OPERATOR,
) -> retention_pb2.PreparePurgeRequest:  # fmt: skip
    """The preparation of a purge."""
    return retention_pb2.PreparePurgeRequest(
        lease=lease, request_id=request_id, retention_ms=retention_ms, limit=limit, approval_ms=approval_ms,
        principal=principal,
    )  # fmt: skip


def claim_purge(number: int = 0, *, principal: str = REVIEWER, lease_ms: int = 60_000) -> retention_pb2.ClaimPurgeRequest:
    """The claim of a purge that waits."""
    return retention_pb2.ClaimPurgeRequest(tenant_id=TENANT, number=number, lease_ms=lease_ms, principal=principal)


def approve_purge(
    number: int = 1, *, claim_token: int = 0, principal: str = REVIEWER
) -> retention_pb2.ApprovePurgeRequest:  # fmt: skip
    """The approval of a purge."""
    return retention_pb2.ApprovePurgeRequest(
        tenant_id=TENANT, number=number, claim_token=claim_token, principal=principal
    )  # fmt: skip


def reject_purge(
    number: int = 1, *, claim_token: int = 0, principal: str = REVIEWER, reason: str = "too early"
) -> retention_pb2.RejectPurgeRequest:
    """The rejection of a purge."""
    return retention_pb2.RejectPurgeRequest(
        tenant_id=TENANT, number=number, claim_token=claim_token, principal=principal, reason=reason
    )  # fmt: skip


def execute_purge(
    lease: retention_pb2.CleanupLease, *, number: int = 1, principal: str = OPERATOR
) -> retention_pb2.ExecutePurgeRequest:
    """The execution of a purge."""
    return retention_pb2.ExecutePurgeRequest(lease=lease, number=number, principal=principal)


async def removed(store: Stubs, clock: Clock, count: int = 3) -> list[str]:
    """Tasks that were removed."""
    ids = [await ended(store, ttl_ms=1) for _ in range(count)]
    await clock.advance(seconds=2 * DAY)
    assert len(await remove(store)) == count
    await clock.advance(seconds=1)
    return ids


async def prepared(store: Stubs, clock: Clock, count: int = 3, **fields: Any) -> retention_pb2.Purge:
    """A purge of so many tombstones."""
    await removed(store, clock, count)
    await store.governance.ConfirmExport(confirm_export(count))
    return (await store.governance.PreparePurge(prepare_purge(await cleanup_lease(store), **fields))).purge
