"""Research under a budget, without services."""

import pytest

from store_service.client import BudgetAmounts, ProtocolError
from store_service.client.testing import WorkflowTest
from tests.examples.budgeted_research.research import LIMITS, Reply, Research

SOURCES = {"sources": [f"page {number}" for number in range(20)]}
BUDGET = BudgetAmounts(tokens=1_000_000, cost_micro_usd=100_000)


class Model:
    """A model whose replies take what they may, and what it cost in all."""

    def __init__(self, *, cost: int = 1_000) -> None:
        self.asked = 0
        self._cost = cost

    async def ask(self, prompt: str, *, max_tokens: int) -> Reply:
        self.asked += 1
        return Reply(prompt, max_tokens, self._cost)


@pytest.mark.parametrize("crash", [{}, {"after": "read page 3"}])
async def test_it_reads_what_its_tokens_allow_and_the_tenant_pays_what_was_used(crash: dict[str, str]) -> None:
    model = Model()
    async with WorkflowTest(Research(model).research, limits=LIMITS, budget=BUDGET) as t:
        t.crash(**crash)
        result = await t.run(SOURCES)
    assert len(result["structuredContent"]["left_out"]) == 11
    assert t.charged == BudgetAmounts(tokens=20_000, cost_micro_usd=10_000)
    assert model.asked == 10


async def test_it_waits_until_the_tenant_can_pay() -> None:
    async with WorkflowTest(Research(Model()).research, limits=LIMITS, budget=BudgetAmounts(tokens=19_999)) as t:
        await t.start(SOURCES)
        assert (t.runs, t.steps) == (["denied"], [])
        t.set_budget(BUDGET)
        await t.run(SOURCES)
    assert t.runs == ["denied", "completed"]


async def test_a_model_that_costs_too_much_ends_it() -> None:
    model = Model(cost=25_000)
    async with WorkflowTest(Research(model).research, limits=LIMITS, budget=BUDGET) as t:
        with pytest.raises(ProtocolError, match="75000 cost_micro_usd of 60000"):
            await t.run(SOURCES)
    assert model.asked == 3
    assert t.charged.cost_micro_usd == 60_000
