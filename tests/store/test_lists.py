"""Pages: of tasks, of a task's history, of its checkpoints. Complete, in order, without a gap and without a repetition."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import grpc
import pytest
from google.protobuf import timestamp_pb2
from taskstore.v1 import leases_pb2, tasks_pb2, types_pb2

from store_service.db.pool import SETTINGS
from store_service.db.queries import Queries
from store_service.db.times import EARLIEST, LATEST
from store_service.model.limits import MIB
from store_service.model.states import TaskState
from tests.conftest import Clock, Stubs
from tests.store.builders import (
    TENANT,
    blocked,
    cancel,
    checkpoint,
    claim,
    complete,
    create,
    create_and_lease,
    fail,
    holding,
    lease,
    new_task,
    refusal_of,
    release,
)


async def pages(store: Stubs, **fields: Any) -> list[list[types_pb2.Task]]:
    """All pages of a list."""
    request = tasks_pb2.ListTasksRequest(**{"tenant_id": TENANT, **fields})
    found = []
    while True:
        answer = await store.tasks.ListTasks(request)
        found.append(list(answer.tasks))
        if not answer.next_page_token:
            return found
        request.page_token = answer.next_page_token


async def ids(store: Stubs, **fields: Any) -> list[str]:
    """The ids of all pages."""
    return [task.task_id for page in await pages(store, **fields) for task in page]


async def create_at_once(store: Stubs, count: int, **fields: Any) -> list[types_pb2.Task]:
    """So many tasks of one instant."""
    items = [new_task(**fields) for _ in range(count)]
    answer = await store.tasks.CreateTasks(tasks_pb2.CreateTasksRequest(items=items))
    return [item.created.task for item in answer.items]


async def test_a_reference_finds_the_last_task_of_its_owner_that_was_created_under_it(store: Stubs, clock: Clock) -> None:
    bob = types_pb2.Owner(issuer="issuer", subject="bob")
    first = await create(store, reference="r")
    await clock.advance(seconds=1)
    second = await create(store, reference="r")
    await clock.advance(seconds=1)
    of_bob = await create(store, reference="r", owner=bob)
    await create(store, tenant_id="globex", reference="r")
    await create(store)

    async def find(**fields: Any) -> types_pb2.Task:
        return (await store.tasks.FindTask(tasks_pb2.FindTaskRequest(tenant_id=TENANT, reference="r", **fields))).task

    assert (await find()).task_id == of_bob.task_id
    assert (await find(owner=first.contract.owner)).task_id == second.task_id
    assert (await find(owner=bob, view=types_pb2.TASK_VIEW_FULL)).input.data == new_task().input.data
    nobody = types_pb2.Owner(issuer="issuer", subject="eve")
    assert (await refusal_of(find(owner=nobody))).reason == "TASK_NOT_FOUND"


async def test_pages_are_whole_newest_first_and_hold_through_ties(store: Stubs, clock: Clock) -> None:
    made: list[types_pb2.Task] = []
    for _ in range(3):
        made += await create_at_once(store, 7)
        await clock.advance(seconds=1)
    await create(store, tenant_id="other")
    assert len({task.created_at.ToNanoseconds() for task in made}) == 3
    made.sort(key=lambda task: (task.created_at.ToNanoseconds(), task.task_id), reverse=True)
    for page_size in (1, 2, 7, 20, 21, 22, 1_000, 0):
        found = await pages(store, page_size=page_size)
        assert [task.task_id for page in found for task in page] == [task.task_id for task in made]
        assert all(len(page) == (page_size or 100) for page in found[:-1])


async def test_tasks_created_while_one_pages_do_not_disturb_the_rest(store: Stubs) -> None:
    old = {task.task_id for task in await create_at_once(store, 10)}
    request = tasks_pb2.ListTasksRequest(tenant_id=TENANT, page_size=4)
    seen: list[str] = []
    while True:
        answer = await store.tasks.ListTasks(request)
        seen += [task.task_id for task in answer.tasks]
        if not answer.next_page_token:
            break
        request.page_token = answer.next_page_token
        await create(store)
    assert len(seen) == len(set(seen)) == 10
    assert set(seen) == old


async def test_tasks_removed_while_a_page_is_read_do_not_end_the_list(
    store: Stubs, dsn: str, database: asyncpg.Connection
) -> None:
    last = await create(store)
    removed = await create(store, workflow="removed")
    await store.tasks.CancelTask(cancel(removed.task_id))
    async with holding(dsn, "LOCK TABLE tenure.outcome IN ACCESS EXCLUSIVE MODE"):
        call = asyncio.ensure_future(store.tasks.ListTasks(tasks_pb2.ListTasksRequest(tenant_id=TENANT, page_size=1)))
        await blocked(database)
        for table in ("task", "task_state", "history"):
            await database.execute(f"DELETE FROM tenure.{table} WHERE task_id = $1::text::uuid", removed.task_id)
    page = await call
    assert list(page.tasks) == []
    rest = await pages(store, page_size=1, page_token=page.next_page_token)
    assert [task.task_id for page in rest for task in page] == [last.task_id]


async def test_filters_narrow_a_list(store: Stubs, clock: Clock) -> None:
    queued = await create(store, workflow="a")
    await clock.advance(seconds=10)
    held = [await create_and_lease_of(store, workflow) for workflow in ("b", "c", "d", "e")]
    await store.leases.CompleteTask(complete(held[1]))
    await store.leases.FailTask(fail(held[2]))
    await store.tasks.CancelTask(cancel(held[3].task_id, force=True))
    by_state: list[tuple[types_pb2.TaskState.ValueType, str]] = [
        (types_pb2.TASK_STATE_QUEUED, queued.task_id),
        (types_pb2.TASK_STATE_LEASED, held[0].task_id),
        (types_pb2.TASK_STATE_COMPLETED, held[1].task_id),
        (types_pb2.TASK_STATE_FAILED, held[2].task_id),
        (types_pb2.TASK_STATE_CANCELLED, held[3].task_id),
    ]
    for state, task_id in by_state:
        assert await ids(store, states=[state]) == await ids(store, states=[state, state]) == [task_id]
    assert await ids(store, states=[types_pb2.TASK_STATE_WAITING]) == []
    assert set(await ids(store, states=[state for state, _ in by_state[:2]])) == {queued.task_id, held[0].task_id}
    assert await ids(store, workflow="c") == [held[1].task_id]
    assert await ids(store, workflow="c", states=[types_pb2.TASK_STATE_FAILED]) == []
    assert await ids(store, tenant_id="nobody") == []
    at = queued.created_at.ToDatetime(tzinfo=UTC)
    microsecond = timedelta(microseconds=1)
    assert await ids(store, created_before=stamp(at + microsecond)) == [queued.task_id]
    assert await ids(store, created_before=stamp(at)) == []
    assert len(await ids(store, created_from=stamp(at))) == 5
    assert len(await ids(store, created_from=stamp(at + microsecond), page_size=1)) == 4


async def create_and_lease_of(store: Stubs, workflow: str) -> types_pb2.Lease:
    await create(store, workflow=workflow)
    return (await lease(store, workflow=workflow)).lease


def stamp(at: datetime) -> timestamp_pb2.Timestamp:
    message = timestamp_pb2.Timestamp()
    message.FromDatetime(at)
    return message


async def test_a_list_carries_no_payloads(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    await store.leases.CompleteTask(complete(held))
    ((task,),) = await pages(store)
    assert not task.HasField("input")
    assert task.WhichOneof("outcome") is None


async def test_a_page_ends_before_it_is_too_large_for_an_answer(store: Stubs) -> None:
    request = new_task()
    request.contract.output_schema = b'"' + b"x" * (256 * 1024 - 2) + b'"'
    for _ in range(40):
        request.request_id += "x"
        await store.tasks.CreateTask(request)
    found = await pages(store, page_size=1_000)
    assert [len(page) for page in found] == [15, 15, 10]
    assert len({task.task_id for page in found for task in page}) == 40


async def test_a_thousand_tasks_fit_into_one_page(store: Stubs) -> None:
    for _ in range(2):
        await create_at_once(store, 500)
    assert [len(page) for page in await pages(store, page_size=1_000)] == [1_000, 0]


async def lines(store: Stubs, task_id: str, **fields: Any) -> Sequence[tasks_pb2.HistoryLine]:
    request = tasks_pb2.ListTaskHistoryRequest(tenant_id=TENANT, task_id=task_id, **fields)
    return (await store.tasks.ListTaskHistory(request)).lines


async def test_a_history_is_dense_and_names_worker_token_and_reason(store: Stubs, clock: Clock) -> None:
    task = await create(store)
    for number in range(60):
        held = (await lease(store, worker_id=f"w{number}")).lease
        await store.leases.ReleaseTask(release(held))
    held = (await lease(store, worker_id="last")).lease
    await store.leases.FailTask(fail(held, message="the reason"))
    found: list[tasks_pb2.HistoryLine] = []
    while page := await lines(store, task.task_id, from_line=len(found), page_size=100):
        found += page
    assert [line.line for line in found] == list(range(123))
    assert len(await lines(store, task.task_id)) == 100
    assert [line.line for line in await lines(store, task.task_id, from_line=121, page_size=256)] == [121, 122]
    assert (found[0].worker_id, found[0].token, found[0].detail) == ("", 0, "")
    assert (found[1].worker_id, found[1].token) == ("w0", 1)
    assert (found[2].worker_id, found[2].token) == ("w0", 1)
    assert (found[-1].worker_id, found[-1].token, found[-1].detail) == ("last", 61, "the reason")
    at = [line.at.ToNanoseconds() for line in found]
    assert at == sorted(at)


async def test_checkpoints_are_paged_by_count_and_by_bytes(store: Stubs, database: asyncpg.Connection) -> None:
    held = (await create_and_lease(store)).lease
    sizes = [3 * MIB, 10, MIB, 4 * MIB, 5, 2 * MIB, 2 * MIB, 1]
    for revision, size in enumerate(sizes):
        data = b"1" if size == 1 else b'"' + b"x" * (size - 2) + b'"'
        await store.leases.AppendCheckpoint(checkpoint(held, revision=revision, data=data, step=f"s{revision}"))
    for page_size, expected in ((0, [[0, 1], [2], [3], [4, 5], [6, 7]]), (1, [[number] for number in range(8)])):
        for under_lease in (True, False):
            found: list[list[int]] = []
            while True:
                start = found[-1][-1] + 1 if found else 0
                page = await steps(store, held, start, page_size, under_lease=under_lease)
                if not page:
                    break
                assert [len(one.payload.data) for one in page] == sizes[start : start + len(page)]
                found.append([one.revision for one in page])
            assert found == expected
    assert await database.fetchval("SELECT checkpoint_bytes FROM tenure.task_state") == sum(sizes)


async def steps(
    store: Stubs, held: types_pb2.Lease, start: int, page_size: int, *, under_lease: bool
) -> Sequence[types_pb2.Checkpoint]:
    if under_lease:
        load = leases_pb2.LoadCheckpointsRequest(lease=held, from_revision=start, page_size=page_size)
        return (await store.leases.LoadCheckpoints(load)).checkpoints
    request = tasks_pb2.ListCheckpointsRequest(tenant_id=TENANT, task_id=held.task_id, from_revision=start, page_size=page_size)
    return (await store.tasks.ListCheckpoints(request)).checkpoints


async def test_checkpoints_are_read_in_every_state_and_name_their_token(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    await store.leases.AppendCheckpoint(checkpoint(held, step="one"))
    await store.leases.ReleaseTask(release(held))
    again = (await lease(store)).lease
    await store.leases.AppendCheckpoint(checkpoint(again, revision=1, step="two"))
    await store.leases.CompleteTask(complete(again))
    found = await steps(store, again, 0, 0, under_lease=False)
    assert [(one.revision, one.step, one.token) for one in found] == [(0, "one", 1), (1, "two", 2)]
    request = tasks_pb2.GetCheckpointRequest(tenant_id=TENANT, task_id=held.task_id, revision=1)
    assert (await store.tasks.GetCheckpoint(request)).checkpoint == found[1]
    request.revision = 2
    refused = await refusal_of(store.tasks.GetCheckpoint(request))
    assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "CHECKPOINT_NOT_FOUND")


@pytest.mark.parametrize("tenant_id", [TENANT, "other"])
async def test_what_surrounds_an_unknown_or_foreign_task_is_not_found(store: Stubs, tenant_id: str) -> None:
    task_id = str(uuid4()) if tenant_id == TENANT else (await create(store)).task_id
    named: Any = {"tenant_id": tenant_id, "task_id": task_id}
    for call in (
        store.tasks.GetTask(tasks_pb2.GetTaskRequest(**named)),
        store.tasks.ListTaskHistory(tasks_pb2.ListTaskHistoryRequest(**named)),
        store.tasks.ListCheckpoints(tasks_pb2.ListCheckpointsRequest(**named)),
        store.tasks.GetCheckpoint(tasks_pb2.GetCheckpointRequest(**named)),
    ):
        refused = await refusal_of(call)
        assert (refused.code, refused.reason, refused.message) == (
            grpc.StatusCode.NOT_FOUND, "TASK_NOT_FOUND", "no such task",
        )  # fmt: skip
    assert not (await store.leases.LeaseTasks(claim(workflow="none"))).tasks


LOOKED_AT = """
SELECT sum((node ->> 'Actual Rows')::float8 * (node ->> 'Actual Loops')::float8),
       sum((node ->> 'Rows Removed by Filter')::float8)
FROM jsonb_path_query($1::jsonb, 'strict $.**') node WHERE node ->> 'Relation Name' IN ('task', 'task_state')
"""


async def looked_at(database: asyncpg.Connection, name: str, *arguments: Any) -> tuple[float, float]:
    """How many rows of tasks a query looks at, and how many of them for nothing, as the store would run it."""
    async with database.transaction():
        for setting, value in SETTINGS.items():
            await database.execute("SELECT set_config($1, $2, true)", setting, value)
        plan = await database.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {Queries('tasks.sql')[name]}", *arguments)
        rows, removed = await database.fetchrow(LOOKED_AT, plan)
    return rows, removed or 0.0


@pytest.mark.parametrize(
    ("states", "workflow"), [(["FAILED"], None), (["QUEUED", "FAILED"], "rare"), (list(TaskState), "rare")]
)
async def test_a_filtered_list_looks_at_nothing_that_does_not_match(
    store: Stubs, database: asyncpg.Connection, states: list[str], workflow: str | None
) -> None:
    for name, count in (("often", 200), ("rare", 3)):
        await create_at_once(store, count, workflow=name)
        for _ in range(2):
            await store.leases.FailTask(fail((await lease(store, workflow=name, limit=1)).lease))
    await create_at_once(store, 50, tenant_id="other")
    await database.execute("ANALYZE")
    wanted = {"states": [types_pb2.TaskState.Value(f"TASK_STATE_{state}") for state in states], "workflow": workflow or ""}
    matching = len(await ids(store, **wanted))
    assert matching in (4, 3)
    for size in (2, 100):
        rows, removed = await looked_at(database, "list_tasks", TENANT, states, workflow, EARLIEST, LATEST, UUID(int=0), size)
        assert rows <= matching
        assert removed == 0
