"""Waits: the task is given back, and goes on with what ended the wait, in the run that finds it and in every later one."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from taskstore.v1 import leases_pb2, types_pb2

from store_service.client import Cancelled, Context, ProtocolError, SignalTimeout, SyncContext
from store_service.client.testing import WorkflowTest

DAY = 86_400
FORM = {"type": "object", "properties": {"ok": {"type": "boolean"}}}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store_service.client.history._GRACE_SECONDS", 0.2)


async def sleeping(ctx: Context, args: dict[str, Any]) -> Any:
    await ctx.step("before", lambda: 1)
    await ctx.sleep(30 * DAY)
    await ctx.sleep(DAY)
    return {"after": await ctx.step("after", lambda: 2)}


def sleeping_in_a_thread(ctx: SyncContext, args: dict[str, Any]) -> Any:
    ctx.step("before", lambda: 1)
    ctx.sleep(30 * DAY)
    ctx.sleep(DAY)
    return {"after": ctx.step("after", lambda: 2)}


@pytest.mark.parametrize("function", [sleeping, sleeping_in_a_thread])
async def test_a_sleep_gives_the_task_back_until_its_time(function: Callable[..., Any]) -> None:
    async with WorkflowTest(function) as t:
        await t.start()
        assert (t.state, t.waits_for, t.steps) == ("WAITING", "the time", ["before"])
        await t.advance(30 * DAY - 0.001)
        assert (t.state, t.runs) == ("WAITING", ["suspended"])
        await t.advance(0.001)
        assert t.steps == ["before", "sleep"]
        await t.advance(DAY)
    assert t.result["structuredContent"] == {"after": 2}
    assert (t.steps, t.runs) == (["before", "sleep", "sleep#2", "after"], ["suspended", "suspended", "completed"])


@pytest.mark.parametrize("where", ["during", "after"])
@pytest.mark.parametrize("function", [sleeping, sleeping_in_a_thread])
async def test_a_crash_between_a_wake_and_its_saving_or_after_it_loses_nothing(
    function: Callable[..., Any], where: str
) -> None:
    async with WorkflowTest(function) as t:
        t.crash(**{where: "sleep"})
        await t.run()
    assert t.steps == ["before", "sleep", "sleep#2", "after"]
    assert t.runs == ["suspended", "lease_lost", "suspended", "completed"]


async def test_a_wake_that_was_saved_is_not_taken_for_that_of_a_later_step() -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> Any:
        await ctx.sleep(1, name="nap")
        await ctx.step("work", lambda: 1)
        return {"said": await ctx.wait_signal("go", name="nap")}

    async with WorkflowTest(report) as t:
        t.crash(after="work")  # the store still tells of the first nap
        await t.start()
        await t.advance(1)
        assert (t.steps, t.waits_for) == (["nap", "work"], "signal go")
        await t.signal("go", "now")
    assert t.result["structuredContent"] == {"said": "now"}
    assert t.steps == ["nap", "work", "nap#2"]


async def waiting_for_payment(ctx: Context, args: dict[str, Any]) -> Any:
    try:
        return {"paid": await ctx.wait_signal("paid", timeout=60)}
    except SignalTimeout as late:
        return {"late": late.signal_name}


def waiting_in_a_thread(ctx: SyncContext, args: dict[str, Any]) -> Any:
    try:
        return {"paid": ctx.wait_signal("paid", timeout=60)}
    except SignalTimeout as late:
        return {"late": late.signal_name}


@pytest.mark.parametrize("function", [waiting_for_payment, waiting_in_a_thread])
async def test_a_signal_wakes_the_task_with_its_message_before_or_after_it_waits(function: Callable[..., Any]) -> None:
    message = {"amount": 10**30, "text": "\0"}
    async with WorkflowTest(function) as t:
        await t.signal("other", 1)
        await t.signal("paid", message)
        assert (await t.run())["structuredContent"] == {"paid": message}
    async with WorkflowTest(function) as t:
        await t.start()
        assert t.waits_for == "signal paid"
        await t.signal("paid", None)
    assert t.result["structuredContent"] == {"paid": None}


@pytest.mark.parametrize("function", [waiting_for_payment, waiting_in_a_thread])
async def test_a_signal_that_does_not_come_in_time_raises(function: Callable[..., Any]) -> None:
    async with WorkflowTest(function) as t:
        t.crash(after="paid")
        await t.start()
        await t.advance(60)
    assert t.result["structuredContent"] == {"late": "paid"}
    assert t.runs == ["suspended", "lease_lost", "completed"]


async def test_a_timeout_that_nobody_catches_is_told_to_the_caller_and_not_tried_again() -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> None:
        await ctx.wait_signal("paid", timeout=60)

    async with WorkflowTest(report) as t:
        await t.start()
        await t.advance(60)
    assert t.result == {
        "content": [{"type": "text", "text": "The signal 'paid' did not come in time."}],
        "isError": True,
    }
    assert t.runs == ["suspended", "tool_error"]


async def nothing(ctx: Context, args: dict[str, Any]) -> None:
    return None


async def a_step(ctx: Context, args: dict[str, Any]) -> None:
    await ctx.step("paid", lambda: 1)


async def another_step_first(ctx: Context, args: dict[str, Any]) -> None:
    await ctx.step("new", lambda: 1)
    await ctx.wait_signal("paid")


async def another_signal(ctx: Context, args: dict[str, Any]) -> None:
    await ctx.wait_signal("refunded", name="paid")


async def a_sleep(ctx: Context, args: dict[str, Any]) -> None:
    await ctx.sleep(1, name="paid")


async def a_question(ctx: Context, args: dict[str, Any]) -> None:
    await ctx.ask("paid", "?", FORM)


def a_sleep_in_a_thread(ctx: SyncContext, args: dict[str, Any]) -> None:
    ctx.sleep(1, name="paid")


CHANGED = {
    nothing: "it ended without step 'paid'",
    a_step: "step 'paid' was a wait",
    another_step_first: "it asks for step 'new' where it asked for 'paid'",
    another_signal: "step 'paid' waits for the signal 'refunded', and its wait ended by the signal 'paid'",
    a_sleep: "step 'paid' waits for the time, and its wait ended by the signal 'paid'",
    a_sleep_in_a_thread: "step 'paid' waits for the time, and its wait ended by the signal 'paid'",
    a_question: "step 'paid' waits for answers to 'paid', and its wait ended by the signal 'paid'",
}


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize(("changed", "reason"), CHANGED.items(), ids=[function.__name__ for function in CHANGED])
async def test_code_that_changed_under_a_suspended_task_fails_it(changed: Callable[..., Any], reason: str, saved: bool) -> None:
    async def waiting(ctx: Context, args: dict[str, Any]) -> None:
        await ctx.wait_signal("paid")
        t.function = changed
        await ctx.step("crash", lambda: 1)

    async with WorkflowTest(waiting, workflow="pay", capabilities={"elicitation": {}}) as t:
        await t.start()
        t.crash(during="crash")
        t.function = waiting if saved else changed
        await t.signal("paid")
        with pytest.raises(ProtocolError) as raised:
            _ = t.result
    assert raised.value.message == f"the code of workflow pay version 1 changed under a running task: {reason}"


async def test_a_step_that_became_a_wait_is_refused() -> None:
    async def before(ctx: Context, args: dict[str, Any]) -> None:
        t.function = a_sleep
        await ctx.step("paid", lambda: 1)

    async with WorkflowTest(before) as t:
        t.crash(after="paid")
        with pytest.raises(ProtocolError, match="changed under a running task: step 'paid' was no wait"):
            await t.run()


async def test_a_wake_that_this_worker_does_not_know_is_refused() -> None:
    async with WorkflowTest(a_sleep) as t:
        await t.start()
        t._task.wake, t._task.waiting, t._task.state = leases_pb2.Wake(step="paid"), None, "QUEUED"
        await t.advance(0)
        with pytest.raises(ProtocolError, match="its wait ended by what this worker does not know"):
            _ = t.result


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


@pytest.mark.parametrize("seconds", [-1, 367 * DAY, float("nan"), float("inf")])
async def test_a_time_that_the_store_would_refuse_is_refused_at_once(seconds: float) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> None:
        for ask in (
            lambda: ctx.sleep(seconds),
            lambda: ctx.wait_signal("paid", timeout=seconds),
            lambda: ctx.ask("ok", "?", FORM, timeout=seconds),
        ):
            with pytest.raises(ValueError, match="must be 0 to 366 days"):
                await ask()
        for name in ("", "a b", "x" * 129, "ä"):
            with pytest.raises(ValueError, match="name of a signal"):
                await ctx.wait_signal(name)

    async with WorkflowTest(report, capabilities={"elicitation": {}}) as t:
        await t.run()
    assert t.steps == []


async def test_times_are_whole_milliseconds_rounded_up() -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> None:
        await ctx.sleep(args["seconds"])

    for seconds, expected in ((0, 1), (0.0001, 1), (1.0001, 1001), (366 * DAY, 366 * DAY * 1000)):
        async with WorkflowTest(report) as t:
            await t.start({"seconds": seconds})
            assert t._task.waiting is not None
            assert t._task.waiting.request.timer.delay_ms == expected


async def test_a_signal_that_is_no_json_comes_as_its_bytes() -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> str:
        return str((await ctx.wait_signal("photo")).hex())

    async with WorkflowTest(report) as t:
        t._store.publish_signal(t._task, "photo", types_pb2.Payload(media_type="image/png", data=b"\xff\x00"))
        assert (await t.run())["content"][0]["text"] == "ff00"
