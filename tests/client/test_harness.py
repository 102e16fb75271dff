"""The test harness: what its users rely on."""

from typing import Any

import pytest

from store_service.client import Context, Form, ProtocolError, RetryPolicy, SignalTimeout
from store_service.client.testing import WorkflowTest

FORM = {"type": "object", "properties": {"ok": {"type": "boolean"}}}


async def report(ctx: Context, args: dict[str, Any]) -> Any:
    await ctx.progress(1, 2, "half way")
    await ctx.sleep(60)
    answer = await ctx.ask("ok", "Fine?", FORM)
    try:
        word = await ctx.wait_signal("word", timeout=30)
    except SignalTimeout:
        word = None
    return {"args": args, "ok": answer.action, "word": word}


async def test_run_goes_past_timers_to_the_end_with_what_was_given_before() -> None:
    async with WorkflowTest(report, capabilities={"elicitation": {}}) as t:
        await t.accept("ok")
        await t.signal("word", "hi")
        result = await t.run({"x": 1})
    assert result["structuredContent"] == {"args": {"x": 1}, "ok": "accept", "word": "hi"}
    assert (t.state, t.questions) == ("COMPLETED", {})
    assert not t.waits_for
    assert list(t.progress[0]) == [1, 2, "half way"]
    assert t.metrics.steps.labels("waited")._value.get() == 3


async def test_run_says_what_the_task_waits_for_when_nobody_gave_it() -> None:
    async with WorkflowTest(report, capabilities={"elicitation": {}}) as t:
        with pytest.raises(AssertionError, match="the task has no result: answers to ok"):
            await t.run()
        await t.accept("ok")
        assert t.waits_for == "signal word"
        await t.advance(29.999)
        assert t.state == "WAITING"
        await t.advance(0.001)
    assert t.result["structuredContent"]["word"] is None


async def test_what_was_answered_is_not_answered_twice_and_a_signal_is_taken_once() -> None:
    async def twice(ctx: Context, args: dict[str, Any]) -> Any:
        answers = await ctx.ask_all({"a": Form("?", FORM), "b": Form("?", FORM)})
        words = [await ctx.wait_signal("word") for _ in range(2)]
        return {"a": answers["a"].action, "words": words}

    async with WorkflowTest(twice, capabilities={"elicitation": {}}) as t:
        await t.start()
        await t.answer("a", {"action": "decline"})
        await t.answer("a", {"action": "accept"})
        await t.answer("b", {"action": "accept"})
        await t.signal("word", 1)
        assert t.waits_for == "signal word"
        await t.signal("word", 2)
    assert t.result["structuredContent"] == {"a": "decline", "words": [1, 2]}


async def test_values_and_failures_of_steps_can_be_looked_at() -> None:
    async def work(ctx: Context, args: dict[str, Any]) -> None:
        await ctx.step("value", lambda: {"x": (1, 2)})
        await ctx.sleep(1)
        await ctx.step("failure", _fail)

    def _fail() -> None:
        raise ProtocolError(-32602, "bad", {"why": 1})

    async with WorkflowTest(work) as t:
        with pytest.raises(ProtocolError, match="bad") as raised:
            await t.run()
    assert raised.value.data == {"why": 1}
    assert t.value("value") == {"x": [1, 2]}
    assert t.value("sleep").WhichOneof("cause") == "timer"
    assert str(t.value("failure")) == "-32602: bad"


async def test_a_task_can_be_cancelled_while_it_waits_and_retries_are_counted() -> None:
    async with WorkflowTest(report) as t:
        await t.start()
        t.cancel()
        assert t.state == "CANCELLED"

    async def broken(ctx: Context, args: dict[str, Any]) -> None:
        raise OSError("down")

    async with WorkflowTest(broken, retry=RetryPolicy(max_attempts=2)) as t:
        assert (await t.run())["isError"] is True
    assert t.runs == ["retried", "tool_error"]


async def test_a_result_that_breaks_the_output_schema_fails_as_it_would() -> None:
    async def wrong(ctx: Context, args: dict[str, Any]) -> Any:
        return {"n": "text"}

    schema = {"properties": {"n": {"type": "integer"}}}
    async with WorkflowTest(wrong, output_schema=schema) as t:
        with pytest.raises(ProtocolError, match="breaks the tool's output schema at /n"):
            await t.run()
