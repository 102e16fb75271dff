"""A wait as the store hears of it: once in effect, by the holder of the lease, and the worker is free meanwhile."""

import asyncio
from typing import Any

import pytest
from taskstore.v1 import leases_pb2, types_pb2

from store_service.client import Context, SyncContext
from tests.client.fake_store import FakeStore, FakeTask, new_worker, outcomes


async def paid(ctx: Context, args: dict[str, Any]) -> Any:
    await ctx.step("one", lambda: 1)
    return {"paid": await ctx.wait_signal("paid")}


def paid_in_a_thread(ctx: SyncContext, args: dict[str, Any]) -> Any:
    ctx.step("one", lambda: 1)
    return {"paid": ctx.wait_signal("paid")}


def publish(fake: FakeStore, task: FakeTask) -> None:
    with fake.changed:
        fake.memory.publish_signal(task, "paid", types_pb2.Payload(data=b"7"))
        fake.changed.notify_all()


@pytest.mark.parametrize("function", [paid, paid_in_a_thread])
async def test_a_task_that_waits_leaves_its_slot_to_others(fake: FakeStore, function: Any) -> None:
    worker = new_worker(fake, concurrency=1)
    worker.workflow("report")(function)
    worker.workflow("other")(lambda ctx, args: "done")
    task = fake.add()
    async with worker:
        await fake.until(lambda: task.state == "WAITING")
        await fake.ended(fake.add("other"))
        publish(fake, task)
        await fake.ended(task)
    assert outcomes(worker) == {"suspended": 1, "completed": 2}
    assert task.steps == ["one", "paid"]
    assert worker.registry.get_sample_value("tenure_worker_steps_total", {"outcome": "waited"}) == 1


async def test_a_suspension_whose_answer_was_lost_is_repeated(fake: FakeStore) -> None:
    worker = new_worker(fake)
    worker.workflow("report")(paid)
    fake.lose_answers("SuspendTask", times=2)
    task = fake.add()
    async with worker:
        await fake.until(lambda: outcomes(worker))
        assert task.state == "WAITING"
    assert outcomes(worker) == {"suspended": 1}
    assert len({request.SerializeToString() for request in fake.of("SuspendTask")}) == 1
    assert len(fake.of("SuspendTask")) == 3


async def test_a_suspension_without_its_lease_is_a_lost_lease(fake: FakeStore) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> None:
        fake.take_away(task)
        await ctx.sleep(60)

    worker = new_worker(fake)
    worker.workflow("report")(report)
    task = fake.add()
    async with worker:
        await fake.until(lambda: outcomes(worker))
    assert (outcomes(worker), task.state) == ({"lease_lost": 1}, "LEASED")


@pytest.mark.parametrize("reason", ["INPUT_LIMIT", "INVALID_INPUT"])
async def test_a_wait_that_the_store_refuses_fails_the_task(fake: FakeStore, reason: str) -> None:
    worker = new_worker(fake)
    worker.workflow("report")(paid)
    fake.refuse("SuspendTask", reason)
    task = fake.add()
    async with worker:
        await fake.ended(task)
    assert task.error is not None
    assert task.error.message == f"the store refused the wait of step 'paid': refused: {reason}"
    assert outcomes(worker) == {"failed": 1}


async def test_a_wake_that_was_left_out_for_its_size_is_loaded(fake: FakeStore) -> None:
    worker = new_worker(fake)
    worker.workflow("report")(paid)
    task = fake.add(input_left_out=True)
    async with worker:
        await fake.until(lambda: task.state == "WAITING")
        publish(fake, task)
        await fake.ended(task)
    assert outcomes(worker) == {"suspended": 1, "completed": 1}


async def test_a_task_that_was_leased_before_shows_life_before_its_code_begins(fake: FakeStore) -> None:
    shown: list[bool] = []

    async def report(ctx: Context, args: dict[str, Any]) -> str:
        shown.append(task.showed_life)
        return "done"

    worker = new_worker(fake)
    worker.workflow("report")(report)
    task = fake.add(attempts=1)
    async with worker:
        await fake.ended(task)
        assert (shown, len(fake.of("HeartbeatTask"))) == ([True], 1)
        task = fake.add()
        await fake.ended(task)
    assert shown == [True, False], "the first lease begins at once"
    assert len(fake.of("HeartbeatTask")) == 1


async def test_the_first_heartbeat_tells_of_a_wished_end_and_of_a_lost_lease(fake: FakeStore) -> None:
    begun: list[str] = []

    async def report(ctx: Context, args: dict[str, Any]) -> None:
        begun.append(ctx.task_id)

    worker = new_worker(fake)
    worker.workflow("report")(report)
    fake.refuse("HeartbeatTask", "LEASE_LOST")
    lost = fake.add(attempts=1)
    async with worker:
        await fake.until(lambda: outcomes(worker))
        assert (outcomes(worker), begun) == ({"lease_lost": 1}, [])
        fake.take_away(lost)
        fake.refuse("HeartbeatTask", "STORAGE_UNAVAILABLE")
        cancelled = fake.add(attempts=1)
        await fake.until(lambda: cancelled.state == "LEASED")
        cancelled.cancel_requested = True
        await fake.ended(cancelled)
    assert (cancelled.state, begun) == ("CANCELLED", [])


async def test_a_task_that_shall_end_while_it_drains_is_suspended_rather_than_given_back(fake: FakeStore) -> None:
    begun = asyncio.Event()

    async def report(ctx: Context, args: dict[str, Any]) -> None:
        await ctx.step("one", begun.set)
        await ctx.sleep(60)

    worker = new_worker(fake)
    worker.workflow("report")(report)
    task = fake.add()
    async with worker:
        await asyncio.wait_for(begun.wait(), 60)
    assert (task.state, outcomes(worker)) == ("WAITING", {"suspended": 1})


async def test_a_task_that_an_operator_sent_back_before_its_first_step_takes_its_wake_up(fake: FakeStore) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> Any:
        return {"paid": await ctx.wait_signal("paid")}

    worker = new_worker(fake)
    worker.workflow("report")(report)
    signal = leases_pb2.SignalWake(signal_id="s1", name="paid", payload=types_pb2.Payload(data=b"7"))
    task = fake.add(wake=leases_pb2.Wake(step="paid", signal=signal))
    async with worker:
        await fake.ended(task)
    assert (task.state, outcomes(worker)) == ("COMPLETED", {"completed": 1})
