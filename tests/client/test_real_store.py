"""The worker library over a real store: what the model in memory promises, kept."""

import asyncio
import json
import uuid
from typing import Any

import pytest
from taskstore.v1 import tasks_pb2, tenants_pb2, types_pb2

from store_service.client import (
    Context,
    Form,
    InputTimeout,
    ProtocolError,
    Roots,
    SignalTimeout,
    TaskStore,
    TenantStore,
    ToolError,
    Worker,
)
from tests.client.fake_store import outcomes
from tests.client.stubborn_worker import LEASE_SECONDS, LONG_LEASE_SECONDS, process
from tests.conftest import Clock, Stubs, serving, store_on
from tests.examples.trip_saga.test_trip_saga import Agency
from tests.examples.trip_saga.trip import Trips
from tests.store.builders import claim

TENANT = "acme"
OWNER = types_pb2.Owner(issuer="test", subject="ann")
FORM = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
ALL = b'{"elicitation": {}, "roots": {}}'
WAITING, COMPLETED, CANCELLED = types_pb2.TASK_STATE_WAITING, types_pb2.TASK_STATE_COMPLETED, types_pb2.TASK_STATE_CANCELLED
FAILED = types_pb2.TASK_STATE_FAILED


async def create(client: TaskStore, workflow: str, data: bytes = b"{}", **fields: Any) -> str:
    contract = types_pb2.TaskContract(
        tool=workflow, workflow=workflow, workflow_version=1, owner=OWNER, client_capabilities=ALL, **fields
    )
    request = tasks_pb2.CreateTaskRequest(
        tenant_id=TENANT, request_id=uuid.uuid4().hex, contract=contract, input=types_pb2.Payload(data=data)
    )
    return (await client.create_task(request)).task.task_id


async def until(client: TaskStore, task_id: str, state: types_pb2.TaskState.ValueType, step: str = "") -> types_pb2.Task:
    """The task, once it is in this state; when it waits, in this step."""
    wanted = tasks_pb2.WatchedTask(tenant_id=TENANT, task_id=task_id, view=types_pb2.TASK_VIEW_OUTCOME)
    async with asyncio.timeout(60):
        async for seen in client.watch_task(wanted):
            if seen.task.state == state and (not step or seen.task.wait.step == step):
                return seen.task
            assert not seen.task.HasField("ended_at"), seen
    raise AssertionError("the watch ended")


async def signal(client: TaskStore, task_id: str, name: str, data: bytes) -> None:
    request = tasks_pb2.PublishSignalRequest(
        tenant_id=TENANT, signal_id=uuid.uuid4().hex, task_id=task_id, name=name, payload=types_pb2.Payload(data=data)
    )
    await client.publish_signal(request)


async def answer(client: TaskStore, task_id: str, **answers: dict[str, Any]) -> None:
    given = [
        types_pb2.InputAnswer(key=key, response=types_pb2.Payload(data=json.dumps(response).encode()))
        for key, response in answers.items()
    ]
    told = await client.answer_inputs(tasks_pb2.AnswerInputsRequest(tenant_id=TENANT, task_id=task_id, answers=given))
    assert set(told.outcomes) == {tasks_pb2.ANSWER_OUTCOME_ACCEPTED}


async def test_a_watch_goes_on_at_the_next_store_when_its_own_stops(dsn: str) -> None:
    first = store_on(dsn, drain_seconds=600)
    await first.start()
    async with TaskStore.connect(f"127.0.0.1:{first.port}") as client:
        task_id = await create(client, "w")
        watch = client.watch_task(tasks_pb2.WatchedTask(tenant_id=TENANT, task_id=task_id))
        assert (await anext(watch)).task.change == 1
        next_answer = asyncio.create_task(anext(watch))
        async with asyncio.timeout(60):
            await first.stop()
        second = store_on(dsn, port=first.port)
        await second.start()
        async with asyncio.timeout(60):
            await client.cancel_task(tasks_pb2.CancelTaskRequest(tenant_id=TENANT, task_id=task_id))
            assert (await next_answer).task.state == CANCELLED
            assert [answer async for answer in watch] == []
    await second.stop()


async def test_an_operator_pauses_resumes_and_redrives(store: Stubs) -> None:
    worker = Worker(store.address)

    @worker.workflow("once", version=1)
    async def once(ctx: Context, _args: dict[str, Any]) -> dict[str, Any]:
        if not await ctx.step("done", lambda: True) or ctx.fencing_token == 1:
            raise ProtocolError(-32000, "not yet")
        return {"content": [{"type": "text", "text": str(ctx.attempt)}]}

    async with TaskStore.connect(store.address) as client, TenantStore.connect(store.address) as operator, worker:
        request = tenants_pb2.PauseWorkRequest(tenant_id=TENANT, actor="ann")
        assert len((await operator.pause_work(request)).pauses) == 1
        task_id = await create(client, "once")
        assert not (await operator.resume_work(tenants_pb2.ResumeWorkRequest(tenant_id=TENANT))).pauses
        await until(client, task_id, FAILED)
        redrive = tenants_pb2.RedriveTasksRequest(tenant_id=TENANT, request_id="r", actor="ann")
        assert [item.task_id for item in (await operator.redrive_tasks(redrive)).items] == [task_id]
        assert json.loads((await until(client, task_id, COMPLETED)).result.data)["content"][0]["text"] == "1"
        assert (await operator.get_tenant(tenants_pb2.GetTenantRequest(tenant_id=TENANT))).outstanding == 0


async def everything(ctx: Context, args: dict[str, Any]) -> dict[str, Any]:
    await ctx.step("begin", lambda: 1)
    await ctx.sleep(3600)
    said = await ctx.wait_signal("go", timeout=3600)
    try:
        await ctx.wait_signal("never", timeout=60)
    except SignalTimeout as late:
        never = late.signal_name
    answer = await ctx.ask("ok", "Fine?", FORM)
    try:
        await ctx.ask("ok", "Really?", FORM, timeout=60)
    except InputTimeout as late:
        asked = late.question
    some = await ctx.ask_all({"a": Form("?", FORM), "b": Roots()}, timeout=60)
    parts = await ctx.parallel(*(ctx.step("part", abs, number) for number in range(5)), limit=2)
    return {
        "said": said, "never": never, "ok": answer.content, "asked": asked, "some": [some["a"], len(some["b"])], "parts": parts
    }  # fmt: skip


async def test_every_kind_of_wait_over_a_real_store(store: Stubs, clock: Clock) -> None:
    worker = Worker(store.address, concurrency=1)
    worker.workflow("everything")(everything)
    async with TaskStore.connect(store.address) as client, worker:
        task_id = await create(client, "everything")
        await until(client, task_id, WAITING, "sleep")
        await clock.advance(seconds=3600)
        await until(client, task_id, WAITING, "go")
        await signal(client, task_id, "go", b'{"big": 1000000000000000000000}')
        await until(client, task_id, WAITING, "never")
        await clock.advance(seconds=60)
        await until(client, task_id, WAITING, "ok")
        await answer(client, task_id, ok={"action": "accept", "content": {"ok": True}})
        await until(client, task_id, WAITING, "ok#2")
        await clock.advance(seconds=60)
        await until(client, task_id, WAITING, "ask_all")
        await answer(client, task_id, b={"roots": [{"uri": "file:///home"}]})
        await clock.advance(seconds=60)
        ended = await until(client, task_id, COMPLETED)
    assert json.loads(ended.result.data)["structuredContent"] == {
        "said": {"big": 10**21}, "never": "never", "ok": {"ok": True}, "asked": "ok", "some": [None, 1],
        "parts": [0, 1, 2, 3, 4],
    }  # fmt: skip
    assert outcomes(worker) == {"suspended": 6, "completed": 1}
    assert (ended.crashes, ended.retries, ended.attempts) == (0, 0, 7)


async def test_a_failure_that_is_an_outcome_is_kept_by_a_real_store(store: Stubs) -> None:
    agency, seen = Agency(full="car"), []

    async def trip(ctx: Context, args: dict[str, Any]) -> Any:
        try:
            return await Trips(agency).book_trip(ctx, args)
        except ToolError:
            seen.append(await ctx.wait_signal("go"))
            raise

    worker = Worker(store.address)
    worker.workflow("trip")(trip)
    async with TaskStore.connect(store.address) as client, worker:
        task_id = await create(client, "trip", b'{"city": "Oslo"}')
        await until(client, task_id, WAITING)
        await signal(client, task_id, "go", b"1")
        ended = await until(client, task_id, COMPLETED)
    assert json.loads(ended.result.data)["isError"] is True
    assert (seen, agency.booked, agency.asked) == ([1], {}, ["flight", "hotel", "car"])


async def test_a_cancel_is_heard_before_the_next_heartbeat_and_ends_a_wait_at_once(
    store: Stubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store_service.client.heartbeats._MOST_INTERVAL_SECONDS", 100.0)
    begun = asyncio.Event()

    async def running(ctx: Context, args: dict[str, Any]) -> None:
        begun.set()
        await ctx.wait_cancelled(60)
        ctx.check_cancelled()

    async def napping(ctx: Context, args: dict[str, Any]) -> None:
        await ctx.sleep(3600)

    worker = Worker(store.address, lease_seconds=300)
    worker.workflow("running")(running)
    worker.workflow("napping")(napping)
    async with TaskStore.connect(store.address) as client, worker:
        runs, naps = await create(client, "running"), await create(client, "napping")
        await asyncio.wait_for(begun.wait(), 60)
        await until(client, naps, WAITING)
        for task_id in (runs, naps):
            await client.cancel_task(tasks_pb2.CancelTaskRequest(tenant_id=TENANT, task_id=task_id))
        for task_id in (runs, naps):
            await until(client, task_id, CANCELLED)
    assert outcomes(worker) == {"suspended": 1, "cancelled": 1}


async def test_a_worker_is_told_at_once_that_the_execution_deadline_ended_its_task(
    store: Stubs, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store_service.client.heartbeats._MOST_INTERVAL_SECONDS", 300.0)
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def running(ctx: Context, args: dict[str, Any]) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    worker = Worker(store.address, lease_seconds=900)
    worker.workflow("running")(running)
    async with TaskStore.connect(store.address) as client, worker:
        task_id = await create(client, "running", execution_deadline_ms=600_000)
        await asyncio.wait_for(begun.wait(), 60)
        await clock.advance(seconds=600)
        await asyncio.wait_for(stopped.wait(), 60)  # the next heartbeat is minutes away
        failed = await until(client, task_id, FAILED)
    assert failed.error.reason == types_pb2.FAILURE_REASON_EXECUTION_DEADLINE
    assert outcomes(worker) == {"lease_lost": 1}


async def test_the_tasks_of_a_killed_worker_are_taken_over_each_by_the_length_of_its_own_lease(
    store: Stubs, dsn: str, clock: Clock
) -> None:
    async with TaskStore.connect(store.address) as client:
        short, long = await create(client, "sync"), await create(client, "async")
        async with serving(dsn, drain_seconds=60) as its_store:  # whose end no heartbeat under way outlives
            with process(its_store.address):
                for task_id in (short, long):
                    await until(client, task_id, types_pb2.TASK_STATE_LEASED)
        request = claim(workflow="sync", worker_id="w2")
        request.workflows.add(workflow="async", version=1)
        await clock.advance(seconds=LEASE_SECONDS)
        request.request_id = "after the short one"
        assert [task.lease.task_id for task in (await store.leases.LeaseTasks(request)).tasks] == [short]
        await clock.advance(seconds=LONG_LEASE_SECONDS)
        request.request_id, request.worker_id = "after the long one", "w3"
        assert long in [task.lease.task_id for task in (await store.leases.LeaseTasks(request)).tasks]
