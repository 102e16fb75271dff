"""What happens to a tenant, and to who asks for it, while it moves: nobody is at work in both cells, whatever breaks off."""

import asyncio
from typing import Any

import asyncpg
import grpc
import pytest
from taskstore.v1 import tasks_pb2, tenants_pb2, types_pb2

from store_service.db.moves import MoveRows, open_move
from store_service.model.moves import MoveError
from tests.conftest import Clock, Stubs
from tests.databases import Databases
from tests.store.builders import (
    TENANT,
    assert_lease_lost,
    cancel,
    claim,
    complete,
    create,
    create_and_lease,
    get,
    heartbeat,
    holding,
    lease,
    new_task,
    refusal_in,
    until,
)
from tests.store.moving import STEPS, BrokenOff, Cell, assert_moved, counts, kept, move, stay


async def test_while_it_drains_work_ends_and_tasks_come_and_nothing_is_leased(dsn: str, store: Stubs, there: Cell) -> None:
    held = (await create_and_lease(store)).lease
    with pytest.raises(BrokenOff):
        await move(dsn, there.dsn, until="nothing new")
    await store.leases.HeartbeatTask(heartbeat(held))
    created = await create(store)
    await create(store, workflow="new")
    assert list((await store.leases.LeaseTasks(claim())).tasks) == []
    assert list((await store.leases.LeaseTasks(claim(workflow="new"))).tasks) == []
    moving = asyncio.create_task(move(dsn, there.dsn, drain_seconds=60))
    await store.leases.CompleteTask(complete(held))
    async with asyncio.timeout(60):
        assert "it is frozen; 0 leases were not waited for" in await moving
    assert (await get(there.store, created.task_id)).state == types_pb2.TASK_STATE_QUEUED
    assert (await get(there.store, held.task_id)).state == types_pb2.TASK_STATE_COMPLETED


async def test_a_frozen_tenant_is_refused_and_nothing_of_it_changes_and_others_do_not_notice(
    dsn: str, store: Stubs, database: asyncpg.Connection, clock: Clock, there: Cell
) -> None:
    held = (await create_and_lease(store)).lease
    due = await create(store, deadline_ms=1_000)
    other = await create(store, tenant_id="globex")
    with pytest.raises(BrokenOff):
        await move(dsn, there.dsn, until="frozen")
    frozen = await kept(database)
    await clock.advance(seconds=60)
    await assert_moved(store.tasks.GetTask(tasks_pb2.GetTaskRequest(tenant_id=TENANT, task_id=due.task_id)))
    await assert_moved(store.tasks.CancelTask(cancel(due.task_id)))
    await assert_moved(store.tenants.GetTenant(tenants_pb2.GetTenantRequest(tenant_id=TENANT)))
    await assert_lease_lost(store.leases.CompleteTask(complete(held)))
    both = tasks_pb2.CreateTasksRequest(items=[new_task(), new_task(tenant_id="globex"), new_task()])
    items = (await store.tasks.CreateTasks(both)).items
    assert [item.WhichOneof("outcome") for item in items] == ["refused", "created", "refused"]
    assert refusal_in(items[0].refused).reason == "TENANT_MOVED"
    reads = [
        tasks_pb2.GetTaskRequest(tenant_id=tenant_id, task_id=task_id)
        for tenant_id, task_id in ((TENANT, due.task_id), ("globex", other.task_id), (TENANT, other.task_id))
    ]
    read = (await store.tasks.GetTasks(tasks_pb2.GetTasksRequest(items=reads))).items
    assert [refusal_in(item.refused).reason if item.HasField("refused") else item.task.task_id for item in read] == [
        "TENANT_MOVED", other.task_id, "TENANT_MOVED"
    ]  # fmt: skip
    watched = [
        tasks_pb2.WatchedTask(tenant_id=tenant_id, task_id=task_id, number=number)
        for number, (tenant_id, task_id) in enumerate([(TENANT, due.task_id), ("globex", other.task_id)], start=1)
    ]
    seen: dict[int, Any] = {}
    watch = store.tasks.WatchTasks(iter([tasks_pb2.WatchTasksRequest(add=watched)]))
    async for told in watch:
        seen |= {item.number: item for item in told.items}
        if len(seen) == 2:
            watch.cancel()
            break
    assert refusal_in(seen[1].refused).reason == "TENANT_MOVED"
    assert seen[2].task.task_id == other.task_id
    taken = (await store.leases.LeaseTasks(claim(limit=10))).tasks
    assert {one.lease.tenant_id for one in taken} == {"globex"}
    assert await kept(database) == frozen
    await move(dsn, there.dsn)


@pytest.mark.parametrize("step", STEPS)
async def test_a_move_that_broke_off_anywhere_goes_on_and_the_tenant_never_lives_twice(
    dsn: str, store: Stubs, there: Cell, database: asyncpg.Connection, step: str
) -> None:
    held = (await create_and_lease(store)).lease
    created = await create(store)
    with pytest.raises(BrokenOff):
        await move(dsn, there.dsn, until=step)
    answers = [await answers_for(cell, created.task_id) for cell in (store, there.store)]
    assert answers in ([True, False], [False, False], [False, True])
    assert (True in answers) == (step in ("awaits it", "nothing new", "lives in the second", "nothing of it is left"))
    for _ in range(2):  # and once more, when all is done
        await move(dsn, there.dsn)
        assert not await answers_for(store, created.task_id)
        assert await answers_for(there.store, created.task_id)
        assert await counts(database) == {}
    assert (await counts(there.database))["task"] == 2
    await assert_lease_lost(there.store.leases.CompleteTask(complete(held)))


async def answers_for(store: Stubs, task_id: str) -> bool:
    """Whether a cell takes the tenant for its own."""
    try:
        await get(store, task_id)
    except grpc.aio.AioRpcError as error:
        return error.code() is not grpc.StatusCode.UNAVAILABLE
    return True


@pytest.mark.parametrize("step", STEPS[:4])
async def test_a_move_that_has_not_come_to_its_end_is_taken_back(
    dsn: str, store: Stubs, there: Cell, database: asyncpg.Connection, step: str
) -> None:
    created = await create(store)
    with pytest.raises(BrokenOff):
        await move(dsn, there.dsn, until=step)
    await stay(dsn, there.dsn)
    assert await counts(there.database) == {}
    await assert_moved(get(there.store, created.task_id))
    taken = await lease(store)
    assert taken.lease.task_id == created.task_id
    await store.leases.CompleteTask(complete(taken.lease))
    await move(dsn, there.dsn)
    assert (await get(there.store, created.task_id)).state == types_pb2.TASK_STATE_COMPLETED
    with pytest.raises(MoveError, match="it has left the first database"):
        await stay(dsn, there.dsn)


async def test_what_was_under_way_when_it_was_frozen_is_waited_for_and_comes_along(
    dsn: str, store: Stubs, there: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    created, looks, look = await create(store), 0, MoveRows._under_way

    async def counted(rows: MoveRows) -> set[str]:
        nonlocal looks
        found = await look(rows)
        looks += bool(found) and rows.identity.endswith(dsn.rpartition("/")[2])
        return found

    monkeypatch.setattr(MoveRows, "_under_way", counted)
    late = "INSERT INTO tenure.history (tenant_id, task_id, line, event, at) VALUES ($1, $2::text::uuid, 7, 'LATE', now())"
    async with holding(dsn, late, TENANT, created.task_id):
        moving = asyncio.create_task(move(dsn, there.dsn))

        async def is_waited_for() -> bool:
            return looks > 1

        await until(is_waited_for, "the mover has seen it twice")
        assert not await there.database.fetchval("SELECT copied FROM tenure.move WHERE tenant_id = $1", TENANT)
    await moving
    assert await there.database.fetchval("SELECT count(*) FROM tenure.history WHERE event = 'LATE'") == 1


async def test_what_cannot_be_moved_is_said_and_changes_nothing(
    dsn: str, store: Stubs, there: Cell, databases: Databases, database: asyncpg.Connection
) -> None:
    with pytest.raises(MoveError, match="no such tenant lives in the first database"):
        await move(dsn, there.dsn)
    with pytest.raises(MoveError, match="both addresses lead to the same database"):
        await move(dsn, dsn)
    created, other = await create(store), await create(there.store)
    with pytest.raises(MoveError, match="a tenant of this name lives in the second database too"):
        await move(dsn, there.dsn)
    async with open_move(dsn, there.dsn, TENANT):
        with pytest.raises(MoveError, match="it is being moved by another process"):
            await move(dsn, there.dsn)
    for cell, task in ((store, created), (there.store, other)):
        assert (await lease(cell)).lease.task_id == task.task_id
    await there.database.execute('CREATE TABLE tenure.later (tenant_id text COLLATE "C" PRIMARY KEY)')
    await there.database.execute("GRANT ALL ON tenure.later TO tenure_mover")
    await create(store, tenant_id="globex")
    with pytest.raises(MoveError, match="the two schemas differ"):
        await move(dsn, there.dsn, tenant_id="globex")
    await stay(dsn, there.dsn, tenant_id="globex")
    third = await databases.take()
    with pytest.raises(BrokenOff):
        await move(dsn, third, tenant_id="globex", until="frozen")
    with pytest.raises(MoveError, match="its move between other databases is under way"):
        await move(dsn, there.dsn, tenant_id="globex")
    with pytest.raises(MoveError, match="its move between other databases is under way"):
        await stay(dsn, there.dsn, tenant_id="globex")
    await stay(dsn, third, tenant_id="globex")
    await databases.give_back(third)


async def test_a_copy_that_differs_is_not_kept(dsn: str, store: Stubs, there: Cell, database: asyncpg.Connection) -> None:
    await create(store)
    await there.database.execute(
        "CREATE FUNCTION tenure.spoil() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.tool := ''else''; RETURN NEW; END';"
        "CREATE TRIGGER spoil BEFORE INSERT ON tenure.task FOR EACH ROW EXECUTE FUNCTION tenure.spoil()"
    )
    with pytest.raises(MoveError, match="what was copied differs from what is there"):
        await move(dsn, there.dsn)
    assert await counts(there.database) == {}
    await there.database.execute("DROP FUNCTION tenure.spoil CASCADE")
    await move(dsn, there.dsn)
