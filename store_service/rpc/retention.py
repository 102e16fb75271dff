"""RetentionService."""

from typing import Any

import grpc
from taskstore.v1 import retention_pb2, retention_pb2_grpc

from store_service.model.limits import LIST_PAGE, TTL_MS, check_name, check_page, check_range, check_task_id
from store_service.operations.retention import Retention
from store_service.operations.waits import Waits
from store_service.rpc import writing

Context = grpc.aio.ServicerContext[Any, Any]


class RetentionService(retention_pb2_grpc.RetentionServiceServicer):
    """See `retention.proto`."""

    def __init__(self, retention: Retention, waits: Waits) -> None:
        self._retention = retention
        self._waits = waits

    async def RemoveTasks(
        self, request: retention_pb2.RemoveTasksRequest, context: Context
    ) -> retention_pb2.RemoveTasksResponse:
        tombstones = await self._retention.remove_tasks(
            check_name("tenant_id", request.tenant_id), limit=check_page("limit", request.limit, most=LIST_PAGE)
        )
        return retention_pb2.RemoveTasksResponse(tombstones=[writing.to_tombstone(one) for one in tombstones])

    async def ListTombstones(
        self, request: retention_pb2.ListTombstonesRequest, context: Context
    ) -> retention_pb2.ListTombstonesResponse:
        tombstones = await self._retention.list_tombstones(
            check_name("tenant_id", request.tenant_id),
            after_cursor=check_range("after_cursor", request.after_cursor, range(2**63)),
            limit=check_page("page_size", request.page_size, most=LIST_PAGE),
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
