"""What a task may use: reserved before its code begins, counted by its steps, settled before its lease is given up."""

import asyncio
from typing import Any

import pytest
from taskstore.v1 import budgets_pb2, types_pb2

from store_service.client import BudgetAmounts, Context, ProtocolError, RetryPolicy, StepFailed, SyncContext, TaskStore, Worker
from store_service.client.testing import WorkflowTest
from store_service.client.testing.budgets import MemoryBudget
from tests.client.fake_store import FakeStore, new_worker, outcomes
from tests.client.test_real_store import COMPLETED, create, until
from tests.conftest import Clock, Stubs
from tests.store.builders import until as come_true

LIMITS = BudgetAmounts(tokens=100, turns=9)
BUDGET = BudgetAmounts(tokens=1_000)
CALLS = ("LeaseTasks", "HeartbeatTasks", "WatchLeases")


async def research(ctx: Context, args: dict[str, Any]) -> dict[str, Any]:
    """Two steps, with a wait between them."""

    async def draft() -> str:
        ctx.use(tokens=30, turns=1)
        return "draft"

    def edit() -> str:
        ctx.use(tokens=20)
        return "text"

    await ctx.step("draft", draft)
    before = ctx.budget_left
    await ctx.sleep(60)
    await ctx.step("edit", edit)
    return {"before": before.tokens, "left": ctx.budget_left.tokens}


def methods(fake: FakeStore) -> list[str]:
    return [method for method, _ in fake.calls if method not in CALLS]


async def run_one(fake: FakeStore, function: Any, limits: BudgetAmounts | None, **task: Any) -> dict[str, float]:
    worker = new_worker(fake)
    worker.workflow("report", limits=limits, retry=RetryPolicy(max_attempts=1))(function)
    added = fake.add(**task)
    async with worker:
        await fake.ended(added)
    return outcomes(worker)


async def one_step(ctx: Context, args: dict[str, Any]) -> Any:
    return await ctx.step("s", lambda: ctx.use(tokens=7))


async def test_a_worker_reserves_before_the_work_and_settles_before_each_end(fake: FakeStore) -> None:
    fake.memory.budget = MemoryBudget(BUDGET)
    assert await run_one(fake, one_step, LIMITS) == {"completed": 1}
    assert methods(fake) == ["ReserveBudget", "AppendCheckpoint", "SettleBudget", "CompleteTask"]
    assert fake.of("ReserveBudget")[0].limits == types_pb2.BudgetAmounts(tokens=100, turns=9)
    assert (fake.memory.budget.committed, fake.memory.budget.held) == ({"tokens": 7}, {})


async def test_a_workflow_without_limits_makes_no_call_for_budgets(fake: FakeStore) -> None:
    fake.memory.budget = MemoryBudget(BUDGET)
    assert await run_one(fake, one_step, None) == {"completed": 1}
    assert methods(fake) == ["AppendCheckpoint", "CompleteTask"]


async def test_where_the_tenant_has_no_budget_there_is_nothing_to_settle(fake: FakeStore) -> None:
    assert await run_one(fake, one_step, LIMITS) == {"completed": 1}
    assert methods(fake) == ["ReserveBudget", "AppendCheckpoint", "CompleteTask"]


async def test_answers_that_are_lost_are_asked_for_again_and_nothing_is_charged_twice(fake: FakeStore) -> None:
    fake.memory.budget = MemoryBudget(BUDGET)
    fake.lose_answers("ReserveBudget")
    fake.lose_answers("SettleBudget")
    assert await run_one(fake, one_step, LIMITS) == {"completed": 1}
    assert (fake.memory.budget.committed, fake.memory.budget.held) == ({"tokens": 7}, {})


async def test_what_was_used_is_known_to_every_later_run_and_nothing_is_held_while_the_task_waits() -> None:
    async with WorkflowTest(research, limits=LIMITS, budget=BUDGET) as t:
        await t.start()
        assert (t.waits_for, t.charged) == ("the time", BudgetAmounts(tokens=30))
        result = await t.run()
    assert result["structuredContent"] == {"before": 70, "left": 50}
    assert t.charged == BudgetAmounts(tokens=50)
    assert t.value("draft") == "draft"


async def test_each_step_saves_what_was_used_since_the_last_and_no_more() -> None:
    left: list[int | None] = []

    async def three(ctx: Context, args: dict[str, Any]) -> None:
        def spend(tokens: int) -> None:
            ctx.use(tokens=tokens)

        left.append(ctx.budget_left.tokens)
        for tokens in (1, 2, 3):
            await ctx.step("s", spend, tokens)
        await ctx.sleep(1)

    async with WorkflowTest(three, limits=LIMITS, budget=BUDGET) as t:
        await t.run()
    assert left == [100, 94]


@pytest.mark.parametrize("where", ["during", "after"])
async def test_a_worker_that_takes_over_adopts_what_the_lost_one_held(where: str) -> None:
    """What the lost one used and had not saved is known to nobody."""
    async with WorkflowTest(research, limits=LIMITS, budget=BudgetAmounts(tokens=100)) as t:
        t.crash(**{where: "draft"})
        await t.run()
    assert t.runs == ["lease_lost", "suspended", "completed"]
    assert t.charged == BudgetAmounts(tokens=50)


async def test_a_task_that_is_not_admitted_rests_and_does_not_run_until_it_is() -> None:
    async with WorkflowTest(research, limits=LIMITS, budget=BudgetAmounts(tokens=99)) as t:
        await t.start()
        assert (t.runs, t.state, t.steps) == (["denied"], "QUEUED", [])
        await t.advance(4.9)
        assert t.runs == ["denied"]
        await t.advance(0.1)
        assert t.runs == ["denied", "denied"]
        t.set_budget(BUDGET)
        await t.advance(5)
        assert t.runs[2:] == ["suspended"]


@pytest.mark.parametrize("is_caught", [False, True])
@pytest.mark.parametrize("budget", [BUDGET, None])
async def test_a_task_that_uses_more_than_it_may_fails_whatever_its_code_makes_of_it(
    is_caught: bool, budget: BudgetAmounts | None
) -> None:
    async def greedy(ctx: Context, args: dict[str, Any]) -> str:
        async def spend() -> None:
            ctx.use(tokens=101)

        try:
            await ctx.step("spend", spend)
        except ProtocolError:
            if not is_caught:
                raise
        return "fine"

    async with WorkflowTest(greedy, limits=LIMITS, budget=budget, retry=RetryPolicy(max_attempts=5)) as t:
        with pytest.raises(ProtocolError, match="more than its limits allow: 101 tokens of 100"):
            await t.run()
    assert (t.state, t.runs) == ("FAILED", ["failed"])
    assert t.charged == (BudgetAmounts(tokens=100) if budget else BudgetAmounts())


async def test_a_store_that_knows_of_more_use_than_the_worker_fails_the_task_at_its_end(fake: FakeStore) -> None:
    fake.memory.budget = MemoryBudget(BUDGET)
    fake.refuse("SettleBudget", "BUDGET_EXCEEDED")
    fake.memory.budget.held.clear()
    task = fake.add()
    worker = new_worker(fake)

    async def free(ctx: Context, args: dict[str, Any]) -> None:
        fake.memory.budget = None  # as after it was charged

    worker.workflow("report", limits=LIMITS)(free)
    async with worker:
        await fake.ended(task)
    assert (task.state, outcomes(worker)) == ("FAILED", {"failed": 1})
    assert task.error is not None
    assert "more than its limits allow" in task.error.message


async def test_tries_of_a_step_that_failed_are_counted_too() -> None:
    async def stubborn(ctx: Context, args: dict[str, Any]) -> int | None:
        def fail() -> None:
            ctx.use(tokens=10)
            raise OSError("down")

        policy = RetryPolicy(max_attempts=3, initial_backoff_seconds=0.001, max_backoff_seconds=0.001)
        with pytest.raises(StepFailed):
            await ctx.with_retry(policy).step("fail", fail)
        await ctx.sleep(1)
        return ctx.budget_left.tokens

    async with WorkflowTest(stubborn, limits=LIMITS, budget=BUDGET) as t:
        assert (await t.run())["structuredContent"] == {"result": 70}
        assert isinstance(t.value("fail"), StepFailed)
    assert t.charged == BudgetAmounts(tokens=30)


def test_amounts_are_bounded() -> None:
    with pytest.raises(ValueError, match="tokens must be 0 to"):
        BudgetAmounts(tokens=-1)
    with pytest.raises(ValueError, match="turns must be 0 to"):
        BudgetAmounts(turns=10**15 + 1)


async def test_steps_side_by_side_and_in_threads_are_counted_once_each() -> None:
    async def fan_out(ctx: Context, args: dict[str, Any]) -> int | None:
        async def in_the_loop() -> None:
            await asyncio.gather(asyncio.to_thread(ctx.use, tokens=1), asyncio.create_task(deeper()))

        async def deeper() -> None:
            ctx.use(tokens=2)

        await ctx.parallel(*(ctx.step("t", lambda: ctx.use(tokens=3)) for _ in range(5)), ctx.step("l", in_the_loop))
        return ctx.budget_left.tokens

    async with WorkflowTest(fan_out, limits=LIMITS, budget=BUDGET) as t:
        assert (await t.run())["structuredContent"] == {"result": 82}
    assert t.charged == BudgetAmounts(tokens=18)


async def test_a_sync_function_counts_in_its_steps_too() -> None:
    def blocking(ctx: SyncContext, args: dict[str, Any]) -> int | None:
        ctx.step("a", lambda: ctx.use(tokens=10))
        ctx.sleep(1)
        ctx.parallel(*(lambda n=n: ctx.step(f"p{n}", lambda: ctx.use(tokens=n)) for n in range(3)))
        return ctx.budget_left.tokens

    async with WorkflowTest(blocking, limits=LIMITS, budget=BUDGET) as t:
        t.crash(after="a")
        assert (await t.run())["structuredContent"] == {"result": 87}
    assert t.charged == BudgetAmounts(tokens=13)


async def test_what_is_counted_outside_of_a_step_is_refused() -> None:
    """A resumed run would count it again."""

    async def outside(ctx: Context, args: dict[str, Any]) -> None:
        await ctx.step("s", lambda: 1)
        with pytest.raises(RuntimeError, match="count within the step"):
            ctx.use(tokens=1)

    async with WorkflowTest(outside, limits=LIMITS) as t:
        await t.run()


async def test_a_cancelled_task_that_was_taken_over_is_settled_before_its_end_is_confirmed() -> None:
    async def slow(ctx: Context, args: dict[str, Any]) -> None:
        await ctx.step("a", lambda: ctx.use(tokens=10))

        def wish() -> None:
            ctx.use(tokens=5)
            t.cancel()

        await ctx.step("b", wish)

    async with WorkflowTest(slow, limits=LIMITS, budget=BUDGET) as t:
        t.crash(during="b")
        await t.start()
    assert (t.state, t.runs) == ("CANCELLED", ["lease_lost", "cancelled"])
    assert t.charged == BudgetAmounts(tokens=10)


async def test_limits_that_a_new_worker_has_changed_take_the_place_of_those_that_were_reserved() -> None:
    async def changing(ctx: Context, args: dict[str, Any]) -> Any:
        t.limits = BudgetAmounts(tokens=60, turns=9)
        return await research(ctx, args)

    async with WorkflowTest(changing, limits=LIMITS, budget=BUDGET) as t:
        t.crash(after="draft")
        assert (await t.run())["structuredContent"] == {"before": 30, "left": 10}
    assert t.runs == ["lease_lost", "suspended", "completed"]
    assert t.charged == BudgetAmounts(tokens=50)


async def test_a_budget_that_bounds_what_the_workflow_does_not_fails_the_task_and_says_so() -> None:
    async with WorkflowTest(research, limits=BudgetAmounts(turns=1), budget=BUDGET) as t:
        with pytest.raises(ProtocolError, match="the limits of the workflow do not go with the budget"):
            await t.run()
    assert t.steps == []


async def test_budgets_over_a_real_store(store: Stubs, clock: Clock) -> None:
    def policy(tokens: int) -> budgets_pb2.SetBudgetPolicyRequest:
        limits = types_pb2.BudgetAmounts(tokens=tokens)
        policy = budgets_pb2.BudgetPolicy(limits=limits, window_ms=3_600_000, recovery_ms=60_000)
        return budgets_pb2.SetBudgetPolicyRequest(tenant_id="acme", policy=policy)

    await store.budgets.SetBudgetPolicy(policy(99))
    worker = Worker(store.address)
    worker.workflow("research", limits=LIMITS)(research)
    async with TaskStore.connect(store.address) as client, worker:
        task_id = await create(client, "research")

        async def is_denied() -> bool:
            return "denied" in outcomes(worker)

        await come_true(is_denied, "the task is not admitted")
        await store.budgets.SetBudgetPolicy(policy(100))
        await clock.advance(seconds=5)
        await until(client, task_id, types_pb2.TASK_STATE_WAITING)
        await clock.advance(seconds=60)
        ended = await until(client, task_id, COMPLETED)
    budget = (await store.budgets.GetBudget(budgets_pb2.GetBudgetRequest(tenant_id="acme"))).budget
    assert (budget.committed.tokens, budget.reservations) == (50, 0)
    assert outcomes(worker) == {"denied": 1, "suspended": 1, "completed": 1}
    assert ended.retries == ended.crashes == 0
