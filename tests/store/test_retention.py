"""What is over is removed when its time has come, not before, and leaves a tombstone each."""

import asyncio
import hashlib
import json
from uuid import uuid4

import asyncpg
import grpc
from taskstore.v1 import leases_pb2, retention_pb2, tasks_pb2, types_pb2

from tests.conftest import Clock, Stubs
from tests.descriptors import methods
from tests.store.builders import (
    DAY_MS,
    LOCK_TENANT,
    TENANT,
    blocked,
    bring_along,
    cancel,
    checkpoint,
    complete,
    create,
    create_and_lease,
    fail,
    get,
    holding,
    lease,
    new_task,
    refusal_of,
    set_policy,
)
from tests.store.retention import DAY, HOUR_MS, OPERATOR, REMOVE_ONE, cleanup_lease, ended, fence, remove, remove_tasks


async def test_nothing_is_removed_before_its_handle_and_then_its_retention_have_ended(store: Stubs, clock: Clock) -> None:
    await set_policy(store, retention_ms=2 * DAY_MS)
    task_id = await ended(store, ttl_ms=3 * DAY_MS)
    task = await get(store, task_id)
    assert task.handle_expires_at.ToNanoseconds() - task.ended_at.ToNanoseconds() == 3 * DAY_MS * 10**6
    for seconds in (DAY, DAY, DAY, DAY, DAY - 30):
        await clock.advance(seconds=seconds)
        assert not await remove(store)
    await get(store, task_id)
    await clock.advance(seconds=31)
    (tombstone,) = await remove(store)
    assert (tombstone.task_id, tombstone.cursor) == (task_id, 1)


async def test_what_lives_is_never_removed(store: Stubs, clock: Clock) -> None:
    queued = await create(store, workflow="other", ttl_ms=1)
    held = (await create_and_lease(store, ttl_ms=1)).lease
    await clock.advance(seconds=1_000 * DAY)
    assert not await remove(store)
    for task_id in (queued.task_id, held.task_id):
        await get(store, task_id)


async def test_what_is_removed_is_gone_and_its_request_id_is_free(
    store: Stubs, clock: Clock, database: asyncpg.Connection
) -> None:
    request = new_task(ttl_ms=HOUR_MS)
    task = (await store.tasks.CreateTask(request)).task
    held = (await lease(store)).lease
    await store.leases.AppendCheckpoint(checkpoint(held))
    await store.leases.ReportProgress(leases_pb2.ReportProgressRequest(lease=held, value=1))
    await store.leases.CompleteTask(complete(held))
    other = await create(store)
    ended_at = (await get(store, task.task_id)).ended_at
    await clock.advance(seconds=2 * DAY)
    (tombstone,) = await remove(store)
    assert tombstone == retention_pb2.Tombstone(
        tenant_id=TENANT, cursor=1, task_id=task.task_id, tool="report", workflow="report", workflow_version=1,
        state=types_pb2.TASK_STATE_COMPLETED, created_at=task.created_at, ended_at=ended_at, removed_at=tombstone.removed_at,
        removed_by=OPERATOR, history_lines=3, history_digest=tombstone.history_digest,
    )  # fmt: skip
    for call in (
        store.tasks.GetTask(tasks_pb2.GetTaskRequest(tenant_id=TENANT, task_id=task.task_id)),
        store.tasks.CancelTask(cancel(task.task_id)),
        store.tasks.ListTaskHistory(tasks_pb2.ListTaskHistoryRequest(tenant_id=TENANT, task_id=task.task_id)),
    ):
        refused = await refusal_of(call)
        assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "TASK_NOT_FOUND")
    for table in ("task", "task_state", "history"):
        assert await database.fetchval(f"SELECT count(*) FROM tenure.{table}") == 1
    for table in ("checkpoint", "outcome", "progress"):
        assert await database.fetchval(f"SELECT count(*) FROM tenure.{table}") == 0
    assert (await get(store, other.task_id)).change == 1
    again = await store.tasks.CreateTask(request)
    assert not again.replayed
    assert again.task.task_id != task.task_id


async def test_tombstones_are_dense_per_tenant_and_paged(store: Stubs, clock: Clock) -> None:
    ids = []
    for _ in range(7):
        ids.append(await ended(store))
        await clock.advance(seconds=1)
    await store.tasks.CancelTask(cancel((await create(store, tenant_id="b", ttl_ms=1)).task_id, tenant_id="b"))
    await clock.advance(seconds=2 * DAY)
    assert [one.task_id for one in await remove(store, limit=3)] == ids[:3]
    assert [one.cursor for one in await remove(store, tenant_id="b")] == [1]
    assert [(one.cursor, one.task_id) for one in await remove(store)] == list(enumerate(ids, start=1))[3:]
    assert not await remove(store)
    found: list[tuple[int, str]] = []
    while True:
        after = found[-1][0] if found else 0
        request = retention_pb2.ListTombstonesRequest(tenant_id=TENANT, after_cursor=after, page_size=2)
        page = (await store.retention.ListTombstones(request)).tombstones
        found += [(one.cursor, one.task_id) for one in page]
        if len(page) < 2:
            break
    assert found == list(enumerate(ids, start=1))
    get_one = retention_pb2.GetTombstoneRequest(tenant_id=TENANT, task_id=ids[4])
    assert (await store.retention.GetTombstone(get_one)).tombstone.cursor == 5
    for tenant_id, task_id in (("b", ids[4]), (TENANT, str(uuid4()))):
        request_one = retention_pb2.GetTombstoneRequest(tenant_id=tenant_id, task_id=task_id)
        refused = await refusal_of(store.retention.GetTombstone(request_one))
        assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "TOMBSTONE_NOT_FOUND")


async def test_removals_at_once_remove_each_task_once(
    store: Stubs, second_store: Stubs, clock: Clock, dsn: str, database: asyncpg.Connection
) -> None:
    ids = [await ended(store) for _ in range(12)]
    await clock.advance(seconds=2 * DAY)
    request = remove_tasks(await cleanup_lease(store), limit=5)
    async with holding(dsn, LOCK_TENANT, TENANT):
        calls = [asyncio.ensure_future(each.retention.RemoveTasks(request)) for each in (store, second_store, store)]
        await blocked(database, count=3)
    stones = [one for answer in await asyncio.gather(*calls) for one in answer.tombstones]
    assert sorted(one.task_id for one in stones) == sorted(ids)
    assert sorted(one.cursor for one in stones) == list(range(1, 13))


async def test_a_cursor_becomes_visible_only_after_all_lower_ones(
    store: Stubs, clock: Clock, dsn: str, database: asyncpg.Connection
) -> None:
    """FIX-5, case 56: the second removal waits for the first one's commit before it takes its numbers."""
    for _ in range(2):
        await ended(store)
    await clock.advance(seconds=2 * DAY)
    lease = await cleanup_lease(store)
    async with holding(dsn, REMOVE_ONE, *fence(lease)):
        later = asyncio.ensure_future(store.retention.RemoveTasks(remove_tasks(lease)))
        await blocked(database)
        request = retention_pb2.ListTombstonesRequest(tenant_id=TENANT)
        assert not (await store.retention.ListTombstones(request)).tombstones
    assert [one.cursor for one in (await later).tombstones] == [2]


async def test_a_shorter_retention_holds_at_once_and_a_longer_one_too(store: Stubs, clock: Clock) -> None:
    await set_policy(store, retention_ms=10 * DAY_MS)
    await ended(store)
    await clock.advance(seconds=5 * DAY)
    assert not await remove(store)
    await set_policy(store, retention_ms=DAY_MS)
    assert len(await remove(store)) == 1


async def test_a_task_whose_handle_lasts_long_holds_up_no_other(store: Stubs, clock: Clock) -> None:
    for _ in range(3):
        await ended(store, ttl_ms=100 * DAY_MS)
    short = await ended(store, ttl_ms=HOUR_MS)
    await clock.advance(seconds=2 * DAY)
    assert [one.task_id for one in await remove(store, limit=1)] == [short]


async def test_every_way_to_end_leads_to_removal(store: Stubs, clock: Clock, database: asyncpg.Connection) -> None:
    for number in range(3):
        held = (await create_and_lease(store, ttl_ms=HOUR_MS)).lease
        match number:
            case 0:
                await store.leases.CompleteTask(complete(held))
            case 1:
                await store.leases.FailTask(fail(held))
            case _:
                await store.leases.ConfirmCancel(leases_pb2.ConfirmCancelRequest(lease=held))
    late = await create(store, ttl_ms=HOUR_MS, deadline_ms=1_000)
    await clock.advance(seconds=2)
    await bring_along(store, database)
    await clock.advance(seconds=2 * DAY)
    stones = await remove(store)
    states = [types_pb2.TaskState.Name(one.state).removeprefix("TASK_STATE_") for one in stones]
    assert states[:3] == ["COMPLETED", "FAILED", "CANCELLED"]
    assert (states[3], stones[3].task_id) == ("FAILED", late.task_id)


async def test_a_tombstone_tells_the_history_whose_digest_it_has(store: Stubs, clock: Clock) -> None:
    held = (await create_and_lease(store, ttl_ms=1)).lease
    await store.leases.FailTask(fail(held, message='it "broke"\n\té \u2028 \x7f'))
    request = tasks_pb2.ListTaskHistoryRequest(tenant_id=TENANT, task_id=held.task_id)
    lines = (await store.tasks.ListTaskHistory(request)).lines
    await clock.advance(seconds=2 * DAY)
    (removed,) = await remove(store)
    get_one = retention_pb2.GetTombstoneRequest(tenant_id=TENANT, task_id=held.task_id)
    tombstone = (await store.retention.GetTombstone(get_one)).tombstone
    told = [
        [
            line.line, tasks_pb2.HistoryEvent.Name(line.event).removeprefix("HISTORY_EVENT_"), line.at.ToMicroseconds(),
            line.worker_id or None, line.token or None, line.detail,
        ]
        for line in lines
    ]  # fmt: skip
    assert tombstone.history.decode() == "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in told)
    assert tombstone.history_digest == hashlib.sha256(tombstone.history).digest() == removed.history_digest
    assert tombstone.history_lines == len(lines) == 3
    assert not removed.history
    listed = retention_pb2.ListTombstonesRequest(tenant_id=TENANT)
    assert (await store.retention.ListTombstones(listed)).tombstones == [removed]
    listed.with_history = True
    assert (await store.retention.ListTombstones(listed)).tombstones == [tombstone]


async def test_a_history_longer_than_a_mebibyte_is_digested_and_not_kept_and_pages_of_histories_end_in_time(
    store: Stubs, clock: Clock, database: asyncpg.Connection
) -> None:
    ids = [await ended(store) for _ in range(8)]
    for number, (task_id, lines) in enumerate(zip(ids, (1_200, *[900] * 7), strict=True)):
        await database.execute(
            "INSERT INTO tenure.history SELECT tenant_id, task_id, n, 'RELEASED', at, 'w', 1, repeat('x', 1000) "
            "FROM tenure.history, generate_series(2, $2::int) n WHERE task_id = $1::text::uuid AND line = 0",
            task_id, lines,
        )  # fmt: skip
        await database.execute(
            "UPDATE tenure.task_state SET lines = $2, handle_ends_at = handle_ends_at + $3 * interval '1 s' "
            "WHERE task_id = $1::text::uuid", task_id, lines + 1, number,
        )  # fmt: skip
    await clock.advance(seconds=2 * DAY)
    assert len(await remove(store)) == 8
    found: list[retention_pb2.Tombstone] = []
    pages = []
    while True:
        request = retention_pb2.ListTombstonesRequest(tenant_id=TENANT, after_cursor=len(found), with_history=True)
        page = (await store.retention.ListTombstones(request)).tombstones
        found += page
        pages.append(len(page))
        if not page:
            break
    assert [one.task_id for one in found] == ids
    assert (found[0].history, found[0].history_lines) == (b"", 1_201)
    assert all(900_000 < len(one.history) <= 2**20 for one in found[1:])
    assert len(pages) > 2
    assert max(pages) < 8


async def test_tasks_that_have_much_are_removed_in_smaller_steps(
    store: Stubs, clock: Clock, database: asyncpg.Connection
) -> None:
    for number, (checkpoints, mebibytes) in enumerate(((9_000, 0), (9_000, 0), (9_000, 40), (0, 40), (0, 64), (0, 0))):
        await database.execute(
            "UPDATE tenure.task_state SET checkpoints = $2, checkpoint_bytes = $3::bigint << 20, "
            "handle_ends_at = handle_ends_at + $4 * interval '1 s' WHERE task_id = $1::text::uuid",
            await ended(store), checkpoints, mebibytes, number,
        )  # fmt: skip
    await clock.advance(seconds=2 * DAY)
    lease = await cleanup_lease(store)
    steps = [(await store.retention.RemoveTasks(remove_tasks(lease))).tombstones for _ in range(5)]
    assert [len(step) for step in steps] == [2, 1, 1, 2, 0]
    assert [one.cursor for step in steps for one in step] == [1, 2, 3, 4, 5, 6]


def test_nobody_can_ask_for_an_id_so_none_of_a_task_that_is_gone_comes_back() -> None:
    """The store makes the ids of tasks: a request to create or to fork one has no field for it."""
    for name in ("CreateTask", "ForkTask"):
        about = methods()[name].input_type
        assert {field.name for field in about.fields if "id" in field.name.split("_")} == {
            "CreateTask": {"tenant_id", "request_id"},
            "ForkTask": {"tenant_id", "request_id", "source_task_id"},
        }[name]
