"""The second line, in the database: roles, rows of named tenants alone, and what never changes."""

import re
from typing import Final

import asyncpg
import grpc
import pytest
from taskstore.v1 import budgets_pb2, retention_pb2, tasks_pb2, tenants_pb2, types_pb2

from store_service.db.migrate import SchemaError, check_schema
from store_service.db.pool import SETTINGS
from store_service.db.queries import Queries
from tests.conftest import Clock, Stubs, serving
from tests.store.budgets import Amounts, set_budget
from tests.store.builders import checkpoint, complete, create_and_lease, set_policy

ROLES: Final = ("tenure_app", "tenure_scheduler", "tenure_governance", "tenure_metrics", "tenure_mover")
NOT_OF_TENANTS: Final = {"epoch", "worker_claim"}
WRITTEN_ONCE: Final = {"history", "checkpoint", "outcome", "tombstone", "budget_fact", "redrive", "epoch", "tombstone_export",
                       "purge_item", "purge_evidence", "audit_line", "audit_outcome", "move"}  # fmt: skip
"""What the store never changes."""
KEPT: Final = WRITTEN_ONCE | {"tenant", "task", "task_state", "hold", "purge", "audit_head"}
"""What the store deletes nothing of."""


@pytest.fixture
async def app(dsn: str) -> asyncpg.Connection:
    """A connection with the rights of the store."""
    connection = await asyncpg.connect(dsn, server_settings=SETTINGS)
    yield connection
    await connection.close()


async def tables(database: asyncpg.Connection) -> set[str]:
    rows = await database.fetch("SELECT relname FROM pg_class WHERE relnamespace = 'tenure'::regnamespace AND relkind = 'r'")
    return {row["relname"] for row in rows}


@pytest.mark.row("P1")
async def test_no_role_may_do_more_than_its_rights(database: asyncpg.Connection) -> None:
    rows = await database.fetch("SELECT * FROM pg_roles WHERE rolname = ANY ($1)", ROLES)
    assert len(rows) == len(ROLES)
    for row in rows:
        powers = ("rolsuper", "rolcreaterole", "rolcreatedb", "rolcanlogin", "rolreplication", "rolbypassrls", "rolinherit")
        assert [power for power in powers if row[power]] == [], row["rolname"]
    for role in (*ROLES, "public"):
        assert not await database.fetchval("SELECT has_schema_privilege($1, 'tenure', 'CREATE')", role)
    assert not await database.fetchval("SELECT has_schema_privilege('public', 'tenure', 'USAGE')")


@pytest.mark.row("P1", "P3")
async def test_the_store_changes_nothing_that_is_written_once_and_deletes_nothing_that_is_kept(
    database: asyncpg.Connection,
) -> None:
    may = "SELECT has_table_privilege($1, format('tenure.%I', $2::text), $3)"
    for table in await tables(database):
        for role in ("tenure_app", "tenure_scheduler"):
            assert await database.fetchval(may, role, table, "DELETE") == (table not in KEPT), f"{role} {table}"
            changes = table not in WRITTEN_ONCE | {"purge"}
            assert await database.fetchval(may, role, table, "UPDATE") == changes, f"{role} {table}"
            assert not await database.fetchval(may, role, table, "TRUNCATE")
        assert await database.fetchval(may, "tenure_governance", table, "UPDATE") == (table not in WRITTEN_ONCE)
        if table in ("audit_line", "audit_outcome"):
            assert not await database.fetchval(may, "tenure_governance", table, "DELETE")
        for action in ("INSERT", "UPDATE", "DELETE"):
            assert not await database.fetchval(may, "tenure_metrics", table, action)
    for table in ("hold", "tombstone_export", "purge", "purge_evidence", "budget_fact"):
        governed = await database.fetchval(may, "tenure_governance", table, "DELETE")
        assert governed == (table == "budget_fact"), table
    for table in ("tombstone", "purge", "purge_item", "purge_evidence", "redrive"):
        assert not await database.fetchval(may, "tenure_app", table, "INSERT"), table
    for table in ("task", "checkpoint", "outcome", "signal", "input_request", "early_answer"):
        assert not await database.fetchval(may, "tenure_metrics", table, "SELECT")


@pytest.mark.row("P2")
async def test_every_table_of_tenants_shows_the_rows_of_named_tenants_alone(
    store: Stubs, database: asyncpg.Connection, app: asyncpg.Connection
) -> None:
    guarded = await database.fetch(
        "SELECT relname FROM pg_class WHERE relnamespace = 'tenure'::regnamespace AND relrowsecurity AND relforcerowsecurity"
    )
    assert {row["relname"] for row in guarded} == await tables(database) - NOT_OF_TENANTS
    for tenant_id in ("acme", "globex"):
        lease = (await create_and_lease(store, tenant_id=tenant_id)).lease
        await store.leases.AppendCheckpoint(checkpoint(lease))
        await store.leases.CompleteTask(complete(lease))
    for table in ("tenant", "lane", "task", "task_state", "history", "checkpoint", "outcome"):
        assert await database.fetchval(f"SELECT count(DISTINCT tenant_id) FROM tenure.{table}") == 2
        assert await app.fetchval(f"SELECT count(*) FROM tenure.{table}") == 0
        async with app.transaction():
            await app.fetch("SELECT tenure.allow('acme')")
            rows = await app.fetch(f"SELECT tenant_id FROM tenure.{table}")
            assert {row["tenant_id"] for row in rows} == {"acme"}
        assert await app.fetchval(f"SELECT count(*) FROM tenure.{table}") == 0, "it ends with the transaction"


async def test_a_row_cannot_be_given_to_a_tenant_that_was_not_named(app: asyncpg.Connection) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
        await app.execute("INSERT INTO tenure.tenant (tenant_id) SELECT 'globex' WHERE tenure.allow('acme') = 'acme'")


@pytest.mark.row("P3")
async def test_what_is_over_stays_whoever_tries(store: Stubs, database: asyncpg.Connection) -> None:
    lease = (await create_and_lease(store)).lease
    await store.leases.AppendCheckpoint(checkpoint(lease))
    await store.leases.CompleteTask(complete(lease))
    for change in (
        "UPDATE tenure.history SET detail = 'else'",
        "UPDATE tenure.checkpoint SET data = ''",
        "UPDATE tenure.outcome SET data = ''",
        "UPDATE tenure.tombstone SET state = 'FAILED'",
        "UPDATE tenure.budget_fact SET token = 0",
        "UPDATE tenure.task_state SET state = 'QUEUED'",
        "UPDATE tenure.task_state SET ended_at = NULL",
    ):
        with pytest.raises(asyncpg.RaiseError, match="never changed"):
            await database.execute(change)


async def test_who_is_no_member_is_told_before_anything_is_served(dsn: str, database: asyncpg.Connection) -> None:
    await database.execute("CREATE ROLE stranger LOGIN PASSWORD 'x'")
    try:
        with pytest.raises(SchemaError, match="GRANT tenure_app TO"):
            await check_schema(re.sub("//[^@]*@", "//stranger:x@", dsn), allow_test_clock=True)
    finally:
        await database.execute("DROP ROLE stranger")


MUTATIONS: Final = (
    (r"\b(\w+\.)?tenant_id = \(SELECT tenure\.allow\(\$1\)\)", "(SELECT tenure.allow($1)) IS NOT NULL"),
    (r"\b\w+\.tenant_id = u\.tenant_id AND ", ""),
)
"""The tenant is looked at nowhere in the queries that read content; it is still named."""


@pytest.mark.row("P2")
async def test_with_the_tenant_taken_out_of_every_query_no_tenant_sees_another(
    dsn: str, store: Stubs, clock: Clock, database: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = {}
    for tenant_id in ("acme", "globex"):
        await set_policy(store, tenant_id=tenant_id)
        await set_budget(store, Amounts(tokens=10), tenant_id=tenant_id)
        lease = (await create_and_lease(store, tenant_id=tenant_id, data=f'"{tenant_id}"'.encode())).lease
        await store.leases.AppendCheckpoint(checkpoint(lease, data=f'"{tenant_id}"'.encode()))
        signal = tasks_pb2.PublishSignalRequest(tenant_id=tenant_id, signal_id=f"signal of {tenant_id}", task_id=lease.task_id)
        signal.name, signal.payload.data = "go", b"1"
        await store.tasks.PublishSignal(signal)
        await database.execute("SELECT tenure.add_audit_line(tenure.allow($1), 'ann', 'of ' || $1, '')", tenant_id)
        tasks[tenant_id] = lease.task_id
    wrong: dict[str, str] = {}
    whole = Queries.__getitem__

    def without_tenant(self: Queries, name: str) -> str:
        text = mutated = whole(self, name)
        for pattern, instead in MUTATIONS:
            mutated = re.sub(pattern, instead, mutated)
        if mutated != text:
            wrong[name] = mutated
        return mutated

    monkeypatch.setattr(Queries, "__getitem__", without_tenant)
    async with serving(dsn) as stubs:
        await no_tenant_sees_another(stubs, tasks)
    assert wrong.keys() >= {
        *("get_tasks", "list_tasks", "list_all_tasks", "list_task_history", "list_checkpoints", "is_task", "get_signal"),
        *("get_tenant", "list_signals", "list_signals_of_task"),
        *("get_budget", "list_tombstones", "get_tombstone", "list_audit_lines"),
    }


async def no_tenant_sees_another(stubs: Stubs, tasks: dict[str, str]) -> None:
    for own, other in (("acme", "globex"), ("globex", "acme")):
        theirs = tasks[other]
        for call in (
            stubs.tasks.GetTask(tasks_pb2.GetTaskRequest(tenant_id=own, task_id=theirs, view=types_pb2.TASK_VIEW_FULL)),
            stubs.tasks.ExplainTask(tasks_pb2.ExplainTaskRequest(tenant_id=own, task_id=theirs)),
            stubs.tasks.ListTaskHistory(tasks_pb2.ListTaskHistoryRequest(tenant_id=own, task_id=theirs)),
            stubs.tasks.ListCheckpoints(tasks_pb2.ListCheckpointsRequest(tenant_id=own, task_id=theirs)),
            stubs.tasks.GetCheckpoint(tasks_pb2.GetCheckpointRequest(tenant_id=own, task_id=theirs)),
            stubs.tasks.GetSignal(tasks_pb2.GetSignalRequest(tenant_id=own, signal_id=f"signal of {other}")),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call
            assert raised.value.code() is grpc.StatusCode.NOT_FOUND
        for of_task in ("", tasks[own]):
            signals = await stubs.tasks.ListSignals(tasks_pb2.ListSignalsRequest(tenant_id=own, task_id=of_task))
            assert [one.signal_id for one in signals.signals] == [f"signal of {own}"]
        for workflow in ("", "report"):
            listed = await stubs.tasks.ListTasks(tasks_pb2.ListTasksRequest(tenant_id=own, workflow=workflow))
            assert [task.task_id for task in listed.tasks] == [tasks[own]]
        request = tasks_pb2.GetTaskRequest(tenant_id=own, task_id=tasks[own], view=types_pb2.TASK_VIEW_FULL)
        assert (await stubs.tasks.GetTask(request)).task.input.data == f'"{own}"'.encode()
        assert (await stubs.tenants.GetTenant(tenants_pb2.GetTenantRequest(tenant_id=own))).tenant.tenant_id == own
        facts = (await stubs.budgets.ListBudgetFacts(budgets_pb2.ListBudgetFactsRequest(tenant_id=own))).facts
        assert len(facts) == 1
        assert (await stubs.budgets.GetBudget(budgets_pb2.GetBudgetRequest(tenant_id=own))).budget.tenant_id == own
        with pytest.raises(grpc.aio.AioRpcError, match="no such tombstone"):
            await stubs.retention.GetTombstone(retention_pb2.GetTombstoneRequest(tenant_id=own, task_id=theirs))
        audit = await stubs.tenants.ListAuditLines(tenants_pb2.ListAuditLinesRequest(tenant_id=own))
        assert [line.method for line in audit.lines] == [f"of {own}"]
        tombstones = await stubs.retention.ListTombstones(retention_pb2.ListTombstonesRequest(tenant_id=own))
        assert not tombstones.tombstones
