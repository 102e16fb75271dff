"""A tenant moves to another cell: all of it, with nobody at work in both, whatever breaks off."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

import asyncpg
import grpc
import pytest
from taskstore.v1 import budgets_pb2, retention_pb2, tasks_pb2, tenants_pb2, types_pb2

from store_service.db.moves import MoveRows, open_move
from store_service.model.moves import MoveError
from tests.conftest import Clock, Stubs, serving
from tests.databases import Databases
from tests.store.budgets import Amounts, reserved_task, set_budget
from tests.store.builders import (
    TENANT,
    answer,
    assert_lease_lost,
    cancel,
    checkpoint,
    claim,
    complete,
    create,
    create_and_lease,
    fail,
    get,
    heartbeat,
    history,
    holding,
    lease,
    new_task,
    publish,
    question,
    refusal_in,
    refusal_of,
    release,
    report,
    suspend,
    until,
)
from tests.store.moving import STEPS, BrokenOff, move, stay
from tests.store.retention import (
    DAY,
    approve_purge,
    cleanup_lease,
    confirm_export,
    ended,
    execute_purge,
    hold,
    prepare_purge,
    remove,
    removed,
)
from tests.store.test_schema import OF_NO_TENANT

STAYS: Final = {"move": "is about the move", "registration": "is about who asks for work in this cell"}
"""Tables of tenants that do not move, and why."""
ADJUSTED: Final = {
    "task_state": ["token", "expires_at", "check_at", "lived", "finish_token", "finish_digest"],
    "tenant": ["turn"],
    "lane": ["turn"],
    "cleanup_lease": ["token", "owner_id", "principal", "expires_at"],
    "budget_export": ["held_until", "metered"],
}
"""What is another on arrival."""
ROWS: Final = """
SELECT coalesce(array_agg(r::text ORDER BY r::text), '{{}}')
FROM (SELECT to_jsonb(x) - $2::text[] AS r FROM tenure.{} x WHERE tenant_id = $1) y
"""
FACTS: Final = "SELECT count(*) FROM tenure.{} WHERE tenant_id = $1"


@dataclass(frozen=True)
class Cell:
    """A cell that is not where the test's tenant lives at first."""

    dsn: str
    store: Stubs
    database: asyncpg.Connection


@pytest.fixture
async def there(databases: Databases) -> AsyncIterator[Cell]:
    """The cell where it goes."""
    dsn = await databases.take()
    database = await asyncpg.connect(dsn)
    async with serving(dsn, cancel_grace_seconds=30) as stubs:
        yield Cell(dsn, stubs, database)
    assert await database.fetch("SELECT * FROM tenure.audit") == []
    assert await database.fetch("SELECT * FROM tenure.budget_audit") == []
    await database.close()
    await databases.give_back(dsn)


async def tables(database: asyncpg.Connection) -> list[str]:
    """Those that move."""
    return [row["name"] for row in await database.fetch("SELECT name FROM tenure.moved_tables()")]


async def kept(database: asyncpg.Connection, tenant_id: str = TENANT) -> dict[str, list[Any]]:
    """All that a tenant has, but for what is adjusted."""
    return {
        name: [json.loads(row) for row in await database.fetchval(ROWS.format(name), tenant_id, ADJUSTED.get(name, []))]
        for name in await tables(database)
    }


async def counts(database: asyncpg.Connection, tenant_id: str = TENANT) -> dict[str, int]:
    """How many rows a tenant has, where it has any."""
    found = {name: await database.fetchval(FACTS.format(name), tenant_id) for name in await tables(database)}
    return {name: count for name, count in found.items() if count}


async def assert_moved(call: Any) -> None:
    """The call is refused as the tenant is elsewhere."""
    refused = await refusal_of(call)
    assert (refused.reason, refused.code) == ("TENANT_MOVED", grpc.StatusCode.UNAVAILABLE)
    assert refused.retry_after_ms == 1_000


async def test_every_table_moves_or_has_a_reason_not_to(database: asyncpg.Connection) -> None:
    rows = await database.fetch(
        "SELECT relname FROM pg_class WHERE relnamespace = 'tenure'::regnamespace AND relkind IN ('r', 'p', 'm', 'f')"
    )
    assert {row["relname"] for row in rows} == {*await tables(database), *STAYS, *OF_NO_TENANT}
    await database.execute('CREATE TABLE tenure.later (tenant_id text COLLATE "C" PRIMARY KEY, what text)')
    assert "later" in await tables(database)


async def furnish(store: Stubs, database: asyncpg.Connection, clock: Clock) -> None:
    """Leaves something of the tenant's in every table."""
    await removed(store, clock, 4)
    await store.governance.ConfirmExport(confirm_export(4))
    await store.governance.PreparePurge(prepare_purge(await cleanup_lease(store), limit=2))
    await store.governance.ApprovePurge(approve_purge())
    await store.governance.ExecutePurge(execute_purge(await cleanup_lease(store)))
    await store.governance.PreparePurge(prepare_purge(await cleanup_lease(store), request_id="later", limit=1))
    await set_budget(store, Amounts(tokens=1_000))
    confirm = budgets_pb2.ConfirmBudgetExportRequest(tenant_id=TENANT, through_cursor=1)
    await store.budgets.ConfirmBudgetExport(confirm)
    await reserved_task(store)
    await hold(store, await ended(store))
    failed = (await create_and_lease(store)).lease
    await store.leases.FailTask(fail(failed))
    await store.tenants.RedriveTasks(
        tenants_pb2.RedriveTasksRequest(tenant_id=TENANT, request_id="again", actor="ann", task_ids=[failed.task_id])
    )
    worked = (await lease(store)).lease
    await store.leases.AppendCheckpoint(checkpoint(worked, data=b'"' + b"x" * 100_000 + b'"'))
    await store.leases.ReportProgress(report(worked, 0.5))
    await store.leases.CompleteTask(complete(worked, '{"é": "\\u0000"}'.encode()))
    asking = (await create_and_lease(store)).lease
    await store.leases.SuspendTask(suspend(asking, questions=[question("sure")]))
    await publish(store, asking.task_id, name="unheard")
    answered = new_task(workflow="other")
    answered.early_answers.add(key="q", response=types_pb2.Payload(data=b"{}"))
    await store.tasks.CreateTask(answered)
    scope = tenants_pb2.WorkScope(workflow="other")
    await store.tenants.PauseWork(tenants_pb2.PauseWorkRequest(tenant_id=TENANT, scope=scope, actor="ann"))
    cursor = await database.fetchval("SELECT tenure.add_audit_line($1, 'ann', 'PauseWork', '')", TENANT)
    await database.execute("INSERT INTO tenure.audit_outcome VALUES ($1, $2, 'OK')", TENANT, cursor)


async def test_all_that_a_tenant_has_moves_and_nothing_else(
    dsn: str, store: Stubs, database: asyncpg.Connection, clock: Clock, there: Cell
) -> None:
    await furnish(store, database, clock)
    await create(store, tenant_id="globex")
    assert set(await counts(database)) == set(await tables(database)), "the test leaves something in each"
    before, others = await kept(database), await counts(database, "globex")
    await move(dsn, there.dsn)
    after = await kept(there.database)
    (line,) = [row for row in after["audit_line"] if row not in before["audit_line"]]
    (outcome,) = [row for row in after["audit_outcome"] if row not in before["audit_outcome"]]
    assert (line["method"], outcome["cursor"], outcome["outcome"]) == ("MoveTenant", line["cursor"], "OK")
    after["audit_line"].remove(line)
    after["audit_outcome"].remove(outcome)
    assert after.pop("audit_head") == [{"tenant_id": TENANT, "lines": 2}]
    assert before.pop("audit_head") == [{"tenant_id": TENANT, "lines": 1}]
    assert after == before
    assert await counts(database) == {}
    assert await counts(database, "globex") == others
    assert await counts(there.database, "globex") == {}


async def test_work_goes_on_where_it_went_and_nobodys_crash_is_counted(
    dsn: str, store: Stubs, there: Cell, database: asyncpg.Connection
) -> None:
    held = (await create_and_lease(store)).lease
    await store.leases.HeartbeatTask(heartbeat(held))
    await store.leases.AppendCheckpoint(checkpoint(held))
    asking = (await create_and_lease(store)).lease
    await store.leases.SuspendTask(suspend(asking, questions=[question("sure")]))
    request = new_task(request_id="once")
    created = (await store.tasks.CreateTask(request)).task
    await move(dsn, there.dsn)
    for call in (heartbeat(held), complete(held), checkpoint(held, revision=1)):
        for cell in (store, there.store):
            await assert_lease_lost(getattr(cell.leases, type(call).__name__.removesuffix("Request"))(call))
    again = await there.store.tasks.CreateTask(request)
    assert again.replayed
    assert again.task.task_id == created.task_id
    assert await answer(there.store, asking.task_id, sure=b"{}") == ["ACCEPTED"]

    async def three_are_ready() -> bool:
        return bool(await there.database.fetchval("SELECT ready = 3 FROM tenure.lane WHERE tenant_id = $1", TENANT))

    await until(three_are_ready, "what was leased is queued")
    taken = (await there.store.leases.LeaseTasks(claim(limit=10))).tasks
    assert {one.lease.task_id for one in taken} == {held.task_id, asking.task_id, created.task_id}
    (resumed,) = [one for one in taken if one.lease.task_id == held.task_id]
    assert (resumed.crashes, resumed.checkpoints) == (0, 1)
    assert resumed.lease.token > held.token + 2**31, "no copy of the first database ever grants it"
    for one in taken:
        await there.store.leases.CompleteTask(complete(one.lease))
    assert await history(there.store, held.task_id) == ["CREATED", "LEASED", "LEASE_EXPIRED", "LEASED", "COMPLETED"]


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


async def test_a_tenant_comes_back_and_its_tokens_only_rise(dsn: str, store: Stubs, there: Cell) -> None:
    created, token = await create(store), 0
    for here, to, cell in ((dsn, there.dsn, there.store), (there.dsn, dsn, store), (dsn, there.dsn, there.store)):
        await move(here, to)
        taken = (await lease(cell)).lease
        assert taken.task_id == created.task_id
        assert taken.token > token + 2**31
        token = taken.token
        await cell.leases.ReleaseTask(release(taken))


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


async def test_a_database_from_before_the_move_gives_the_tenant_up(databases: Databases, postgres: Any) -> None:
    here, there = await databases.take(), await databases.take()
    name, admin = here.rpartition("/")[2], await asyncpg.connect(postgres.dsn)
    connection = await asyncpg.connect(here)
    await connection.execute("INSERT INTO tenure.tenant (tenant_id) VALUES ($1)", TENANT)
    await connection.close()
    await admin.execute(f"CREATE DATABASE {name}_backup TEMPLATE {name}")
    await move(here, there)
    await admin.execute(f"DROP DATABASE {name}")
    await admin.execute(f"ALTER DATABASE {name}_backup RENAME TO {name}")
    (told,) = await move(here, there)
    assert told == "it lives in the second database; nothing of it is left in the first"
    for dsn, count in ((here, 0), (there, 1)):
        connection = await asyncpg.connect(dsn)
        assert await connection.fetchval("SELECT count(*) FROM tenure.tenant") == count
        await connection.close()
    await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await admin.close()
    await databases.give_back(there)


async def test_nothing_is_leased_of_a_tenant_that_a_database_from_before_the_move_gives_up(
    dsn: str, store: Stubs, there: Cell
) -> None:
    await create(store)
    async with open_move(dsn, there.dsn, TENANT) as (source, target):
        assert await source.leave(target.identity, 7)
    assert list((await store.leases.LeaseTasks(claim())).tasks) == []


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


async def test_who_asks_for_work_of_others_is_known_while_a_tenant_is_away(dsn: str, store: Stubs, there: Cell) -> None:
    for tenant_id in (TENANT, "globex"):
        await create(store, tenant_id=tenant_id, workflow="elsewhere")
    with pytest.raises(BrokenOff):
        await move(dsn, there.dsn, until="frozen")
    await store.leases.LeaseTasks(claim(tenant_ids=[TENANT, "globex"]))
    asked = await store.tenants.ListRegistrations(tenants_pb2.ListRegistrationsRequest(tenant_id="globex"))
    assert [one.workflow for one in asked.registrations] == ["report"]


async def test_who_cleans_up_passes_over_a_tenant_that_is_away(dsn: str, store: Stubs, clock: Clock, there: Cell) -> None:
    await ended(store, ttl_ms=1)
    await clock.advance(seconds=2 * DAY)
    with pytest.raises(BrokenOff):
        await move(dsn, there.dsn, until="frozen")
    listed = (await store.retention.ListCleanupTenants(retention_pb2.ListCleanupTenantsRequest())).items
    assert list(listed) == []
    await stay(dsn, there.dsn)
    assert len(await remove(store)) == 1
