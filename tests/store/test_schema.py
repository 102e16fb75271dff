"""Migrations, and what a store refuses to run on."""

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import asyncpg
import pytest

from store_service.db.migrate import SchemaError, bump_epoch, check_schema, list_migrations, migrate
from store_service.embedded import EmbeddedPostgres

ADD = "INSERT INTO public.tenure_migration (number, phase, name) VALUES ($1, $2, 'later')"
# Everything in the schema that a migration makes, with its definition.
DEFINITIONS = """
SELECT 'function', oid::regprocedure::text, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'tenure'::regnamespace
UNION ALL SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname = 'tenure'
UNION ALL SELECT 'constraint', conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = 'tenure'::regnamespace
UNION ALL SELECT 'column', table_name || '.' || column_name, ordinal_position || data_type || is_nullable
  FROM information_schema.columns WHERE table_schema = 'tenure'
ORDER BY 1, 2
"""


@pytest.fixture
async def empty_dsn(postgres: EmbeddedPostgres) -> AsyncIterator[str]:
    """A database with nothing in it."""
    name = f"empty_{uuid4().hex}"
    admin = await asyncpg.connect(postgres.dsn)
    await admin.execute(f"CREATE DATABASE {name} TEMPLATE template0")
    yield f"{postgres.dsn.rpartition('/')[0]}/{name}"
    await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await admin.close()


async def definitions(dsn: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(dsn)
    found: list[asyncpg.Record] = await connection.fetch(DEFINITIONS)
    await connection.close()
    return found


async def test_migrating_twice_changes_nothing(empty_dsn: str) -> None:
    assert await migrate(empty_dsn) == list_migrations()
    before = await definitions(empty_dsn)
    assert len(before) > 100
    assert await migrate(empty_dsn) == []
    assert await definitions(empty_dsn) == before
    await check_schema(empty_dsn, allow_test_clock=False)


async def test_five_that_migrate_at_once_apply_each_migration_once(empty_dsn: str) -> None:
    applied = await asyncio.gather(*(migrate(empty_dsn) for _ in range(5)))
    assert sorted(applied, key=len) == [[], [], [], [], list_migrations()]


async def test_a_migration_that_fails_leaves_nothing_behind(empty_dsn: str) -> None:
    connection = await asyncpg.connect(empty_dsn)
    await connection.execute("CREATE SCHEMA tenure")  # which the first migration trips over
    with pytest.raises(asyncpg.DuplicateSchemaError):
        await migrate(empty_dsn)
    assert await connection.fetchval("SELECT to_regclass('public.tenure_migration')") is None
    await connection.execute("DROP SCHEMA tenure")
    await connection.close()
    assert await migrate(empty_dsn) == list_migrations()


async def test_a_database_without_a_schema_is_refused_with_what_to_do(empty_dsn: str) -> None:
    with pytest.raises(SchemaError, match=rf"lacks {len(list_migrations())} migrations; run `tenure-store migrate`"):
        await check_schema(empty_dsn, allow_test_clock=False)


async def test_an_older_schema_is_refused(dsn: str, database: asyncpg.Connection) -> None:
    newest = max(migration.number for migration in list_migrations())
    await database.execute("DELETE FROM public.tenure_migration WHERE number = $1", newest)
    with pytest.raises(SchemaError, match=r"lacks 1 migrations"):
        await check_schema(dsn, allow_test_clock=True)


async def test_the_schema_of_the_version_that_comes_next_is_served(dsn: str, database: asyncpg.Connection) -> None:
    await database.execute(ADD, 9_000, "pre")
    await check_schema(dsn, allow_test_clock=True)
    assert await migrate(dsn) == []


async def test_a_schema_that_lost_something_since_is_refused(dsn: str, database: asyncpg.Connection) -> None:
    await database.execute(ADD, 9_000, "pre")
    await database.execute(ADD, 9_001, "post")
    with pytest.raises(SchemaError, match=r"has migration 9001, this version knows up to"):
        await check_schema(dsn, allow_test_clock=True)
    with pytest.raises(SchemaError):
        await migrate(dsn)


async def test_a_moved_clock_is_refused_unless_a_test_allows_it(dsn: str) -> None:
    await check_schema(dsn, allow_test_clock=True)
    with pytest.raises(SchemaError, match=r"task_now\(\) is not the database's clock"):
        await check_schema(dsn, allow_test_clock=False)


async def test_the_clock_of_a_migrated_database_is_its_own(empty_dsn: str) -> None:
    await migrate(empty_dsn)
    await check_schema(empty_dsn, allow_test_clock=False)
    connection = await asyncpg.connect(empty_dsn)
    async with connection.transaction():
        await connection.execute("SELECT pg_sleep(0.002)")
        assert await connection.fetchval("SELECT tenure.task_now() > now()")  # not the transaction's start
    await connection.close()


async def test_an_epoch_only_rises(dsn: str) -> None:
    assert [await bump_epoch(dsn) for _ in range(3)] == [2, 3, 4]


async def test_keys_and_constraints_start_with_the_tenant(database: asyncpg.Connection) -> None:
    rows = await database.fetch(
        "SELECT r.relname AS relation, a.attname AS first FROM pg_constraint c JOIN pg_class r ON r.oid = c.conrelid "
        "JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = c.conkey[1] "
        "WHERE c.connamespace = 'tenure'::regnamespace AND c.contype IN ('p', 'u')"
    )
    others = {row["relation"] for row in rows if row["first"] != "tenant_id"}
    assert others == {"epoch", "worker_claim"}
    crossing = await database.fetch(
        "SELECT r.relname AS name FROM pg_index i JOIN pg_class r ON r.oid = i.indexrelid "
        "JOIN pg_attribute a ON a.attrelid = i.indexrelid AND a.attnum = 1 "
        "WHERE r.relnamespace = 'tenure'::regnamespace AND NOT i.indisprimary AND a.attname <> 'tenant_id'"
    )
    assert {row["name"] for row in crossing} == {"lane_turn", "task_due"}
