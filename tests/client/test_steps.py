"""Steps: done once, remembered, and never resumed by code that did not write them."""

import asyncio
import json
import math
from collections import Counter
from typing import Any

import pytest

from store_service.client import Context, ProtocolError, RetryPolicy, SyncContext
from tests.client.fake_store import FakeStore, FakeTask, new_worker, outcomes


async def run(fake: FakeStore, function: Any, task: FakeTask, **settings: Any) -> dict[str, float]:
    worker = new_worker(fake, **settings)
    worker.workflow("report", retry=RetryPolicy(max_attempts=3))(function)
    async with worker:
        await fake.ended(task)
    return outcomes(worker)


def structured(task: FakeTask) -> Any:
    assert task.result is not None, task.error
    return json.loads(task.result)["structuredContent"]


async def test_a_step_that_is_done_is_not_done_again(fake: FakeStore) -> None:
    ran: Counter[str] = Counter()

    def fetch(name: str, *, times: int = 1) -> list[str]:
        ran[name] += 1
        return [name] * times

    async def send(value: Any) -> str:
        ran["send"] += 1
        if ran["send"] == 1:
            raise OSError("down")
        return f"sent {value}"

    async def report(ctx: Context, args: dict[str, Any]) -> Any:
        first = await ctx.step("fetch", fetch, "a", times=2)
        second = await ctx.step("fetch", fetch, "b")
        third = await ctx.step("fetch", fetch, "c")
        return {"all": [first, second, third, await ctx.step("send", send, first)]}

    task = fake.add()
    assert await run(fake, report, task) == {"retried": 1, "completed": 1}
    assert ran == {"a": 1, "b": 1, "c": 1, "send": 2}
    assert task.steps == ["fetch", "fetch#2", "fetch#3", "send"]
    assert structured(task) == {"all": [["a", "a"], ["b"], ["c"], "sent ['a', 'a']"]}


async def test_a_step_returns_the_same_on_the_first_run_as_on_a_resumed_one(fake: FakeStore) -> None:
    seen: list[Any] = []

    async def report(ctx: Context, args: dict[str, Any]) -> None:
        seen.append(await ctx.step("values", lambda: {"pair": (1, 2), 3: "nul\0", "big": 10**100}))
        if len(seen) == 1:
            raise OSError("down")

    task = fake.add()
    await run(fake, report, task)
    assert seen[0] == seen[1] == {"pair": [1, 2], "3": "nul\0", "big": 10**100}


async def test_steps_side_by_side_are_remembered_in_whatever_order_they_ended(fake: FakeStore) -> None:
    ran: Counter[int] = Counter()
    last_first = [asyncio.Event() for _ in range(4)]
    last_first[3].set()

    async def part(number: int) -> int:
        ran[number] += 1
        await last_first[number].wait()
        if number:
            last_first[number - 1].set()
        elif ran[0] == 1:
            await fake.until(lambda: len(task.checkpoints) == 3)
            raise OSError("down")
        return number

    async def report(ctx: Context, args: dict[str, Any]) -> Any:
        return {"parts": await asyncio.gather(*(ctx.step(f"part {number}", part, number) for number in range(4)))}

    task = fake.add()
    assert await run(fake, report, task) == {"retried": 1, "completed": 1}
    assert task.steps == ["part 3", "part 2", "part 1", "part 0"]
    assert ran == {0: 2, 1: 1, 2: 1, 3: 1}
    assert structured(task) == {"parts": [0, 1, 2, 3]}


CHANGES = {
    "another name": ["fetch", "render"],
    "another order": ["send", "fetch"],
    "a step left out": ["send"],
    "ended early": ["fetch"],
    "nothing asked": [],
}


@pytest.mark.parametrize("asked", CHANGES.values(), ids=list(CHANGES))
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_code_that_changed_under_a_running_task_fails_it(fake: FakeStore, asked: list[str], kind: str) -> None:
    done: list[str] = []

    async def report(ctx: Context, args: dict[str, Any]) -> None:
        for name in asked:
            try:
                await ctx.step(name, done.append, name)
            except ProtocolError as error:
                raise OSError("careless code does not hide it") from error

    def blocking(ctx: SyncContext, args: dict[str, Any]) -> None:
        for name in asked:
            ctx.step(name, done.append, name)

    async def before(ctx: Context, args: dict[str, Any]) -> None:
        await ctx.step("fetch", lambda: 1)
        await ctx.step("send", lambda: 2)
        raise OSError("down")

    task = fake.add()
    worker = new_worker(fake)
    worker.workflow("report")(before)
    fake.refuse("FailTask", "LEASE_LOST")
    async with worker:
        await fake.until(lambda: fake.of("FailTask"))
    task.state, task.contract.workflow = "QUEUED", "report"
    counted = await run(fake, report if kind == "async" else blocking, task)
    assert counted == {"failed": 1}
    assert task.error is not None
    assert task.error.message == "the code of workflow report version 1 changed under a running task"
    assert (done, task.steps) == ([], ["fetch", "send"])


async def test_an_append_whose_answer_was_lost_is_found_to_have_won(fake: FakeStore) -> None:
    ran: Counter[str] = Counter()

    async def report(ctx: Context, args: dict[str, Any]) -> None:
        await ctx.step("one", ran.update, ["one"])
        await ctx.step("two", ran.update, ["two"])

    fake.lose_answers("AppendCheckpoint")
    task = fake.add()
    assert await run(fake, report, task) == {"completed": 1}
    assert task.steps == ["one", "two"]
    assert ran == {"one": 1, "two": 1}


async def test_a_revision_that_another_worker_saved_is_a_lost_lease(fake: FakeStore) -> None:
    after: list[str] = []

    async def report(ctx: Context, args: dict[str, Any]) -> None:
        await ctx.step("one", interfere)
        after.append("went on")

    def interfere() -> int:
        fake.refuse("AppendCheckpoint", "REVISION_CONFLICT")
        return 1

    worker = new_worker(fake)
    worker.workflow("report")(report)
    task = fake.add()
    async with worker:
        await fake.until(lambda: fake.of("LoadCheckpoints"))
        await fake.until(lambda: outcomes(worker) or task.attempts > 1)
        fake.take_away(task)
    assert outcomes(worker)["lease_lost"] >= 1
    assert (after, task.steps) == ([], [])


@pytest.mark.parametrize("value", [math.nan, 10**641, "x" * (4 * 2**20 + 1), {1, object}])
async def test_a_step_value_that_cannot_be_kept_fails_the_task_in_one_attempt(fake: FakeStore, value: Any) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> None:
        await ctx.step("one", lambda: value)

    task = fake.add()
    assert await run(fake, report, task) == {"failed": 1}
    assert task.error is not None
    assert "what step 'one' returned" in task.error.message
    assert task.error.code == -32603


async def test_a_step_of_exactly_4_mib_is_kept(fake: FakeStore) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> str:
        return str(len(await ctx.step("one", lambda: "x" * (4 * 2**20 - 2))))

    task = fake.add()
    assert await run(fake, report, task) == {"completed": 1}


async def test_a_task_with_too_many_checkpoints_fails_clearly(fake: FakeStore) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> None:
        await ctx.step("one", lambda: 1)

    fake.refuse("AppendCheckpoint", "CHECKPOINT_LIMIT")
    task = fake.add()
    assert await run(fake, report, task) == {"failed": 1}
    assert task.error is not None
    assert "cannot be saved" in task.error.message


@pytest.mark.parametrize("name", ["", "x" * 257, "a\0b"])
async def test_a_step_name_that_the_store_would_refuse_is_refused_before_its_work(fake: FakeStore, name: str) -> None:
    ran: list[str] = []

    async def report(ctx: Context, args: dict[str, Any]) -> str:
        with pytest.raises(ValueError, match="name of a step"):
            await ctx.step(name, ran.append, name)
        return "refused"

    task = fake.add()
    assert await run(fake, report, task) == {"completed": 1}
    assert ran == []
