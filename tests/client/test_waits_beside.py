"""Waits beside other work: what is under way is saved, what fails or is cancelled is heard, nothing new is begun."""

import asyncio
import threading
from typing import Any

import pytest

from store_service.client import Cancelled, Context, SyncContext
from store_service.client.testing import WorkflowTest

DAY = 86_400


async def test_steps_under_way_are_saved_before_the_task_is_given_back_and_nothing_new_is_begun() -> None:
    ran: list[str] = []
    asleep = asyncio.Event()

    async def slow() -> str:
        ran.append("slow")
        asleep.set()
        for _ in range(10):
            await asyncio.sleep(0)
        return "slow"

    async def branch(ctx: Context) -> None:
        await ctx.step("slow", slow)
        await ctx.step("next", ran.append, "next")

    async def nap(ctx: Context) -> None:
        await asleep.wait()
        await ctx.sleep(DAY)

    async def report(ctx: Context, args: dict[str, Any]) -> None:
        await asyncio.gather(branch(ctx), nap(ctx))

    async with WorkflowTest(report) as t:
        await t.start()
        assert (t.state, t.steps, ran) == ("WAITING", ["slow"], ["slow"])
        await t.advance(DAY)
    assert (t.state, t.runs, ran) == ("COMPLETED", ["suspended", "completed"], ["slow", "next"])
    assert set(t.steps) == {"slow", "sleep", "next"}


async def test_waits_side_by_side_are_waited_for_one_after_the_other() -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> Any:
        return {"all": await ctx.parallel(ctx.wait_signal("a"), ctx.wait_signal("b"), ctx.wait_signal("c"))}

    async with WorkflowTest(report) as t:
        for name in "cab":
            await t.signal(name, name.upper())
        result = await t.run()
    assert result["structuredContent"] == {"all": ["A", "B", "C"]}
    assert t.runs == ["suspended"] * 3 + ["completed"]


async def test_a_wake_waits_for_its_step_when_code_asks_for_another_wait_first() -> None:
    order = ["a", "b"]

    async def report(ctx: Context, args: dict[str, Any]) -> Any:
        names, said = list(order), {}

        async def wait(name: str) -> None:
            said[name] = await ctx.wait_signal(name)

        await asyncio.gather(*(wait(name) for name in names))
        return said

    async with WorkflowTest(report) as t:
        await t.start()
        order.reverse()  # as after a race that went the other way
        await t.signal("a", 1)
        assert (t.steps, t.waits_for) == (["a"], "signal b")
        await t.signal("b", 2)
    assert t.result["structuredContent"] == {"a": 1, "b": 2}


@pytest.mark.parametrize("how", ["gather", "group", "parallel"])
async def test_a_failure_beside_a_wait_is_heard_before_the_wait(how: str) -> None:
    asleep = asyncio.Event()

    async def fail() -> None:
        await asleep.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        raise OSError("down")

    async def nap(ctx: Context) -> None:
        asleep.set()
        await ctx.sleep(DAY)

    async def report(ctx: Context, args: dict[str, Any]) -> None:
        branches = ctx.step("fail", fail), nap(ctx)
        if how == "gather":
            await asyncio.gather(*branches)
        elif how == "parallel":
            await ctx.parallel(*branches)
        else:
            async with asyncio.TaskGroup() as group:
                for each in branches:
                    group.create_task(each)

    async with WorkflowTest(report) as t:
        await t.start()
    assert t.runs == ["retried", "retried", "tool_error"]


async def test_code_cannot_hold_a_suspension_back_but_may_clean_up() -> None:
    cleaned: list[str] = []

    async def report(ctx: Context, args: dict[str, Any]) -> str:
        try:
            await ctx.sleep(DAY)
        except Exception:
            cleaned.append("caught")
        except BaseException:
            cleaned.append("caught as what it is")
            try:
                await ctx.step("late", cleaned.append, "late")
            finally:
                cleaned.append("cleaned up")
        return "swallowed"

    async with WorkflowTest(report) as t:
        await t.start()
        assert (t.state, t.steps, cleaned) == ("WAITING", [], ["caught as what it is", "cleaned up"])
        await t.advance(DAY)
    assert t.result == {"content": [{"type": "text", "text": "swallowed"}]}


async def test_code_that_waits_for_something_else_meanwhile_is_cancelled() -> None:
    stopped = asyncio.Event()

    async def report(ctx: Context, args: dict[str, Any]) -> None:
        nap = asyncio.create_task(ctx.sleep(DAY))
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
            nap.cancel()

    async with WorkflowTest(report) as t:
        await t.start()
    assert stopped.is_set()
    assert t.state == "WAITING"


async def test_a_wait_that_the_function_left_behind_suspends_nothing() -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> str:
        left.append(asyncio.create_task(ctx.sleep(DAY)))
        await ctx.step("one", lambda: 1)
        return "done"

    left: list[asyncio.Task[None]] = []
    async with WorkflowTest(report) as t:
        await t.run()
    assert (t.state, t.runs) == ("COMPLETED", ["completed"])


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_wished_end_is_heard_instead_of_a_wait(kind: str) -> None:
    heard: list[str] = []

    async def report(ctx: Context, args: dict[str, Any]) -> None:
        t.cancel()
        try:
            await ctx.sleep(DAY)
        except Cancelled:
            heard.append("cancelled")
            raise

    def blocking(ctx: SyncContext, args: dict[str, Any]) -> None:
        t.cancel()
        try:
            ctx.sleep(DAY)
        except Cancelled:
            heard.append("cancelled")
            raise

    async with WorkflowTest(report if kind == "async" else blocking) as t:
        await t.start()
    assert (t.state, t.runs, heard) == ("CANCELLED", ["cancelled"], ["cancelled"])


async def test_a_wish_that_comes_while_the_code_is_told_of_the_wait_ends_the_task() -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> None:
        try:
            await ctx.sleep(DAY)
        finally:
            t.cancel()

    async with WorkflowTest(report) as t:
        await t.start()
    assert (t.state, t.runs) == ("CANCELLED", ["cancelled"])


async def test_a_wished_end_while_a_step_ends_before_a_wait_is_heard_by_all_branches() -> None:
    heard: list[str] = []

    async def slow() -> None:
        await asyncio.sleep(0)
        t.cancel()

    async def branch(ctx: Context, name: str) -> None:
        try:
            if name == "works":
                await ctx.step("slow", slow)
            await ctx.sleep(DAY)
        except Cancelled:
            heard.append(name)
            raise

    async def report(ctx: Context, args: dict[str, Any]) -> None:
        await asyncio.gather(*(branch(ctx, name) for name in ("works", "waits", "waits too")), return_exceptions=True)
        ctx.check_cancelled()

    async with WorkflowTest(report) as t:
        await t.start()
    assert (t.state, t.steps, sorted(heard)) == ("CANCELLED", ["slow"], ["waits", "waits too", "works"])


async def test_threads_side_by_side_may_wait_too() -> None:
    def report(ctx: SyncContext, args: dict[str, Any]) -> Any:
        both = threading.Barrier(2)

        def branch(name: str) -> Any:
            ctx.step(f"work {name}", both.wait, 5)
            return ctx.wait_signal(name)

        return {"all": ctx.parallel(lambda: branch("a"), lambda: branch("b"))}

    async with WorkflowTest(report) as t:
        await t.start()
        assert (t.state, sorted(t.steps)) == ("WAITING", ["work a", "work b"])
        await t.signal("a", 1)
        await t.signal("b", 2)
    assert t.result["structuredContent"] == {"all": [1, 2]}
