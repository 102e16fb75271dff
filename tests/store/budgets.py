"""What the tests of budgets say again and again."""

from collections.abc import Sequence
from typing import Any, Final

from taskstore.v1 import budgets_pb2, leases_pb2, types_pb2

from tests.conftest import Stubs
from tests.store.builders import (
    TENANT,
    create_and_lease,
)

DIMENSIONS: Final = tuple(field.name for field in types_pb2.BudgetAmounts.DESCRIPTOR.fields)
HOUR_MS: Final = 3_600_000
GRACE_SECONDS: Final = 60
Amounts = types_pb2.BudgetAmounts


async def set_budget(
    store: Stubs, limits: types_pb2.BudgetAmounts, *, tenant_id: str = TENANT, grace_s: int = GRACE_SECONDS
) -> budgets_pb2.Budget:
    """Sets a tenant's budget, with a window of an hour."""
    policy = budgets_pb2.BudgetPolicy(limits=limits, window_ms=HOUR_MS, recovery_ms=grace_s * 1_000)
    request = budgets_pb2.SetBudgetPolicyRequest(tenant_id=tenant_id, policy=policy)
    return (await store.budgets.SetBudgetPolicy(request)).budget


async def budget_of(store: Stubs, tenant_id: str = TENANT) -> budgets_pb2.Budget:
    """Reads a tenant's budget."""
    return (await store.budgets.GetBudget(budgets_pb2.GetBudgetRequest(tenant_id=tenant_id))).budget


async def tokens(store: Stubs) -> tuple[int, int, int]:
    """What is committed and reserved of the tokens, and by how many."""
    budget = await budget_of(store)
    return budget.committed.tokens, budget.reserved.tokens, budget.reservations


def reserve(held: types_pb2.Lease, limit: int, used: int = 0) -> leases_pb2.ReserveBudgetRequest:
    """A reservation of tokens up to `limit`."""
    return leases_pb2.ReserveBudgetRequest(lease=held, limits=Amounts(tokens=limit), usage=Amounts(tokens=used))


def settle(held: types_pb2.Lease, used: int) -> leases_pb2.SettleBudgetRequest:
    """A settlement of tokens."""
    return leases_pb2.SettleBudgetRequest(lease=held, usage=Amounts(tokens=used))


async def facts(store: Stubs) -> Sequence[budgets_pb2.BudgetFact]:
    """All facts, read in pages of three. Their cursors are dense."""
    found: list[budgets_pb2.BudgetFact] = []
    while True:
        request = budgets_pb2.ListBudgetFactsRequest(tenant_id=TENANT, after_cursor=len(found), page_size=3)
        page = (await store.budgets.ListBudgetFacts(request)).facts
        found += page
        if len(page) < 3:
            assert [fact.cursor for fact in found] == list(range(1, len(found) + 1))
            return found


async def kinds(store: Stubs) -> list[str]:
    """What happened after the policy was set, with the causes of forfeits."""
    names = []
    for fact in await facts(store):
        name = budgets_pb2.BudgetFactKind.Name(fact.kind).removeprefix("BUDGET_FACT_KIND_")
        cause = budgets_pb2.ForfeitCause.Name(fact.forfeit_cause).removeprefix("FORFEIT_CAUSE_")
        names.append(name if cause == "UNSPECIFIED" else f"{name} {cause}")
    assert names[0] == "POLICY_CONFIGURED"
    return names[1:]


async def reserved_task(store: Stubs, limit: int = 100, **fields: Any) -> types_pb2.Lease:
    """A task that is leased and holds a reservation."""
    held = (await create_and_lease(store, **fields)).lease
    await store.leases.ReserveBudget(reserve(held, limit))
    return held
