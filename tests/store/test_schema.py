"""Migrations, and what a store refuses to run on."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

import asyncpg
import pytest
from taskstore.v1 import types_pb2

import store_service
from store_service.config import Config
from store_service.db.migrate import Migration, SchemaError, bump_epoch, check_schema, list_migrations, migrate
from store_service.db.queries import Queries
from store_service.embedded import EmbeddedPostgres
from store_service.server import Store
from tests.conftest import open_stubs
from tests.store.builders import complete, create, create_and_lease, get, heartbeat, lease

ADD = "INSERT INTO public.tenure_migration (number, phase, name) VALUES ($1, $2, 'later')"
MIGRATIONS: Final = Path(str(store_service.__file__)).with_name("db") / "migrations"
RELEASED: Final = Path(__file__).with_name("released_migrations.sha256")
"""The migrations of releases, one a line as `sha256sum` writes them. A release adds its own."""
# Everything in the schema that a migration makes, with its definition.
DEFINITIONS = """
SELECT 'function', oid::regprocedure::text, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'tenure'::regnamespace
UNION ALL SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname = 'tenure'
UNION ALL SELECT 'constraint', conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = 'tenure'::regnamespace
UNION ALL SELECT 'column', table_name || '.' || column_name, ordinal_position || data_type || is_nullable
  FROM information_schema.columns WHERE table_schema = 'tenure'
ORDER BY 1, 2
"""


def broken_promises(released: str, folder: Path) -> list[str]:
    """What keeps a folder of migrations from following those that were released."""
    digests = {name: digest for digest, name in map(str.split, released.splitlines())}
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.sql")}
    changed = [f"{name} was changed or removed" for name, digest in digests.items() if files.get(name) != digest]
    newest = max(digests, default="")
    return changed + [f"{name} comes too late" for name in sorted(files.keys() - digests.keys()) if name < newest]


def test_released_migrations_are_frozen() -> None:
    assert broken_promises(RELEASED.read_text(), MIGRATIONS) == []


def test_a_released_migration_that_changed_or_a_new_one_among_them_is_found(tmp_path: Path) -> None:
    released = ""
    for name in ("0001_pre_a.sql", "0002_pre_b.sql", "0004_pre_d.sql"):
        (tmp_path / name).write_text(name)
        released += f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n"
    (tmp_path / "0005_pre_e.sql").write_text("new")
    assert broken_promises(released, tmp_path) == []
    (tmp_path / "0001_pre_a.sql").write_text("changed")
    (tmp_path / "0002_pre_b.sql").unlink()
    (tmp_path / "0003_pre_c.sql").write_text("new")
    assert broken_promises(released, tmp_path) == [
        "0001_pre_a.sql was changed or removed",
        "0002_pre_b.sql was changed or removed",
        "0003_pre_c.sql comes too late",
    ]


def test_no_two_migrations_share_a_number() -> None:
    numbers = [migration.number for migration in list_migrations()]
    assert numbers == sorted(set(numbers))


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


async def test_every_function_resolves_names_in_the_schema_and_keeps_its_plan(database: asyncpg.Connection) -> None:
    settings = await database.fetch(
        "SELECT array_to_string(p.proconfig, ' ') AS pinned FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang "
        "WHERE p.pronamespace = 'tenure'::regnamespace AND l.lanname = 'plpgsql' AND p.prorettype <> 'trigger'::regtype"
    )
    assert len(settings) >= 25
    for row in settings:
        assert row["pinned"].startswith("search_path=tenure, pg_temp ")
        assert "plan_cache_mode=force_generic_plan" in row["pinned"]


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


@contextmanager
def holding_back(newest: Migration, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The version before: it does not know the newest migration, nor anybody's rights to what that makes."""
    older = [migration for migration in list_migrations() if migration != newest]
    made = "|".join(re.findall(r"CREATE (?:TABLE|VIEW) (tenure\.\w+)", newest.sql)) or "$^"
    rights = {name: re.sub(rf",\s*(?:{made})\b", "", text) for name, text in Queries("roles.sql").items()}
    with monkeypatch.context() as before:
        before.setattr("store_service.db.migrate.list_migrations", lambda: older)
        before.setattr("store_service.db.roles.Queries", lambda _: rights)
        yield


async def test_the_version_before_serves_on_while_the_schema_is_migrated_and_beside_the_next(
    empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = list_migrations()[-1]
    assert newest.phase == "pre", "a `post` step comes when the version before has left"
    config = Config(dsn=empty_dsn, port=0, admin_port=0, drain_seconds=2)
    before, after = Store(config), Store(config)
    with holding_back(newest, monkeypatch):
        await migrate(empty_dsn)
        await before.start()
    with pytest.raises(SchemaError, match=r"lacks 1 migrations; run `tenure-store migrate`"):
        await after.start()
    async with open_stubs(before) as old:
        running = await create_and_lease(old)
        made, applied = await asyncio.gather(asyncio.gather(*(create(old) for _ in range(50))), migrate(empty_dsn))
        assert applied == [newest]
        await after.start()
        async with open_stubs(after) as new:
            await new.leases.HeartbeatTask(heartbeat(running.lease))
            for store in (old, new):
                taken = await lease(store, limit=1)
                await (new if store is old else old).leases.CompleteTask(complete(taken.lease))
            await old.leases.CompleteTask(complete(running.lease))
            states = [(await get(new, task.task_id)).state for task in made]
            assert states.count(types_pb2.TASK_STATE_COMPLETED) == 2
        with holding_back(newest, monkeypatch):  # it may be started anew, too
            await check_schema(empty_dsn, allow_test_clock=False)
    await before.stop()
    await after.stop()


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


OF_NO_TENANT: Final = {
    "epoch": "one row, of the whole database",
    "worker_claim": "a claim takes tasks of several tenants",
}
"""Tables whose keys do not start with the tenant, and why."""
CROSSING: Final = {
    "lane_turn": "whoever looks for work finds the tenant whose turn it is",
    "task_due": "whoever looks for what fell due visits no tenant in vain",
}
"""Indexes that do not start with the tenant, and why."""
FIRST_COLUMNS: Final = """
SELECT r.relname AS relation, c.conname AS name, a.attname AS first
FROM pg_constraint c JOIN pg_class r ON r.oid = c.conrelid
LEFT JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = c.conkey[1]
WHERE c.connamespace = 'tenure'::regnamespace AND c.contype IN ('p', 'u', 'x', 'f') AND r.relkind IN ('r', 'p')
UNION ALL    -- what a foreign key refers to
SELECT r.relname, c.conname || ' (referred to)', a.attname
FROM pg_constraint c JOIN pg_class r ON r.oid = c.confrelid
LEFT JOIN pg_attribute a ON a.attrelid = c.confrelid AND a.attnum = c.confkey[1]
WHERE c.connamespace = 'tenure'::regnamespace AND c.contype = 'f'
UNION ALL    -- none where it is an expression
SELECT t.relname, r.relname, a.attname
FROM pg_index i JOIN pg_class r ON r.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE r.relnamespace = 'tenure'::regnamespace
"""


REFERRING: Final = "CONSTRAINT c FOREIGN KEY (task_id, tenant_id) REFERENCES tenure.task (task_id, tenant_id)"


async def _not_of_a_tenant(database: asyncpg.Connection) -> set[tuple[str, str]]:
    """Relation and name of each key, constraint and index that does not start with the tenant, the exceptions apart."""
    rows = await database.fetch(FIRST_COLUMNS)
    return {
        (row["relation"], row["name"])
        for row in rows
        if row["first"] != "tenant_id" and row["relation"] not in OF_NO_TENANT and row["name"] not in CROSSING
    }


async def test_every_key_constraint_and_index_starts_with_the_tenant(database: asyncpg.Connection) -> None:
    assert await _not_of_a_tenant(database) == set()
    names = {name for row in await database.fetch(FIRST_COLUMNS) for name in (row["relation"], row["name"])}
    assert names >= OF_NO_TENANT.keys() | CROSSING.keys(), "an exception that is not there any more"


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("CREATE INDEX i ON tenure.task (task_id)", ("task", "i")),
        ("CREATE INDEX i ON tenure.task (lower(tool), tenant_id)", ("task", "i")),
        ("CREATE UNIQUE INDEX i ON tenure.task (request_id, tenant_id) WHERE forked_from IS NULL", ("task", "i")),
        ("ALTER TABLE tenure.task ADD CONSTRAINT c UNIQUE (task_id)", ("task", "c")),
        ("CREATE TABLE tenure.more (task_id uuid PRIMARY KEY, tenant_id text)", ("more", "more_pkey")),
        (f"CREATE TABLE tenure.more (tenant_id text PRIMARY KEY, task_id uuid, {REFERRING})", ("more", "c")),
    ],
)
async def test_one_that_starts_with_something_else_is_found(
    database: asyncpg.Connection, change: str, found: tuple[str, str]
) -> None:
    unique = "CREATE UNIQUE INDEX turned ON tenure.task (task_id, tenant_id);" if "REFERENCES" in change else ""
    await database.execute(unique + change)
    assert found in await _not_of_a_tenant(database)
