"""GovernanceService."""

from collections.abc import Sequence
from typing import Any

import grpc
from taskstore.v1 import retention_pb2, retention_pb2_grpc

from store_service.model.limits import (
    LEASE_MS,
    LIST_PAGE,
    TTL_MS,
    check_line,
    check_name,
    check_page,
    check_range,
    check_task_id,
    check_text,
)
from store_service.model.purges import NewPurge, Purge, PurgeEvidence, PurgeState
from store_service.operations.holds import Holds
from store_service.operations.purges import Purges
from store_service.rpc import writing
from store_service.rpc.principals import read_cleanup_lease, read_principal

_INT63 = range(2**63)
Context = grpc.aio.ServicerContext[Any, Any]


class GovernanceService(retention_pb2_grpc.GovernanceServiceServicer):
    """See `retention.proto`."""

    def __init__(self, holds: Holds, purges: Purges) -> None:
        self._holds = holds
        self._purges = purges

    async def PlaceHold(self, request: retention_pb2.PlaceHoldRequest, context: Context) -> retention_pb2.PlaceHoldResponse:
        hold, replayed = await self._holds.place_hold(
            check_name("tenant_id", request.tenant_id),
            check_task_id("task_id", request.task_id),
            reason=check_text("reason", request.reason, most_bytes=1_024),
            principal=read_principal(request.principal),
        )
        return retention_pb2.PlaceHoldResponse(hold=writing.to_hold(hold), replayed=replayed)

    async def ReleaseHold(
        self, request: retention_pb2.ReleaseHoldRequest, context: Context
    ) -> retention_pb2.ReleaseHoldResponse:
        hold = await self._holds.release_hold(
            check_name("tenant_id", request.tenant_id),
            check_range("number", request.number, _INT63),
            principal=read_principal(request.principal),
        )
        return retention_pb2.ReleaseHoldResponse(hold=writing.to_hold(hold))

    async def ListHolds(self, request: retention_pb2.ListHoldsRequest, context: Context) -> retention_pb2.ListHoldsResponse:
        holds = await self._holds.list_holds(
            check_name("tenant_id", request.tenant_id),
            after_number=check_range("after_number", request.after_number, _INT63),
            limit=check_page("page_size", request.page_size, most=LIST_PAGE),
            active=request.active,
            task_id=check_task_id("task_id", request.task_id) if request.task_id else None,
        )
        return retention_pb2.ListHoldsResponse(holds=[writing.to_hold(one) for one in holds])

    async def ConfirmExport(
        self, request: retention_pb2.ConfirmExportRequest, context: Context
    ) -> retention_pb2.ConfirmExportResponse:
        exported = await self._purges.confirm_export(
            check_name("tenant_id", request.tenant_id),
            check_range("through_cursor", request.through_cursor, range(1, 2**63)),
            receipt=check_line("receipt", request.receipt, most_bytes=512),
            principal=read_principal(request.principal),
        )
        return retention_pb2.ConfirmExportResponse(exported=writing.to_export(exported))

    async def PreparePurge(
        self, request: retention_pb2.PreparePurgeRequest, context: Context
    ) -> retention_pb2.PreparePurgeResponse:
        new = NewPurge(
            request_id=check_text("request_id", request.request_id, most_bytes=128),
            retention_ms=check_range("retention_ms", request.retention_ms, TTL_MS),
            limit=check_page("limit", request.limit, most=LIST_PAGE),
            approval_ms=check_range("approval_ms", request.approval_ms, TTL_MS),
        )
        purge = await self._purges.prepare_purge(read_cleanup_lease(request.lease, request.principal), new)
        return retention_pb2.PreparePurgeResponse(purge=_to_purge(purge))

    async def ListPurges(self, request: retention_pb2.ListPurgesRequest, context: Context) -> retention_pb2.ListPurgesResponse:
        purges = await self._purges.list_purges(
            check_name("tenant_id", request.tenant_id),
            after_number=check_range("after_number", request.after_number, _INT63),
            limit=check_page("page_size", request.page_size, most=LIST_PAGE),
            states=_read_states(request.states),
        )
        return retention_pb2.ListPurgesResponse(purges=[_to_purge(one) for one in purges])

    async def ClaimPurge(self, request: retention_pb2.ClaimPurgeRequest, context: Context) -> retention_pb2.ClaimPurgeResponse:
        purge = await self._purges.claim_purge(
            check_name("tenant_id", request.tenant_id),
            check_range("number", request.number, _INT63),
            principal=read_principal(request.principal),
            lease_ms=check_range("lease_ms", request.lease_ms, LEASE_MS),
        )
        return retention_pb2.ClaimPurgeResponse(
            purge=_to_purge(purge) if purge else None, claim_token=purge.claim_token if purge else 0
        )

    async def ApprovePurge(
        self, request: retention_pb2.ApprovePurgeRequest, context: Context
    ) -> retention_pb2.ApprovePurgeResponse:
        purge = await self._purges.approve_purge(
            check_name("tenant_id", request.tenant_id),
            check_range("number", request.number, _INT63),
            claim_token=check_range("claim_token", request.claim_token, _INT63),
            principal=read_principal(request.principal),
        )
        return retention_pb2.ApprovePurgeResponse(purge=_to_purge(purge))

    async def RejectPurge(
        self, request: retention_pb2.RejectPurgeRequest, context: Context
    ) -> retention_pb2.RejectPurgeResponse:
        purge = await self._purges.reject_purge(
            check_name("tenant_id", request.tenant_id),
            check_range("number", request.number, _INT63),
            claim_token=check_range("claim_token", request.claim_token, _INT63),
            reason=check_line("reason", request.reason, most_bytes=1_024),
            principal=read_principal(request.principal),
        )
        return retention_pb2.RejectPurgeResponse(purge=_to_purge(purge))

    async def ExecutePurge(
        self, request: retention_pb2.ExecutePurgeRequest, context: Context
    ) -> retention_pb2.ExecutePurgeResponse:
        lease = read_cleanup_lease(request.lease, request.principal)
        evidence = await self._purges.execute_purge(lease, check_range("number", request.number, _INT63))
        return retention_pb2.ExecutePurgeResponse(evidence=_to_evidence(evidence))

    async def GetPurgeEvidence(
        self, request: retention_pb2.GetPurgeEvidenceRequest, context: Context
    ) -> retention_pb2.GetPurgeEvidenceResponse:
        evidence = await self._purges.get_purge_evidence(
            check_name("tenant_id", request.tenant_id), check_range("number", request.number, _INT63)
        )
        return retention_pb2.GetPurgeEvidenceResponse(evidence=_to_evidence(evidence))


def _read_states(states: Sequence[retention_pb2.PurgeState.ValueType]) -> tuple[PurgeState, ...]:
    for state in states:
        check_range("states", state, range(1, len(PurgeState) + 1))
    names = (retention_pb2.PurgeState.Name(state).removeprefix("PURGE_STATE_") for state in states)
    return tuple(dict.fromkeys(PurgeState(name) for name in names))


def _to_purge(value: Purge) -> retention_pb2.Purge:
    return retention_pb2.Purge(
        tenant_id=value.tenant_id,
        number=value.number,
        state=retention_pb2.PurgeState.Value(f"PURGE_STATE_{value.state}"),
        prepared_by=value.prepared_by,
        prepared_at=writing.to_time(value.prepared_at),
        deadline_at=writing.to_time(value.deadline_at),
        tombstones=value.tombstones,
        first_cursor=value.first_cursor,
        last_cursor=value.last_cursor,
        watermark=value.watermark,
        fingerprint=value.fingerprint,
        reviewer=value.reviewer or "",
        claim_expires_at=writing.to_time(value.claim_expires_at),
        decided_by=value.decided_by or "",
        decided_at=writing.to_time(value.decided_at),
        rejection=value.rejection or "",
    )


def _to_evidence(value: PurgeEvidence) -> retention_pb2.PurgeEvidence:
    return retention_pb2.PurgeEvidence(
        tenant_id=value.tenant_id,
        number=value.number,
        prepared_by=value.prepared_by,
        prepared_at=writing.to_time(value.prepared_at),
        approved_by=value.approved_by,
        approved_at=writing.to_time(value.approved_at),
        executed_by=value.executed_by,
        executed_at=writing.to_time(value.executed_at),
        cleanup_token=value.cleanup_token,
        tombstones=value.tombstones,
        first_cursor=value.first_cursor,
        last_cursor=value.last_cursor,
        watermark=value.watermark,
        receipt=value.receipt,
        fingerprint=value.fingerprint,
    )
