"""BudgetService, and the messages on budgets, those of LeaseService too."""

from typing import Any

import grpc
from taskstore.v1 import budgets_pb2, budgets_pb2_grpc, leases_pb2, types_pb2

from store_service.model import limits
from store_service.model.budgets import (
    Budget,
    BudgetAmounts,
    BudgetFact,
    BudgetPolicy,
    Reserve,
    Reserved,
    Settle,
    Settled,
)
from store_service.model.limits import check_name, check_page, check_range
from store_service.model.refusals import invalid
from store_service.operations.budgets import Budgets
from store_service.rpc.lease_reading import read_lease
from store_service.rpc.writing import to_time

Context = grpc.aio.ServicerContext[Any, Any]


class BudgetService(budgets_pb2_grpc.BudgetServiceServicer):
    """See `budgets.proto`."""

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets

    async def SetBudgetPolicy(
        self, request: budgets_pb2.SetBudgetPolicyRequest, context: Context
    ) -> budgets_pb2.SetBudgetPolicyResponse:
        tenant_id = check_name("tenant_id", request.tenant_id)
        budget = await self._budgets.set_budget_policy(tenant_id, read_budget_policy(request.policy))
        return budgets_pb2.SetBudgetPolicyResponse(budget=to_budget(budget))

    async def RemoveBudgetPolicy(
        self, request: budgets_pb2.RemoveBudgetPolicyRequest, context: Context
    ) -> budgets_pb2.RemoveBudgetPolicyResponse:
        await self._budgets.remove_budget_policy(check_name("tenant_id", request.tenant_id))
        return budgets_pb2.RemoveBudgetPolicyResponse()

    async def GetBudget(self, request: budgets_pb2.GetBudgetRequest, context: Context) -> budgets_pb2.GetBudgetResponse:
        budget = await self._budgets.get_budget(check_name("tenant_id", request.tenant_id))
        return budgets_pb2.GetBudgetResponse(budget=to_budget(budget))

    async def ListBudgetFacts(
        self, request: budgets_pb2.ListBudgetFactsRequest, context: Context
    ) -> budgets_pb2.ListBudgetFactsResponse:
        facts, compacted = await self._budgets.list_budget_facts(
            check_name("tenant_id", request.tenant_id),
            after_cursor=check_range("after_cursor", request.after_cursor, range(2**63)),
            limit=check_page("page_size", request.page_size, most=limits.LIST_PAGE),
        )
        return budgets_pb2.ListBudgetFactsResponse(facts=map(to_budget_fact, facts), compacted_cursor=compacted)

    async def ConfirmBudgetExport(
        self, request: budgets_pb2.ConfirmBudgetExportRequest, context: Context
    ) -> budgets_pb2.ConfirmBudgetExportResponse:
        tenant_id = check_name("tenant_id", request.tenant_id)
        through = check_range("through_cursor", request.through_cursor, range(2**63))
        exported = await self._budgets.confirm_budget_export(tenant_id, through)
        return budgets_pb2.ConfirmBudgetExportResponse(exported_cursor=exported)

    async def CompactBudgetFacts(
        self, request: budgets_pb2.CompactBudgetFactsRequest, context: Context
    ) -> budgets_pb2.CompactBudgetFactsResponse:
        compacted, through = await self._budgets.compact_budget_facts(
            check_name("tenant_id", request.tenant_id),
            older_than_ms=check_range("older_than_ms", request.older_than_ms, limits.TTL_MS),
            limit=check_page("limit", request.limit, most=limits.LIST_PAGE),
        )
        return budgets_pb2.CompactBudgetFactsResponse(compacted=compacted, compacted_cursor=through)


def read_budget_policy(message: budgets_pb2.BudgetPolicy) -> BudgetPolicy:
    """A tenant's whole policy, with a limit in one dimension at least."""
    bounds = _read_amounts("policy.limits", message.limits)
    if bounds == BudgetAmounts():
        raise invalid("policy.limits", "must be given in one dimension at least")
    return BudgetPolicy(
        limits=bounds,
        window_ms=check_range("policy.window_ms", message.window_ms, limits.WINDOW_MS),
        recovery_ms=check_range("policy.recovery_ms", message.recovery_ms, limits.DEADLINE_MS),
    )


def read_reserve(message: leases_pb2.ReserveBudgetRequest) -> Reserve:
    """A wish to reserve."""
    lease = read_lease(message.lease)
    return Reserve(lease, _read_amounts("limits", message.limits), _read_amounts("usage", message.usage, absent=0))


def read_settle(message: leases_pb2.SettleBudgetRequest) -> Settle:
    """A wish to settle."""
    return Settle(read_lease(message.lease), _read_amounts("usage", message.usage, absent=0))


def _read_amounts(field: str, message: types_pb2.BudgetAmounts, *, absent: int | None = None) -> BudgetAmounts:
    given = {one.name: check_range(f"{field}.{one.name}", value, limits.BUDGET_AMOUNT) for one, value in message.ListFields()}
    return BudgetAmounts(**{one.name: given.get(one.name, absent) for one in message.DESCRIPTOR.fields})


def to_reserved(value: Reserved) -> leases_pb2.ReserveBudgetResponse:
    """What a task holds."""
    return leases_pb2.ReserveBudgetResponse(reserved=_to_amounts(value.amount), adopted=value.adopted)


def to_settled(value: Settled) -> leases_pb2.SettleBudgetResponse:
    """What was charged and given back."""
    return leases_pb2.SettleBudgetResponse(charged=_to_amounts(value.charged), released=_to_amounts(value.released))


def to_budget(value: Budget) -> budgets_pb2.Budget:
    """A budget."""
    return budgets_pb2.Budget(
        tenant_id=value.tenant_id,
        policy=_to_policy(value.policy),
        window_started_at=to_time(value.window_started_at),
        committed=_to_amounts(value.committed),
        reserved=_to_amounts(value.reserved),
        reservations=value.reservations,
        last_cursor=value.last_cursor,
    )


def to_budget_fact(value: BudgetFact) -> budgets_pb2.BudgetFact:
    """A fact."""
    return budgets_pb2.BudgetFact(
        cursor=value.budget.last_cursor,
        kind=budgets_pb2.BudgetFactKind.Value(f"BUDGET_FACT_KIND_{value.kind}"),
        forfeit_cause=budgets_pb2.ForfeitCause.Value(f"FORFEIT_CAUSE_{value.cause or 'UNSPECIFIED'}"),
        at=to_time(value.at),
        task_id=value.task_id or "",
        worker_id=value.worker_id or "",
        token=value.token or 0,
        amount=_to_amounts(value.amount),
        charged=_to_amounts(value.charged),
        released=_to_amounts(value.released),
        reservation_age_ms=value.reservation_age_ms or 0,
        budget=to_budget(value.budget),
    )


def _to_policy(value: BudgetPolicy | None) -> budgets_pb2.BudgetPolicy | None:
    if value is None:
        return None
    return budgets_pb2.BudgetPolicy(limits=_to_amounts(value.limits), window_ms=value.window_ms, recovery_ms=value.recovery_ms)


def _to_amounts(value: BudgetAmounts | None) -> types_pb2.BudgetAmounts | None:
    if value is None:
        return None
    return types_pb2.BudgetAmounts(
        tokens=value.tokens,
        cost_micro_usd=value.cost_micro_usd,
        duration_us=value.duration_us,
        turns=value.turns,
        tool_calls=value.tool_calls,
        delegations=value.delegations,
    )
