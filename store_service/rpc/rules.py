"""Which role may call which method. What stands in no row may be called by nobody, and the store does not start without."""

from collections.abc import Iterable, Mapping
from typing import Final

from google.protobuf.descriptor import ServiceDescriptor
from taskstore.v1 import budgets_pb2, leases_pb2, retention_pb2, tasks_pb2, tenants_pb2

from store_service.rpc.policy import Permission, Role

_BRIDGE: Final = frozenset((Role.BRIDGE,))
_WORKER: Final = frozenset((Role.WORKER,))
_OPERATOR: Final = frozenset((Role.OPERATOR,))
_AUDIT: Final = frozenset((Role.OPERATOR, Role.AUDITOR))
_CALLERS: Final = frozenset((Role.BRIDGE, Role.OPERATOR))
_READERS: Final = frozenset((Role.BRIDGE, Role.OPERATOR, Role.AUDITOR))

RULES: Final[Mapping[str, Mapping[str, frozenset[Role]]]] = {
    "TaskService": {
        "CreateTask": _BRIDGE,
        "CreateTasks": _BRIDGE,
        "GetTask": _CALLERS,
        "GetTasks": _CALLERS,
        "ExplainTask": _READERS,
        "ListTasks": _READERS,
        "CancelTask": _CALLERS,
        "AttachTask": _BRIDGE,
        "FindTask": _BRIDGE,
        "WatchTasks": _CALLERS,
        "ListTaskHistory": _READERS,
        "ListCheckpoints": _CALLERS,
        "GetCheckpoint": _CALLERS,
        "AnswerInputs": _CALLERS,
        "PublishSignal": _CALLERS,
        "GetSignal": _CALLERS,
        "ListSignals": _AUDIT,
        "ForkTask": _CALLERS,
    },
    "LeaseService": {
        "LeaseTasks": _WORKER,
        "HeartbeatTask": _WORKER,
        "HeartbeatTasks": _WORKER,
        "ReportProgress": _WORKER,
        "LoadInput": _WORKER,
        "LoadEarlyAnswers": _WORKER,
        "LoadCheckpoints": _WORKER,
        "AppendCheckpoint": _WORKER,
        "AppendCheckpoints": _WORKER,
        "CompleteTask": _WORKER,
        "CompleteTasks": _WORKER,
        "CompleteAndLeaseTasks": _WORKER,
        "FailTask": _WORKER,
        "FailTasks": _WORKER,
        "ReleaseTask": _WORKER,
        "ReleaseTasks": _WORKER,
        "SuspendTask": _WORKER,
        "WatchLeases": _WORKER,
        "ReserveBudget": _WORKER,
        "SettleBudget": _WORKER,
        "ConfirmCancel": _WORKER,
    },
    "TenantService": {
        "SetTenantPolicy": _OPERATOR,
        "GetTenant": _AUDIT,
        "PauseWork": _OPERATOR,
        "ResumeWork": _OPERATOR,
        "RedriveTasks": _OPERATOR,
        "ListRegistrations": _READERS,
        "ListAuditLines": _AUDIT,
    },
    "BudgetService": {
        "SetBudgetPolicy": _OPERATOR,
        "RemoveBudgetPolicy": _OPERATOR,
        "GetBudget": _AUDIT,
        "ListBudgetFacts": _AUDIT,
        "ConfirmBudgetExport": _OPERATOR,
        "CompactBudgetFacts": _OPERATOR,
    },
    "RetentionService": {
        "ListCleanupTenants": _OPERATOR,
        "ClaimCleanup": _OPERATOR,
        "HeartbeatCleanup": _OPERATOR,
        "ReleaseCleanup": _OPERATOR,
        "RemoveTasks": _OPERATOR,
        "CompactSignals": _OPERATOR,
        "ListTombstones": _AUDIT,
        "GetTombstone": _AUDIT,
        "GetRetention": _AUDIT,
    },
    "GovernanceService": {
        "PlaceHold": _OPERATOR,
        "ReleaseHold": _OPERATOR,
        "ListHolds": _AUDIT,
        "ConfirmExport": _OPERATOR,
        "PreparePurge": _OPERATOR,
        "ListPurges": _AUDIT,
        "ClaimPurge": _OPERATOR,
        "ApprovePurge": _OPERATOR,
        "RejectPurge": _OPERATOR,
        "ExecutePurge": _OPERATOR,
        "GetPurgeEvidence": _AUDIT,
    },
}

PERMISSIONS: Final[Mapping[str, Permission]] = {
    "PlaceHold": Permission.PLACE_HOLD,
    "ReleaseHold": Permission.RELEASE_HOLD,
    "ConfirmExport": Permission.CONFIRM_EXPORT,
    "PreparePurge": Permission.PREPARE_PURGE,
    "ListPurges": Permission.LIST_PURGES,
    "ClaimPurge": Permission.CLAIM_PURGE,
    "ApprovePurge": Permission.APPROVE_PURGE,
    "RejectPurge": Permission.REJECT_PURGE,
    "ExecutePurge": Permission.EXECUTE_PURGE,
    "GetPurgeEvidence": Permission.GET_PURGE_EVIDENCE,
}
"""What a method takes besides its role, for the tenant that it names."""

WRITING: Final = frozenset(
    method
    for rules in RULES.values()
    for method in rules
    if not method.startswith(("Get", "Find", "List", "Load", "Explain", "Watch"))
)
"""The methods that change something."""

CHANGES: Final = frozenset(
    method
    for rules in RULES.values()
    for method, roles in rules.items()
    if method in WRITING and Role.OPERATOR in roles and not method.startswith("Heartbeat")
)
"""What operators change things by."""

SERVICES: Final[Mapping[str, ServiceDescriptor]] = {
    name: module.DESCRIPTOR.services_by_name[name]
    for module, name in (
        (tasks_pb2, "TaskService"),
        (leases_pb2, "LeaseService"),
        (tenants_pb2, "TenantService"),
        (budgets_pb2, "BudgetService"),
        (retention_pb2, "RetentionService"),
        (retention_pb2, "GovernanceService"),
    )
}


def check_rules(services: Iterable[ServiceDescriptor] = tuple(SERVICES.values())) -> None:
    """Raises LookupError for a method that has no rule, and for a rule that has no method."""
    for service in services:
        methods, ruled = {method.name for method in service.methods}, set(RULES.get(service.name, ()))
        if methods != ruled:
            raise LookupError(f"{service.name}: no rule for {sorted(methods - ruled)}, no method for {sorted(ruled - methods)}")
