"""Effects that must not happen twice: what becomes of them when nobody knows whether they happened. Source: contract, 15."""

from typing import Any

import pytest

from store_service.client import Context, Done, NotDone, ProtocolError, RetryPolicy, SyncContext, TaskStore, ToolError, Worker
from store_service.client.testing import WorkflowTest
from tests.client.test_real_store import COMPLETED, WAITING, create, signal, until
from tests.conftest import Stubs

CRASHES = [{"after": "charge begun"}, {"during": "charge"}]
"""The worker dies before the effect, and after it: whoever takes over sees the same."""


class Bank:
    """What was really charged, under which keys."""

    def __init__(self, *errors: Exception, happens: bool = True) -> None:
        self.charged: list[str] = []
        self.looked_up: list[str] = []
        self._errors = list(errors)
        self._happens = happens

    async def charge(self, key: str) -> str:
        if not self._errors or self._happens:
            self.charged.append(key)
        if self._errors:
            raise self._errors.pop(0)
        return f"receipt {len(self.charged)}"

    def find(self, key: str) -> Done | None:
        self.looked_up.append(key)
        return Done("found") if key in self.charged else None

    async def charge_once(self, ctx: Context, args: dict[str, Any]) -> str:
        return await ctx.once().step("charge", self.charge, ctx.idempotency_key("charge"))

    async def charge_and_look(self, ctx: Context, args: dict[str, Any]) -> str:
        return await ctx.once(lookup=self.find).step("charge", self.charge, ctx.idempotency_key("charge"))


def text(result: dict[str, Any]) -> str:
    told: str = result["content"][0]["text"]
    return told


async def say(t: WorkflowTest, message: Any) -> None:
    """An operator answers what the task waits for."""
    assert t.waits_for is not None
    assert t.waits_for.startswith("signal effect.")
    await t.signal(t.waits_for.removeprefix("signal "), message)


async def test_an_effect_is_written_down_before_it_begins_and_remembered_afterwards() -> None:
    bank = Bank()

    async def twice(ctx: Context, args: dict[str, Any]) -> str:
        receipt = await bank.charge_once(ctx, args)
        assert t.value("charge begun") == ctx.idempotency_key("charge")
        await ctx.sleep(1)
        return receipt

    async with WorkflowTest(twice) as t:
        assert text(await t.run()) == "receipt 1"
    assert len(bank.charged) == 1
    assert t.steps == ["charge begun", "charge", "sleep"]


@pytest.mark.parametrize("crash", CRASHES)
async def test_after_a_crash_the_task_stops_and_asks_and_never_begins_it_again_by_itself(crash: dict[str, str]) -> None:
    bank = Bank()
    async with WorkflowTest(bank.charge_once) as t:
        t.crash(**crash)
        await t.start()
        assert (t.state, t.runs) == ("WAITING", ["lease_lost", "suspended"])
        happened = "during" in crash
        assert len(bank.charged) == happened
        await say(t, {"done": True, "value": "by hand"} if happened else {"done": False})
        assert text(t.result) == ("by hand" if happened else "receipt 1")
    assert len(bank.charged) == 1


@pytest.mark.parametrize("crash", CRASHES)
async def test_a_lookup_takes_the_place_of_the_operator(crash: dict[str, str]) -> None:
    bank = Bank()
    async with WorkflowTest(bank.charge_and_look) as t:
        t.crash(**crash)
        result = text(await t.run())
    assert result == ("found" if "during" in crash else "receipt 1")
    assert (len(bank.charged), len(bank.looked_up)) == (1, 1)


async def test_a_crash_after_the_lookup_asks_it_again_and_nothing_is_charged_twice() -> None:
    bank, crashes = Bank(), iter(["charge begun", "charge begun#2"])

    async def pay(ctx: Context, args: dict[str, Any]) -> str:
        if step := next(crashes, None):
            t.crash(after=step)
        return await bank.charge_and_look(ctx, args)

    async with WorkflowTest(pay) as t:
        assert text(await t.run()) == "receipt 1"
    assert t.runs == ["lease_lost", "lease_lost", "completed"]
    assert t.steps == ["charge begun", "charge not done", "charge begun#2", "charge not done#2", "charge begun#3", "charge"]
    assert len(bank.charged) == 1


async def test_an_error_tells_nothing_so_the_task_asks_and_does_not_fail() -> None:
    bank = Bank(TimeoutError())
    async with WorkflowTest(bank.charge_once, retry=RetryPolicy(max_attempts=1)) as t:
        await t.start()
        assert (t.state, t.runs) == ("WAITING", ["suspended"])
        await say(t, {"done": True, "value": "by hand"})
        assert text(t.result) == "by hand"
    assert len(bank.charged) == 1


async def test_an_error_after_which_a_lookup_finds_it_is_none() -> None:
    bank = Bank(TimeoutError())
    async with WorkflowTest(bank.charge_and_look, retry=RetryPolicy(max_attempts=1)) as t:
        assert text(await t.run()) == "found"
    assert t.runs == ["completed"]


async def test_an_error_after_which_it_surely_did_not_happen_is_tried_again_like_any_other() -> None:
    bank = Bank(ConnectionError(), ConnectionError(), happens=False)
    async with WorkflowTest(bank.charge_and_look) as t:
        assert text(await t.run()) == "receipt 1"
    assert t.runs == ["retried", "retried", "completed"]
    own = Bank(NotDone("refused"), happens=False)
    async with WorkflowTest(own.charge_once) as t:
        assert text(await t.run()) == "receipt 1"
    assert t.runs == ["retried", "completed"]


async def test_a_lookup_that_fails_leaves_it_to_the_operator() -> None:
    bank = Bank(TimeoutError())

    async def look(ctx: Context, args: dict[str, Any]) -> str:
        async def find(key: str) -> Done | None:
            raise ConnectionError

        return await ctx.once(lookup=find).step("charge", bank.charge, "k")

    async with WorkflowTest(look) as t:
        await t.start()
        await say(t, {"done": True, "value": "by hand"})
        assert text(t.result) == "by hand"


async def test_an_answer_that_makes_no_sense_is_asked_for_again() -> None:
    bank = Bank(TimeoutError())
    async with WorkflowTest(bank.charge_once) as t:
        await t.start()
        for message in ("yes", {"done": "maybe"}, None):
            await say(t, message)
        await say(t, {"done": True, "value": "by hand"})
        assert text(t.result) == "by hand"
    assert len(bank.charged) == 1


@pytest.mark.parametrize("error", [ToolError("no money"), ProtocolError(-32000, "no money")])
async def test_a_failure_that_is_an_outcome_is_one_here_too(error: Exception) -> None:
    bank = Bank(error, happens=False)

    async def pay(ctx: Context, args: dict[str, Any]) -> str:
        with pytest.raises(type(error), match="no money"):
            await bank.charge_once(ctx, args)
        await ctx.sleep(1)
        return "unpaid"

    async with WorkflowTest(pay) as t:
        assert text(await t.run()) == "unpaid"
    assert t.runs == ["suspended", "completed"]


async def test_effects_of_one_name_and_side_by_side_are_each_for_themselves() -> None:
    bank = Bank()

    async def fan_out(ctx: Context, args: dict[str, Any]) -> list[str]:
        once = ctx.once(lookup=bank.find)
        keys = [ctx.idempotency_key(key) for key in ("charge", "charge#2", "charge#3")]
        return await ctx.parallel(*(once.step("charge", bank.charge, key) for key in keys))

    async with WorkflowTest(fan_out) as t:
        t.crash(during="charge#2")
        result = await t.run()
    assert len(bank.charged) == len(set(bank.charged)) == 3
    assert "found" in result["structuredContent"]["result"]


@pytest.mark.parametrize("crash", CRASHES)
async def test_a_sync_function_has_effects_too(crash: dict[str, str]) -> None:
    charged: list[str] = []

    def pay(ctx: SyncContext, args: dict[str, Any]) -> str:
        def charge() -> str:
            charged.append("x")
            return "paid"

        return ctx.once(lookup=lambda key: Done("found") if charged else None).step("charge", charge)

    async with WorkflowTest(pay) as t:
        t.crash(**crash)
        assert text(await t.run()) == ("found" if "during" in crash else "paid")
    assert charged == ["x"]


async def test_an_operator_answers_over_a_real_store(store: Stubs) -> None:
    bank = Bank(TimeoutError())
    worker = Worker(store.address)
    worker.workflow("pay")(bank.charge_once)
    async with TaskStore.connect(store.address) as client, worker:
        task_id = await create(client, "pay")
        waiting = await until(client, task_id, WAITING)
        assert waiting.wait.step == "charge asked"
        name = waiting.wait.signal.name
        assert name == f"effect.{bank.charged[0]}"
        await signal(client, task_id, name, b'{"done": true, "value": "by hand"}')
        ended = await until(client, task_id, COMPLETED)
    assert b"by hand" in ended.result.data
