"""TenantService."""

from typing import Any

import grpc
from taskstore.v1 import tenants_pb2, tenants_pb2_grpc, types_pb2

from store_service.model import limits
from store_service.model.limits import check_name, check_page, check_range, check_task_id, check_text
from store_service.model.pauses import WorkScope
from store_service.model.redrives import Redrive
from store_service.model.refusals import invalid
from store_service.model.tasks import FailureReason, TenantPolicy
from store_service.operations.audit import Audit
from store_service.operations.explanations import Registrations
from store_service.operations.redrives import Redrives
from store_service.operations.tenants import Tenants
from store_service.rpc import reading, writing

_INT31 = range(2**31)
Context = grpc.aio.ServicerContext[Any, Any]


class TenantService(tenants_pb2_grpc.TenantServiceServicer):
    """See `tenants.proto`."""

    def __init__(self, tenants: Tenants, redrives: Redrives, registrations: Registrations, audit: Audit) -> None:
        self._tenants = tenants
        self._registrations = registrations
        self._redrives = redrives
        self._audit = audit

    async def SetTenantPolicy(
        self, request: tenants_pb2.SetTenantPolicyRequest, context: Context
    ) -> tenants_pb2.SetTenantPolicyResponse:
        tenant_id = check_name("tenant_id", request.tenant_id)
        tenant = await self._tenants.set_tenant_policy(tenant_id, _read_policy(request.policy))
        return tenants_pb2.SetTenantPolicyResponse(tenant=writing.to_tenant(tenant))

    async def GetTenant(self, request: tenants_pb2.GetTenantRequest, context: Context) -> tenants_pb2.GetTenantResponse:
        tenant = await self._tenants.get_tenant(check_name("tenant_id", request.tenant_id))
        return tenants_pb2.GetTenantResponse(tenant=writing.to_tenant(tenant))

    async def PauseWork(self, request: tenants_pb2.PauseWorkRequest, context: Context) -> tenants_pb2.PauseWorkResponse:
        tenant = await self._tenants.pause_work(
            check_name("tenant_id", request.tenant_id),
            _read_scope(request.scope),
            actor=check_text("actor", request.actor, most_bytes=256),
            reason=check_text("reason", request.reason, most_bytes=1024, blank=True),
        )
        return tenants_pb2.PauseWorkResponse(tenant=writing.to_tenant(tenant))

    async def ResumeWork(self, request: tenants_pb2.ResumeWorkRequest, context: Context) -> tenants_pb2.ResumeWorkResponse:
        tenant_id = check_name("tenant_id", request.tenant_id)
        tenant = await self._tenants.resume_work(tenant_id, _read_scope(request.scope))
        return tenants_pb2.ResumeWorkResponse(tenant=writing.to_tenant(tenant))

    async def ListRegistrations(
        self, request: tenants_pb2.ListRegistrationsRequest, context: Context
    ) -> tenants_pb2.ListRegistrationsResponse:
        found = await self._registrations.list_registrations(check_name("tenant_id", request.tenant_id))
        return tenants_pb2.ListRegistrationsResponse(
            registrations=[
                tenants_pb2.ListRegistrationsResponse.Registration(
                    workflow=one.workflow, workflow_version=one.version, asked_at=writing.to_time(one.asked_at)
                )
                for one in found
            ]
        )

    async def RedriveTasks(
        self, request: tenants_pb2.RedriveTasksRequest, context: Context
    ) -> tenants_pb2.RedriveTasksResponse:
        done = await self._redrives.redrive_tasks(_read_redrive(request))
        item = tenants_pb2.RedriveTasksResponse.Item
        return tenants_pb2.RedriveTasksResponse(
            items=[
                item(task_id=task_id, outcome=tenants_pb2.RedriveOutcome.Value(f"REDRIVE_OUTCOME_{outcome}"))
                for task_id, outcome in done.tasks
            ],
            replayed=done.replayed,
        )

    async def ListAuditLines(
        self, request: tenants_pb2.ListAuditLinesRequest, context: Context
    ) -> tenants_pb2.ListAuditLinesResponse:
        lines = await self._audit.list_audit_lines(
            check_name("tenant_id", request.tenant_id),
            after_cursor=check_range("after_cursor", request.after_cursor, range(2**63)),
            limit=check_page("page_size", request.page_size, most=limits.LIST_PAGE),
        )
        return tenants_pb2.ListAuditLinesResponse(lines=[writing.to_audit_line(one) for one in lines])


def _read_scope(message: tenants_pb2.WorkScope) -> WorkScope:
    """Which of a tenant's work is meant; a message that is absent means all of it."""
    workflow = check_text("scope.workflow", message.workflow, most_bytes=256, blank=True)
    if workflow:
        check_text("scope.workflow", workflow, most_bytes=256)
    version = check_range("scope.workflow_version", message.workflow_version, _INT31)
    if version and not workflow:
        raise invalid("scope.workflow_version", "needs a workflow")
    return WorkScope(workflow, version)


def _read_redrive(message: tenants_pb2.RedriveTasksRequest) -> Redrive:
    """A wish to send failed tasks back to work."""
    check_range("task_ids", len(message.task_ids), range(limits.LIST_PAGE + 1))
    for reason in message.reasons:
        check_range("reasons", reason, range(1, types_pb2.FAILURE_REASON_EXECUTION_DEADLINE + 1))
    names = [types_pb2.FailureReason.Name(reason) for reason in message.reasons]
    return Redrive(
        tenant_id=check_name("tenant_id", message.tenant_id),
        request_id=check_text("request_id", message.request_id, most_bytes=128, blank=message.dry_run),
        actor=check_text("actor", message.actor, most_bytes=256),
        scope=_read_scope(message.scope),
        reasons=tuple(dict.fromkeys(FailureReason(name.removeprefix("FAILURE_REASON_")) for name in names)),
        failed_from=reading.read_time("failed_from", message.failed_from) if message.HasField("failed_from") else None,
        failed_before=reading.read_time("failed_before", message.failed_before) if message.HasField("failed_before") else None,
        task_ids=tuple(dict.fromkeys(check_task_id("task_ids", one) for one in message.task_ids)),
        limit=check_page("limit", message.limit, most=limits.LIST_PAGE),
        dry_run=message.dry_run,
    )


def _read_policy(message: tenants_pb2.TenantPolicy) -> TenantPolicy:
    """A tenant's whole policy."""
    field = "policy."
    most = check_range(field + "max_outstanding", message.max_outstanding, range(1, 2**31))
    return TenantPolicy(
        max_outstanding=most,
        max_leased=check_range(field + "max_leased", message.max_leased, range(1, most + 1)),
        retention_ms=check_range(field + "retention_ms", message.retention_ms, limits.RETENTION_MS),
        max_input_bytes=check_range(
            field + "max_input_bytes", message.max_input_bytes or limits.INPUT_BYTES, range(1, limits.INPUT_BYTES + 1)
        ),
        max_creates_per_second=check_range(field + "max_creates_per_second", message.max_creates_per_second, _INT31),
    )
