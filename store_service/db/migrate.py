"""Brings a database's schema to what this version needs, and tells whether it is there."""

import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

import asyncpg

from store_service.db.pool import reaching
from store_service.db.queries import Queries
from store_service.db.roles import act_as_store, apply_roles

CLOCK: Final = "SELECT clock_timestamp()"
_FILE = re.compile(r"(\d{4})_(pre|post)_(\w+)\.sql")


class SchemaError(Exception):
    """The schema is not one that this version may run on. The message says what to do."""


@dataclass(frozen=True, slots=True, order=True)
class Migration:
    """One step of the schema. `pre` steps are safe while the version before still runs; `post` steps come after it left."""

    number: int
    phase: str
    name: str
    sql: str


def list_migrations() -> list[Migration]:
    """Every migration that this version knows, in order."""
    found = []
    for path in files(__package__).joinpath("migrations").iterdir():
        if match := _FILE.fullmatch(path.name):
            number, phase, name = match.groups()
            found.append(Migration(int(number), phase, name, path.read_text(encoding="utf-8")))
    return sorted(found)


async def migrate(dsn: str) -> list[Migration]:
    """Applies, in one transaction and under an advisory lock, what the database lacks. Returns what it applied."""
    queries = Queries("migrate.sql")
    connection = await asyncpg.connect(dsn, server_settings={"application_name": "tenure-migrate", "lock_timeout": "30s"})
    try:
        async with connection.transaction():
            await connection.execute(queries["lock_migrations"])
            await connection.execute(queries["create_migrations"])
            known = await _list_applied(connection, queries)
            missing = [migration for migration in list_migrations() if migration.number not in known]
            await connection.execute(queries["enter_schema"])
            for migration in missing:
                await connection.execute(migration.sql)
                await connection.execute(queries["add_migration"], migration.number, migration.phase, migration.name)
            if missing:
                await connection.execute(queries["pin_functions"])
                await connection.execute(queries["analyze_seldom"])
                await connection.execute(queries["expect_many"])
                await apply_roles(connection)
            return missing
    except asyncpg.InsufficientPrivilegeError as error:
        raise SchemaError(f"{error}; see Roles in the store's README for what who migrates must be allowed") from None
    finally:
        await connection.close()


async def check_schema(dsn: str, *, allow_test_clock: bool) -> None:
    """Raises SchemaError unless the schema is the one this version knows and time is the database's own, and where the database
    lets nobody in; STORAGE_UNAVAILABLE, or ConnectionError, when it cannot be asked; ValueError when the address is none."""
    try:
        with reaching():
            await _check_schema(dsn, allow_test_clock=allow_test_clock)
    except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as error:
        raise SchemaError(f"{error}; see TENURE_STORE_DSN") from None
    except OSError as error:  # also of names that are not known, and of hosts with several addresses
        raise ConnectionError(str(error) or "the database does not answer") from None


async def _check_schema(dsn: str, *, allow_test_clock: bool) -> None:
    queries = Queries("migrate.sql")
    connection = await asyncpg.connect(dsn)
    try:
        has = await connection.fetchval(queries["has_migrations"])
        if has and not await act_as_store(connection):
            raise SchemaError("who connects is no member of tenure_app; an administrator runs: GRANT tenure_app TO that role")
        known = await _list_applied(connection, queries) if has else set()
        missing = [migration for migration in list_migrations() if migration.number not in known and migration.phase == "pre"]
        if missing:
            raise SchemaError(f"the schema lacks {len(missing)} migrations; run `tenure-store migrate`")
        if await connection.fetchval(queries["has_moved"]):
            raise SchemaError(
                "the database failed over or was restored since its epoch was raised; run `tenure-store epoch bump`, which "
                "makes every lease granted before worthless, or `tenure-store epoch keep` if surely nothing was lost"
            )
        if not allow_test_clock and await connection.fetchval(queries["clock_source"]) != CLOCK:
            raise SchemaError("the function tenure.task_now() is not the database's clock; restore it before serving")
    finally:
        await connection.close()


async def bump_epoch(dsn: str) -> int:
    """Makes every lease granted before worthless, as after a restore. Returns the new epoch.

    Raises SchemaError for one who may not.
    """
    return await _set_epoch(dsn, Queries("migrate.sql")["bump_epoch"])


async def keep_epoch(dsn: str) -> int:
    """Says that a failover lost nothing: leases stay good. Returns the epoch."""
    return await _set_epoch(dsn, Queries("migrate.sql")["keep_epoch"])


async def _set_epoch(dsn: str, query: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        epoch: int = await connection.fetchval(query)
        return epoch
    except asyncpg.InsufficientPrivilegeError as error:
        raise SchemaError(f"{error}; TENURE_STORE_DSN must name who migrates") from None
    finally:
        await connection.close()


async def _list_applied(connection: asyncpg.Connection, queries: Queries) -> set[int]:
    """The numbers applied. Unknown `pre` steps are those of the version that comes next, which only adds; an unknown `post`
    step took something away that this version may need."""
    applied = {row["number"]: row["phase"] for row in await connection.fetch(queries["list_migrations"])}
    newest = max(migration.number for migration in list_migrations())
    unknown = sorted(number for number, phase in applied.items() if number > newest and phase != "pre")
    if unknown:
        raise SchemaError(
            f"the schema has migration {unknown[0]}, this version knows up to {newest}; run the version it belongs to"
        )
    return set(applied)
