"""A worker of more tasks than one call takes: calls of many are as large as they may be, and no lease is forgotten."""

import asyncio
import time
from typing import Any

import pytest
from taskstore.v1 import tasks_pb2, tenants_pb2

from store_service.client import Context, Worker
from store_service.client.batches import MOST_ITEMS
from tests.client.fake_store import FakeStore, new_worker, outcomes
from tests.client.gate import Gate, gated
from tests.conftest import Stubs
from tests.store.builders import TENANT, new_task, set_policy

COUNT = 2 * MOST_ITEMS + 200


async def test_it_takes_and_writes_no_more_in_a_call_than_one_takes(fake: FakeStore) -> None:
    worker, gate = gated(fake, concurrency=COUNT)
    tasks = [fake.add() for _ in range(2 * COUNT)]
    fake.refuse("LeaseTasks", "STORAGE_UNAVAILABLE")
    async with worker:
        await fake.until(lambda: gate.running == COUNT)
        assert [request.limit for request in fake.of("LeaseTasks")] == [MOST_ITEMS, MOST_ITEMS, MOST_ITEMS, 200]
        gate.opened.set()
        await fake.ended(*tasks)
    assert outcomes(worker) == {"completed": len(tasks)}
    assert all(task.attempts == 1 for task in tasks)
    together = fake.of("CompleteAndLeaseTasks")
    assert max(request.limit for request in (*fake.of("LeaseTasks"), *(one.lease for one in together))) == MOST_ITEMS
    assert all(len(request.items) <= MOST_ITEMS for request in (*together, *fake.of("CompleteTasks")))


async def test_all_its_leases_are_extended_also_when_the_first_call_for_it_fails(fake: FakeStore) -> None:
    worker = new_worker(fake, lease_seconds=6, concurrency=COUNT)
    fake.refuse("HeartbeatTasks", "STORAGE_UNAVAILABLE")
    tasks = [fake.add() for _ in range(COUNT)]

    @worker.workflow("report")
    async def report(ctx: Context, args: Any) -> str:
        await fake.until(lambda: all(task.heartbeats for task in tasks))
        return "done"

    async with worker:
        await fake.ended(*tasks)
    assert outcomes(worker) == {"completed": COUNT}
    assert max(len(request.items) for request in fake.of("HeartbeatTasks")) == MOST_ITEMS


@pytest.mark.usefixtures("often")
async def test_a_short_lease_among_many_is_lost_in_time_while_the_store_does_not_answer(fake: FakeStore) -> None:
    (worker, _), stopped = gated(fake, concurrency=COUNT + 1), asyncio.Event()

    @worker.workflow("short", lease_seconds=2.0)
    async def short(ctx: Context, args: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    tasks = [fake.add() for _ in range(COUNT)]
    brief = fake.add("short")
    async with worker:
        await fake.until(lambda: all(task.heartbeats for task in (*tasks, brief)))
        fake.silence("HeartbeatTasks")
        await asyncio.wait_for(stopped.wait(), 60)
        assert time.monotonic() < brief.expires_at
        fake.mend()


async def test_hints_do_not_make_it_extend_more_leases_than_a_store_can_bear(fake: FakeStore) -> None:
    worker, gate = gated(fake, concurrency=COUNT)
    tasks = [fake.add() for _ in range(COUNT)]

    def beats() -> int:
        return sum(len(request.items) for request in fake.of("HeartbeatTasks"))

    async with worker:
        await fake.until(lambda: all(task.state == "LEASED" for task in tasks) and fake.watchers)
        before, began = beats(), time.monotonic()
        async with asyncio.timeout(60):
            while (asked := beats() - before) < 6 * COUNT:
                fake.hint()
                await asyncio.sleep(0.01)
        assert asked <= 2 * COUNT + 5_000 * (time.monotonic() - began)  # the first at once, and some that were due
        gate.opened.set()
        await fake.ended(*tasks)
    assert outcomes(worker) == {"completed": COUNT}


async def test_all_it_runs_is_given_back_when_it_ends(store: Stubs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store_service.client.worker._STOP_SECONDS", 60.0)
    worker, gate = Worker(store.address, concurrency=COUNT, drain_seconds=0.0), Gate()
    worker.workflow("report")(gate.__call__)
    await set_policy(store, outstanding=COUNT, leased=COUNT)
    for _ in range(0, COUNT, 400):
        await store.tasks.CreateTasks(tasks_pb2.CreateTasksRequest(items=[new_task() for _ in range(400)]))
    async with worker:
        await gate.until_running(COUNT, seconds=60)
    assert outcomes(worker) == {"released": COUNT}
    tenant = (await store.tenants.GetTenant(tenants_pb2.GetTenantRequest(tenant_id=TENANT))).tenant
    assert (tenant.leased, tenant.outstanding) == (0, COUNT)
