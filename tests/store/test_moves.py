"""A tenant moves to another cell: all of it, with nobody at work in both, whatever breaks off."""

from typing import Any, Final

import asyncpg
import pytest
from taskstore.v1 import budgets_pb2, retention_pb2, tenants_pb2, types_pb2

from store_service.db.moves import open_move
from tests.conftest import Clock, Stubs
from tests.databases import Databases
from tests.store.budgets import Amounts, reserved_task, set_budget
from tests.store.builders import (
    TENANT,
    answer,
    assert_lease_lost,
    checkpoint,
    claim,
    complete,
    create,
    create_and_lease,
    fail,
    heartbeat,
    history,
    lease,
    new_task,
    publish,
    question,
    release,
    report,
    suspend,
    until,
)
from tests.store.moving import BrokenOff, Cell, counts, kept, move, stay, tables
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


async def test_a_tenant_comes_back_and_its_tokens_only_rise(dsn: str, store: Stubs, there: Cell) -> None:
    created, token = await create(store), 0
    for here, to, cell in ((dsn, there.dsn, there.store), (there.dsn, dsn, store), (dsn, there.dsn, there.store)):
        await move(here, to)
        taken = (await lease(cell)).lease
        assert taken.task_id == created.task_id
        assert taken.token > token + 2**31
        token = taken.token
        await cell.leases.ReleaseTask(release(taken))


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
