"""Failures of steps: those that are an outcome and remembered, those that are tried again, those that must pass."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from store_service.client import Context, ProtocolError, RetryPolicy, StepFailed, SyncContext, ToolError
from store_service.client.testing import WorkflowTest

ONCE = RetryPolicy(max_attempts=1)
QUICKLY = RetryPolicy(max_attempts=3, initial_backoff_seconds=0.001, max_backoff_seconds=0.001)


@pytest.mark.parametrize("error", [ToolError("no such hotel"), ProtocolError(-32602, "bad city", {"city": 1})])
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_failure_that_is_an_outcome_is_remembered_as_one(error: Exception, kind: str) -> None:
    ran: Counter[str] = Counter()
    caught: list[Exception] = []

    def book() -> None:
        ran["book"] += 1
        raise error

    async def trip(ctx: Context, args: dict[str, Any]) -> None:
        try:
            await ctx.step("book", book)
        except (ToolError, ProtocolError) as raised:
            caught.append(raised)
        await ctx.step("undo", ran.update, ["undo"])

    def blocking(ctx: SyncContext, args: dict[str, Any]) -> None:
        try:
            ctx.step("book", book)
        except (ToolError, ProtocolError) as raised:
            caught.append(raised)
        ctx.step("undo", ran.update, ["undo"])

    async with WorkflowTest(trip if kind == "async" else blocking) as t:
        t.crash(during="undo")
        await t.run()
    assert ran == {"book": 1, "undo": 2}
    assert [(type(each), str(each), vars(each)) for each in caught] == [(type(error), str(error), vars(error))] * 2


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_step_with_retry_is_tried_again_within_its_run(kind: str) -> None:
    tries: list[int] = []

    def call(most: int) -> int:
        tries.append(most)
        if len(tries) < most:
            raise ConnectionError("down")
        return len(tries)

    async def report(ctx: Context, args: dict[str, Any]) -> Any:
        return {"tries": await ctx.with_retry(QUICKLY, on=(ConnectionError,)).step("call", call, 3)}

    def blocking(ctx: SyncContext, args: dict[str, Any]) -> Any:
        return {"tries": ctx.with_retry(QUICKLY, on=(ConnectionError,)).step("call", call, 3)}

    async with WorkflowTest(report if kind == "async" else blocking) as t:
        result = await t.run()
    assert (result["structuredContent"], t.runs) == ({"tries": 3}, ["completed"])


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_used_up_tries_are_an_outcome_which_ends_the_task_unless_it_is_caught(kind: str) -> None:
    tries: Counter[str] = Counter()

    def call() -> None:
        tries["call"] += 1
        raise OSError("hunter2")

    async def report(ctx: Context, args: dict[str, Any]) -> Any:
        try:
            await ctx.with_retry(QUICKLY).step("call", call)
        except StepFailed as failure:
            tries[failure.reason] += 1
            await ctx.step("note", lambda: 1)
            raise

    def blocking(ctx: SyncContext, args: dict[str, Any]) -> Any:
        try:
            ctx.with_retry(QUICKLY).step("call", call)
        except StepFailed as failure:
            tries[failure.reason] += 1
            ctx.step("note", lambda: 1)
            raise

    async with WorkflowTest(report if kind == "async" else blocking) as t:
        t.crash(during="note")
        result = await t.run()
    assert tries == {"call": 3, "OSError: hunter2": 2}
    assert t.runs == ["lease_lost", "tool_error"], "what is final is not tried again"
    assert "hunter2" not in str(result)


async def test_an_exception_that_is_not_to_be_retried_is_tried_again_with_the_whole_run() -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> None:
        await ctx.with_retry(QUICKLY, on=(ConnectionError,)).step("call", int, "no number")

    async with WorkflowTest(report, retry=RetryPolicy(max_attempts=2)) as t:
        await t.run()
    assert (t.steps, t.runs) == ([], ["retried", "tool_error"])


async def test_waiting_for_the_next_try_heeds_a_wished_end() -> None:
    calls: list[int] = []

    async def call() -> None:
        calls.append(1)
        t.cancel()
        raise OSError("down")

    async def report(ctx: Context, args: dict[str, Any]) -> None:
        slowly = RetryPolicy(max_attempts=9, initial_backoff_seconds=3600, max_backoff_seconds=3600)
        await ctx.with_retry(slowly).step("call", call)

    async with WorkflowTest(report) as t:
        await asyncio.wait_for(t.start(), 60)
    assert (t.state, t.runs, calls) == ("CANCELLED", ["cancelled"], [1])


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_failure_that_is_an_outcome_is_not_retried(kind: str) -> None:
    tries: list[int] = []

    def call() -> None:
        tries.append(1)
        raise ToolError("no such city")

    async def report(ctx: Context, args: dict[str, Any]) -> None:
        await ctx.with_retry(QUICKLY).step("call", call)

    def blocking(ctx: SyncContext, args: dict[str, Any]) -> None:
        ctx.with_retry(QUICKLY).step("call", call)

    async with WorkflowTest(report if kind == "async" else blocking) as t:
        assert (await t.run())["content"][0]["text"] == "no such city"
    assert (tries, t.steps) == ([1], ["call"])


@pytest.mark.parametrize("how", ["caught", "caught in a branch", "cut off"])
async def test_code_that_goes_on_after_a_step_that_was_not_saved_is_refused_at_once(how: str) -> None:
    async def fail() -> None:
        if how == "cut off":
            await asyncio.Event().wait()
        raise OSError("down")

    async def branch(ctx: Context) -> None:
        try:
            async with asyncio.timeout(0.01 if how == "cut off" else None):
                await ctx.step("call", fail)
        except OSError:
            ctx.log.info("never mind")

    async def report(ctx: Context, args: dict[str, Any]) -> None:
        if how == "caught in a branch":
            await ctx.parallel(branch(ctx))
        else:
            await branch(ctx)
        await ctx.step("next", lambda: 1)

    async with WorkflowTest(report) as t:
        with pytest.raises(ProtocolError, match=r"'call' ended by \w+, which is not saved, and the code went on to 'next'"):
            await t.run()
    assert (t.steps, t.runs) == ([], ["failed"])


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_step_within_a_step_is_refused_at_once(kind: str) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> None:
        async def outer() -> None:
            await ctx.sleep(1)

        await ctx.step("outer", outer)

    def blocking(ctx: SyncContext, args: dict[str, Any]) -> None:
        ctx.step("outer", lambda: ctx.sleep(1))

    async with WorkflowTest(report if kind == "async" else blocking) as t:
        with pytest.raises(ProtocolError, match="step 'sleep' was asked for within step 'outer'"):
            await asyncio.wait_for(t.run(), 60)


async def test_code_that_exits_within_steps_side_by_side_ends_only_its_task() -> None:
    async def leave() -> None:
        raise SystemExit(3)

    async def report(ctx: Context, args: dict[str, Any]) -> None:
        await asyncio.gather(ctx.step("one", leave), ctx.step("two", lambda: 2))

    def blocking(ctx: SyncContext, args: dict[str, Any]) -> None:
        def leave() -> None:
            raise SystemExit(3)

        ctx.step("one", leave)

    for function in (report, blocking):
        async with WorkflowTest(function, retry=ONCE) as t:
            assert (await t.run())["isError"] is True
