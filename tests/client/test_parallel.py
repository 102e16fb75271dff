"""Branches side by side: bounded, in order, over together, and the same on a resumed run."""

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest

from store_service.client import Context, SyncContext, ToolError
from store_service.client.testing import WorkflowTest


async def test_at_most_so_many_run_at_once_and_results_keep_their_order() -> None:
    running = most = 0
    full = asyncio.Event()

    async def part(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await asyncio.wait_for(full.wait(), 60)
        running -= 1
        return number

    async def report(ctx: Context, args: dict[str, Any]) -> Any:
        return {"parts": await ctx.parallel(*(ctx.step("part", part, number) for number in range(10)), limit=3)}

    async with WorkflowTest(report) as t:
        result = await t.run()
    assert result["structuredContent"] == {"parts": list(range(10))}
    assert most == 3


async def test_a_crash_at_any_step_is_resumed_with_the_same_results() -> None:
    ran: Counter[int] = Counter()

    async def part(number: int) -> int:
        ran[number] += 1
        for _ in range((number * 7) % 5):  # they end in another order than they begin
            await asyncio.sleep(0)
        return number

    async def report(ctx: Context, args: dict[str, Any]) -> Any:
        return {"parts": await ctx.parallel(*(ctx.step("part", part, number) for number in range(9)), limit=4)}

    for crash in ("part", *(f"part#{number}" for number in range(2, 10))):
        for where in ("during", "after"):
            ran.clear()
            async with WorkflowTest(report) as t:
                t.crash(**{where: crash})
                result = await t.run()
            assert result["structuredContent"] == {"parts": list(range(9))}, crash
            assert t.runs == ["lease_lost", "completed"]
            assert len(t.steps) == len(set(t.steps)) == 9
            assert {t.value(step) for step in t.steps} == set(range(9))
            assert max(ran.values()) <= 2


async def test_the_first_failure_stops_the_others_and_begins_no_more() -> None:
    begun: list[str] = []
    stopped: list[str] = []

    async def wait(name: str) -> None:
        begun.append(name)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # cleaning up takes its time
            stopped.append(name)

    async def fail() -> None:
        raise ToolError("no such file")

    async def report(ctx: Context, args: dict[str, Any]) -> str:
        stopped.clear()
        with pytest.raises(ToolError, match="no such file"):
            await ctx.parallel(
                ctx.step("a", wait, "a"), ctx.step("b", wait, "b"), ctx.step("c", fail), ctx.step("d", wait, "d"), limit=3
            )
        assert stopped == (["a", "b"] if ctx.attempt == 1 else [])
        return str(await ctx.step("after", lambda: "fine"))

    async with WorkflowTest(report) as t:
        t.crash(during="after")
        await t.run()
    assert t.steps == ["c", "after"]
    assert t.runs == ["lease_lost", "completed"]
    assert begun == ["a", "b"], "a resumed run does not begin again what the failure stopped"


async def test_a_failure_waits_for_the_threads_of_the_others() -> None:
    begun, go = threading.Event(), threading.Event()
    order: list[str] = []

    def slow() -> None:
        begun.set()
        assert go.wait(5)
        order.append("thread ended")

    async def fail() -> None:
        await asyncio.to_thread(begun.wait, 5)
        asyncio.get_running_loop().call_later(0.05, go.set)
        raise ToolError("no")

    async def report(ctx: Context, args: dict[str, Any]) -> None:
        try:
            await ctx.parallel(ctx.step("slow", slow), ctx.step("fail", fail))
        finally:
            order.append("failed")

    async with WorkflowTest(report) as t:
        await t.run()
    assert order == ["thread ended", "failed"]


async def test_threads_run_side_by_side_too() -> None:
    both = threading.Barrier(2)

    def report(ctx: SyncContext, args: dict[str, Any]) -> Any:
        def branch(name: str) -> str:
            return ctx.step(name, lambda: f"{name} {both.wait(5) >= 0}")

        with pytest.raises(ToolError):
            ctx.parallel(lambda: ctx.step("bad", fail), lambda: ctx.step("never", int), limit=1)
        return {"all": ctx.parallel(lambda: branch("a"), lambda: branch("b"))}

    def fail() -> int:
        raise ToolError("no")

    async with WorkflowTest(report) as t:
        result = await t.run()
    assert result["structuredContent"] == {"all": ["a True", "b True"]}
    assert "never" not in t.steps


async def test_no_branches_are_no_results_and_a_limit_is_at_least_1() -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> Any:
        with pytest.raises(ValueError, match="limit"):
            await ctx.parallel(limit=0)
        return {"none": await ctx.parallel()}

    async with WorkflowTest(report) as t:
        assert (await t.run())["structuredContent"] == {"none": []}
