"""A batch answers each item for itself, in the order asked; no item spoils another."""

import asyncio
import re
import time
from typing import Any

import asyncpg
import grpc
import pytest
from taskstore.v1 import leases_pb2, tasks_pb2, types_pb2

from store_service.model.limits import MIB
from tests.conftest import Stubs
from tests.pair import metrics_at
from tests.store.builders import (
    DAY_MS,
    LOCK_TENANT,
    TENANT,
    assert_invalid,
    blocked,
    cancel,
    checkpoint,
    claim,
    complete,
    create,
    fail,
    get,
    heartbeat,
    holding,
    new_task,
    refusal_in,
    release,
    retry_policy,
    set_policy,
)


def reasons(items: Any) -> list[str | None]:
    """For each item why it was refused, or None."""
    return [refusal_in(item.refused).reason if item.HasField("refused") else None for item in items]


async def leases_of(store: Stubs, count: int, *, tenant_id: str = TENANT) -> list[types_pb2.Lease]:
    """So many leases."""
    items = [new_task(tenant_id=tenant_id) for _ in range(count)]
    assert not any(reasons((await store.tasks.CreateTasks(tasks_pb2.CreateTasksRequest(items=items))).items))
    held: list[types_pb2.Lease] = []
    while len(held) < count:
        found = await store.leases.LeaseTasks(claim(limit=500, tenant_ids=[tenant_id]))
        held += [task.lease for task in found.tasks]
    return held


async def test_creations_are_answered_in_their_order(store: Stubs) -> None:
    known = new_task()
    await store.tasks.CreateTask(known)
    conflict = new_task(request_id=known.request_id, data=b"2")
    twice = new_task(request_id="twice")
    other = new_task(request_id="twice", data=b"2")
    items = [new_task(tenant_id="b"), tasks_pb2.CreateTaskRequest(), known, conflict, twice, new_task(), twice, other]
    answer = (await store.tasks.CreateTasks(tasks_pb2.CreateTasksRequest(items=items))).items
    assert reasons(answer) == [None, "INVALID_INPUT", None, "REQUEST_ID_CONFLICT", None, None, None, "REQUEST_ID_CONFLICT"]
    assert [item.created.replayed for item in answer] == [False, False, True, False, False, False, True, False]
    assert answer[4].created.task.task_id == answer[6].created.task.task_id
    for item, asked in zip(answer, items, strict=True):
        if item.HasField("created"):
            assert item.created.task.tenant_id == asked.tenant_id
            assert (await get(store, item.created.task.task_id, tenant_id=asked.tenant_id)).input == types_pb2.Payload(
                media_type="application/json", data=asked.input.data
            )


def varied(number: int, tenant_id: str = TENANT) -> tasks_pb2.CreateTaskRequest:
    """A creation that differs from its neighbours in all that it asks for; of thirty, none is like another."""
    request = new_task(
        tenant_id=tenant_id, workflow=f"report-{number % 3}", version=1 + number % 2, data=str(number).encode(),
        owner=types_pb2.Owner(issuer="test", subject=f"ann-{number % 3}"), priority=number % 5, deadline_ms=number % 2 * DAY_MS,
        ttl_ms=1 + number % 2, reference=f"order-{number}" if number % 2 else "",
    )  # fmt: skip
    for key in range(number % 4):
        request.early_answers.add(key=f"{number}-{key}", response=types_pb2.Payload(data=b"{}"))
    return request


async def test_each_of_five_hundred_mixed_creations_is_answered_and_made_as_it_was_asked_for(store: Stubs) -> None:
    await set_policy(store, tenant_id="full", outstanding=10, leased=10)
    await set_policy(store, leased=500)
    known = [varied(number) for number in range(200)]
    await store.tasks.CreateTasks(tasks_pb2.CreateTasksRequest(items=known))
    items: list[tasks_pb2.CreateTaskRequest] = []
    for number in range(100):
        conflict = varied(1_000 + number)
        conflict.request_id = known[100 + number].request_id
        other = tasks_pb2.CreateTaskRequest() if number % 2 else varied(number, "b")
        items += [varied(number), known[number], conflict, varied(number, "full"), other]
    answer = (await store.tasks.CreateTasks(tasks_pb2.CreateTasksRequest(items=items))).items
    for number in range(100):
        full, invalid = "OUTSTANDING_LIMIT" if number >= 10 else None, "INVALID_INPUT" if number % 2 else None
        assert reasons(answer[5 * number : 5 * number + 5]) == [None, None, "REQUEST_ID_CONFLICT", full, invalid], number
    made = [(item.created, asked) for item, asked in zip(answer, items, strict=True) if item.HasField("created")]
    assert [created.replayed for created, _ in made] == [asked in known for _, asked in made]
    reads = [
        tasks_pb2.GetTaskRequest(tenant_id=asked.tenant_id, task_id=created.task.task_id, view=types_pb2.TASK_VIEW_FULL)
        for created, asked in made
    ]
    kept = [item.task for item in (await store.tasks.GetTasks(tasks_pb2.GetTasksRequest(items=reads))).items]
    for (created, asked), task in zip(made, kept, strict=True):
        asked.contract.poll_interval_ms = task.contract.poll_interval_ms
        assert (task.tenant_id, task.contract, task.priority, task.input.data) == (
            asked.tenant_id, asked.contract, asked.priority, asked.input.data,
        )  # fmt: skip
        task.ClearField("input")
        task.read_at.CopyFrom(created.task.read_at)
        assert created.task == task, "the answer is what a read says"
    found = await store.leases.LeaseTasks(claim(workflow="report-1", version=2, limit=500, tenant_ids=[TENANT]))
    assert {task.early_answers for task in found.tasks} == {1, 3}
    assert all(task.early_answers == int(task.input.data) % 4 for task in found.tasks)


async def test_the_outstanding_limit_is_counted_within_a_batch_and_per_tenant(store: Stubs) -> None:
    await set_policy(store, outstanding=3, leased=1)
    known = new_task()
    await store.tasks.CreateTask(known)
    items = [new_task(), new_task(tenant_id="b"), new_task(), known, new_task(), new_task(tenant_id="b"), new_task()]
    answer = (await store.tasks.CreateTasks(tasks_pb2.CreateTasksRequest(items=items))).items
    assert reasons(answer) == [None, None, None, None, "OUTSTANDING_LIMIT", None, "OUTSTANDING_LIMIT"]
    refused = refusal_in(answer[4].refused)
    assert (refused.code, refused.retry_after_ms) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 1_000)
    again = (await store.tasks.CreateTasks(tasks_pb2.CreateTasksRequest(items=[known, new_task()]))).items
    assert reasons(again) == [None, "OUTSTANDING_LIMIT"]
    await store.tasks.CancelTask(cancel(answer[0].created.task.task_id))
    await create(store)


async def test_of_many_creations_at_once_just_the_limit_is_admitted(store: Stubs, second_store: Stubs) -> None:
    await set_policy(store, outstanding=7, leased=1)
    calls = [each.tasks.CreateTask(new_task()) for _ in range(20) for each in (store, second_store)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(answer, tasks_pb2.CreateTaskResponse) for answer in answers) == 7


async def test_heartbeats_are_answered_in_their_order(store: Stubs) -> None:
    held = await leases_of(store, 3)
    wrong = types_pb2.Lease()
    wrong.CopyFrom(held[1])
    wrong.token += 1
    items = [heartbeat(held[2]), heartbeat(wrong), leases_pb2.HeartbeatTaskRequest(), heartbeat(held[0]), heartbeat(held[2])]
    items[4].lease_ms = 900_000
    answer = (await store.leases.HeartbeatTasks(leases_pb2.HeartbeatTasksRequest(items=items))).items
    assert reasons(answer) == [None, "LEASE_LOST", "INVALID_INPUT", None, None]
    assert answer[4].extended.expires_at.seconds - answer[0].extended.expires_at.seconds > 800
    assert (await get(store, held[2].task_id)).lease_expires_at == answer[4].extended.expires_at


async def test_checkpoints_of_one_task_in_one_batch_are_appended_in_their_order(store: Stubs) -> None:
    held = await leases_of(store, 2)
    items = [
        checkpoint(held[0], revision=0), checkpoint(held[0], revision=1), checkpoint(held[1], revision=5),
        checkpoint(held[0], revision=1), checkpoint(held[0], revision=2), checkpoint(held[1], revision=0),
    ]  # fmt: skip
    answer = (await store.leases.AppendCheckpoints(leases_pb2.AppendCheckpointsRequest(items=items))).items
    assert reasons(answer) == [None, None, "REVISION_CONFLICT", "REVISION_CONFLICT", None, None]
    assert [(await get(store, one.task_id)).checkpoints for one in held] == [3, 1]


async def test_completions_and_failures_are_answered_in_their_order(store: Stubs) -> None:
    held = await leases_of(store, 6)
    items = [complete(held[0]), complete(held[1], b"{"), complete(held[0], b"2"), complete(held[0]), complete(held[2])]
    answer = (await store.leases.CompleteTasks(leases_pb2.CompleteTasksRequest(items=items))).items
    assert reasons(answer) == [None, "INVALID_INPUT", "LEASE_LOST", None, None]
    failures = [fail(held[3]), fail(held[2]), fail(held[4], retry=retry_policy()), fail(held[5], message="")]
    failed = (await store.leases.FailTasks(leases_pb2.FailTasksRequest(items=failures))).items
    assert reasons(failed) == [None, "LEASE_LOST", None, "INVALID_INPUT"]
    assert [item.failed.HasField("retry_at") for item in failed] == [False, False, True, False]


async def test_completing_and_leasing_is_one_call(store: Stubs) -> None:
    held = await leases_of(store, 2)
    await create(store)
    both = leases_pb2.CompleteAndLeaseTasksRequest(items=[complete(held[0]), complete(held[1], b"{")], lease=claim())
    answer = await store.leases.CompleteAndLeaseTasks(both)
    assert reasons(answer.items) == [None, "INVALID_INPUT"]
    assert len(answer.tasks) == 1
    both.lease.limit = 0
    await assert_invalid(store.leases.CompleteAndLeaseTasks(both), "limit")


async def test_reads_are_answered_in_their_order(store: Stubs) -> None:
    tasks = [await create(store, owner=types_pb2.Owner(issuer="i", subject=subject)) for subject in ("ann", "bob")]
    ann = types_pb2.Owner(issuer="i", subject="ann")
    read = tasks_pb2.GetTaskRequest
    ids = [task.task_id for task in tasks]
    items = [
        read(tenant_id=TENANT, task_id=ids[1]), read(tenant_id=TENANT, task_id=ids[1], owner=ann), read(),
        read(tenant_id="b", task_id=ids[0]), read(tenant_id=TENANT, task_id=ids[0], owner=ann),
        read(tenant_id=TENANT, task_id=ids[0]), read(tenant_id=TENANT, task_id=ids[0], view=types_pb2.TASK_VIEW_FULL),
    ]  # fmt: skip
    answer = (await store.tasks.GetTasks(tasks_pb2.GetTasksRequest(items=items))).items
    assert reasons(answer) == [None, "TASK_NOT_FOUND", "INVALID_INPUT", "TASK_NOT_FOUND", None, None, None]
    assert [item.task.task_id for item in answer if item.HasField("task")] == [ids[1], ids[0], ids[0], ids[0]]
    assert [item.task.HasField("input") for item in answer] == [False] * 6 + [True]
    unknown, foreign = (refusal_in(answer[position].refused) for position in (3, 1))
    assert unknown == foreign


async def test_a_batch_of_more_than_500_is_refused_and_of_500_taken(store: Stubs) -> None:
    held = await leases_of(store, 2)
    requests: list[tuple[Any, Any, Any]] = [
        (store.tasks.CreateTasks, tasks_pb2.CreateTasksRequest, new_task()),
        (store.tasks.GetTasks, tasks_pb2.GetTasksRequest, tasks_pb2.GetTaskRequest(tenant_id=TENANT, task_id=held[0].task_id)),
        (store.leases.HeartbeatTasks, leases_pb2.HeartbeatTasksRequest, heartbeat(held[0])),
        (store.leases.AppendCheckpoints, leases_pb2.AppendCheckpointsRequest, checkpoint(held[0], revision=7)),
        (store.leases.CompleteTasks, leases_pb2.CompleteTasksRequest, complete(held[0])),
        (store.leases.FailTasks, leases_pb2.FailTasksRequest, fail(held[1])),
        (store.leases.ReleaseTasks, leases_pb2.ReleaseTasksRequest, release(held[1])),
    ]
    for call, request, item in requests:
        await assert_invalid(call(request(items=[item] * 501)), "items")
        await assert_invalid(call(request()), "items")
    for call, request, item in requests[:2]:
        assert len((await call(request(items=[item] * 500))).items) == 500


async def test_five_hundred_different_tasks_in_one_batch(store: Stubs) -> None:
    await set_policy(store, outstanding=500, leased=500)
    held = await leases_of(store, 500)
    assert len({one.task_id for one in held}) == 500
    beats = leases_pb2.HeartbeatTasksRequest(items=[heartbeat(one) for one in held])
    assert not any(reasons((await store.leases.HeartbeatTasks(beats)).items))
    done = leases_pb2.CompleteTasksRequest(items=[complete(one, str(number).encode()) for number, one in enumerate(held)])
    assert not any(reasons((await store.leases.CompleteTasks(done)).items))
    reads = [tasks_pb2.GetTaskRequest(tenant_id=TENANT, task_id=one.task_id, view=types_pb2.TASK_VIEW_OUTCOME) for one in held]
    answer = (await store.tasks.GetTasks(tasks_pb2.GetTasksRequest(items=reads))).items
    assert [item.task.result.data for item in answer] == [str(number).encode() for number in range(500)]


async def test_an_answer_is_full_at_four_mebibytes_and_the_rest_is_asked_for_again(store: Stubs) -> None:
    held = await leases_of(store, 4)
    sizes = (4 * MIB, 10, 3 * MIB, 2 * MIB)
    for one, size in zip(held, sizes, strict=True):
        await store.leases.CompleteTask(complete(one, b'"' + b"x" * (size - 2) + b'"'))
    left = [tasks_pb2.GetTaskRequest(tenant_id=TENANT, task_id=one.task_id, view=types_pb2.TASK_VIEW_OUTCOME) for one in held]
    rounds = []
    while left:
        answer = (await store.tasks.GetTasks(tasks_pb2.GetTasksRequest(items=left))).items
        assert {reason for reason in reasons(answer) if reason} <= {"BATCH_FULL"}
        rounds.append([len(item.task.result.data) for item in answer if item.HasField("task")])
        left = [asked for asked, item in zip(left, answer, strict=True) if item.HasField("refused")]
    assert rounds == [[4 * MIB], [10, 3 * MIB], [2 * MIB]]
    singles = [get(store, one.task_id) for one in held]
    assert tuple(len(task.result.data) for task in await asyncio.gather(*singles)) == sizes


async def test_contracts_count_towards_a_full_answer(store: Stubs) -> None:
    request = new_task()
    request.contract.output_schema = b'"' + b"x" * (256 * 1024 - 2) + b'"'
    ids = []
    for _ in range(40):
        request.request_id += "x"
        ids.append((await store.tasks.CreateTask(request)).task.task_id)
    reads = tasks_pb2.GetTasksRequest(items=[tasks_pb2.GetTaskRequest(tenant_id=TENANT, task_id=one) for one in ids])
    answer = (await store.tasks.GetTasks(reads)).items
    assert reasons(answer) == [None] * 15 + ["BATCH_FULL"] * 25


@pytest.mark.parametrize("count", [60])
async def test_single_calls_at_once_each_get_their_own_answer(store: Stubs, count: int) -> None:
    held = await leases_of(store, count)
    odd = [complete(one) if number % 3 else complete(one, b"{") for number, one in enumerate(held)]
    answers = await asyncio.gather(*(store.leases.CompleteTask(one) for one in odd), return_exceptions=True)
    assert [isinstance(answer, grpc.aio.AioRpcError) for answer in answers] == [not number % 3 for number in range(count)]


async def test_early_answers_count_towards_a_full_statement(store: Stubs, dsn: str, database: asyncpg.Connection) -> None:
    await create(store)
    items = [new_task() for _ in range(6)]
    for item in items:
        for number in range(9):
            item.early_answers.add(key=f"{number}", response=types_pb2.Payload(data=b'"' + b"x" * 250 * 1024 + b'"'))
    async with holding(dsn, LOCK_TENANT, TENANT):
        calls = [asyncio.ensure_future(store.tasks.CreateTask(item)) for item in items]
        await blocked(database)
        for _ in range(3):  # all of them wait when what was said later is answered
            await store.leases.LeaseTasks(claim(workflow="nobody's"))
    await asyncio.gather(*calls)
    text = await asyncio.to_thread(metrics_at, store.admin_port)
    assert f'tenure_store_batch_items_bucket{{le="1.0",operation="create_tasks"}} {1 + len(items)}.0' in text


@pytest.mark.batching("it is about reads that share a statement")
async def test_a_batch_of_creations_that_is_repeated_is_read_together(store: Stubs) -> None:
    items = tasks_pb2.CreateTasksRequest(items=[new_task() for _ in range(100)])
    first = (await store.tasks.CreateTasks(items)).items
    again = (await store.tasks.CreateTasks(items)).items
    assert all(item.created.replayed for item in again)
    assert [item.created.task.task_id for item in again] == [item.created.task.task_id for item in first]
    text = await asyncio.to_thread(metrics_at, store.admin_port)
    count = re.search(r'tenure_store_batch_items_count{operation="get_tasks"} (\d+)', text)
    assert count is not None
    assert int(count[1]) < 10


async def test_a_batch_over_many_tenants_costs_each_of_them_the_same(database: asyncpg.Connection) -> None:
    await database.execute("INSERT INTO tenure.tenant (tenant_id) SELECT 't' || n FROM generate_series(1, 1000) n")
    await database.execute(
        "INSERT INTO tenure.lane (tenant_id, workflow, version) SELECT tenant_id, 'w', 1 FROM tenure.tenant; ANALYZE"
    )

    async def seconds(tenants: int) -> float:
        """The best of some that count one task more, each taken back."""
        best = 60.0
        for sign in (1, -1) * 3:
            started = time.perf_counter()
            await database.execute(
                "SELECT tenure.apply_deltas((SELECT array_agg((x.tenant_id, 'w', 1, $2::int, 0, $2::int, NULL)::tenure.delta) "
                "FROM (SELECT tenant_id FROM tenure.tenant ORDER BY tenant_id LIMIT $1) x))",
                tenants,
                sign,
            )
            best = min(best, time.perf_counter() - started)
        return best

    assert await seconds(1_000) < 50 * await seconds(50)  # as many times the tenants: 20; compared with each other: 400
