"""RetentionService."""

from typing import Any

import grpc
from taskstore.v1 import retention_pb2, retention_pb2_grpc

from store_service.model.limits import LEASE_MS, LIST_PAGE, TTL_MS, check_name, check_page, check_range, check_task_id
from store_service.model.retention import CleanupLease
from store_service.operations.retention import Retention
from store_service.operations.waits import Waits
from store_service.rpc import writing
from store_service.rpc.principals import read_cleanup_lease, read_principal

Context = grpc.aio.ServicerContext[Any, Any]


class RetentionService(retention_pb2_grpc.RetentionServiceServicer):
    """See `retention.proto`."""

    def __init__(self, retention: Retention, waits: Waits) -> None:
        self._retention = retention
        self._waits = waits

    async def ListCleanupTenants(
        self, request: retention_pb2.ListCleanupTenantsRequest, context: Context
    ) -> retention_pb2.ListCleanupTenantsResponse:
        check_range("tenant_ids", len(request.tenant_ids), range(LIST_PAGE + 1))
        found = await self._retention.list_cleanup_tenants(
            [check_name("tenant_ids", one) for one in request.tenant_ids],
            after_tenant_id=request.after_tenant_id and check_name("after_tenant_id", request.after_tenant_id),
            limit=check_page("page_size", request.page_size, most=LIST_PAGE),
        )
        item = retention_pb2.ListCleanupTenantsResponse.Item
        return retention_pb2.ListCleanupTenantsResponse(
            items=[item(tenant_id=tenant_id, due_since=writing.to_time(since)) for tenant_id, since in found.due],
            next_tenant_id=found.next_tenant_id or "",
        )

    async def ClaimCleanup(
        self, request: retention_pb2.ClaimCleanupRequest, context: Context
    ) -> retention_pb2.ClaimCleanupResponse:
        claimed = await self._retention.claim_cleanup(
            check_name("tenant_id", request.tenant_id),
            check_name("owner_id", request.owner_id),
            principal=read_principal(request.principal),
            lease_ms=check_range("lease_ms", request.lease_ms, LEASE_MS),
        )
        return retention_pb2.ClaimCleanupResponse(
            lease=_to_lease(claimed.lease) if claimed.lease else None, expires_at=writing.to_time(claimed.expires_at)
        )

    async def HeartbeatCleanup(
        self, request: retention_pb2.HeartbeatCleanupRequest, context: Context
    ) -> retention_pb2.HeartbeatCleanupResponse:
        expires_at = await self._retention.heartbeat_cleanup(
            read_cleanup_lease(request.lease, request.principal), lease_ms=check_range("lease_ms", request.lease_ms, LEASE_MS)
        )
        return retention_pb2.HeartbeatCleanupResponse(expires_at=writing.to_time(expires_at))

    async def ReleaseCleanup(
        self, request: retention_pb2.ReleaseCleanupRequest, context: Context
    ) -> retention_pb2.ReleaseCleanupResponse:
        await self._retention.release_cleanup(read_cleanup_lease(request.lease, request.principal))
        return retention_pb2.ReleaseCleanupResponse()

    async def RemoveTasks(
        self, request: retention_pb2.RemoveTasksRequest, context: Context
    ) -> retention_pb2.RemoveTasksResponse:
        tombstones = await self._retention.remove_tasks(
            read_cleanup_lease(request.lease, request.principal), limit=check_page("limit", request.limit, most=LIST_PAGE)
        )
        return retention_pb2.RemoveTasksResponse(tombstones=[writing.to_tombstone(one) for one in tombstones])

    async def ListTombstones(
        self, request: retention_pb2.ListTombstonesRequest, context: Context
    ) -> retention_pb2.ListTombstonesResponse:
        tombstones = await self._retention.list_tombstones(
            check_name("tenant_id", request.tenant_id),
            after_cursor=check_range("after_cursor", request.after_cursor, range(2**63)),
            limit=check_page("page_size", request.page_size, most=LIST_PAGE),
            with_history=request.with_history,
        )
        return retention_pb2.ListTombstonesResponse(tombstones=[writing.to_tombstone(one) for one in tombstones])

    async def GetTombstone(
        self, request: retention_pb2.GetTombstoneRequest, context: Context
    ) -> retention_pb2.GetTombstoneResponse:
        tombstone = await self._retention.get_tombstone(
            check_name("tenant_id", request.tenant_id), check_task_id("task_id", request.task_id)
        )
        return retention_pb2.GetTombstoneResponse(tombstone=writing.to_tombstone(tombstone))

    async def CompactSignals(
        self, request: retention_pb2.CompactSignalsRequest, context: Context
    ) -> retention_pb2.CompactSignalsResponse:
        compacted = await self._waits.compact_signals(
            check_name("tenant_id", request.tenant_id),
            older_than_ms=check_range("older_than_ms", request.older_than_ms, TTL_MS),
            limit=check_page("limit", request.limit, most=LIST_PAGE),
        )
        return retention_pb2.CompactSignalsResponse(compacted=compacted)

    async def GetRetention(
        self, request: retention_pb2.GetRetentionRequest, context: Context
    ) -> retention_pb2.GetRetentionResponse:
        found = await self._retention.get_retention(check_name("tenant_id", request.tenant_id))
        return retention_pb2.GetRetentionResponse(
            tenant_id=found.tenant_id,
            due_since=writing.to_time(found.due_since),
            last_cursor=found.last_cursor,
            exported=writing.to_export(found.exported) if found.exported else None,
            cleanup_owner_id=found.cleanup_owner_id or "",
            cleanup_expires_at=writing.to_time(found.cleanup_expires_at),
            purges_waiting=found.purges_waiting,
            holds=found.holds,
        )


def _to_lease(value: CleanupLease) -> retention_pb2.CleanupLease:
    return retention_pb2.CleanupLease(
        tenant_id=value.tenant_id, owner_id=value.owner_id, token=value.token, epoch=value.epoch
    )  # fmt: skip
