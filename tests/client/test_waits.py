"""Waits: the task is given back, and goes on with what ended the wait, in the run that finds it and in every later one."""

from collections.abc import Callable
from typing import Any

import pytest
from taskstore.v1 import leases_pb2, types_pb2

from store_service.client import Context, ProtocolError, SignalTimeout, SyncContext
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
