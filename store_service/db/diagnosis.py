"""What there is to know about a database, as facts. Source of the texts: `diagnosis.sql`."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

import asyncpg

from store_service.db.migrate import SchemaError, check_schema
from store_service.db.moves import read_unfinished
from store_service.db.queries import Queries
from store_service.model.moves import UnfinishedMove
from store_service.model.refusals import Reason, Refusal

HINT_SECONDS: Final = 5.0
MOST_MOVES: Final = 20
_FAILURES: Final = (OSError, ValueError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)


class DatabaseUnreachable(Exception):  # noqa: N818 (it says what is)
    """The database is not reached. The message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleFacts:
    """Who connects, and what it may be."""

    login: str
    is_above_rows: bool
    """It is bound to no row-level security, as a superuser."""
    missing: tuple[str, ...]
    """Of the roles that `migrate` makes, those that are not there."""
    is_store: bool
    """It may act as the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseFacts:
    """A database as it stands."""

    version: tuple[int, int]
    is_replica: bool
    switched_off: tuple[str, ...]
    """Of the settings that durability and vacuum rest on."""
    connections: int
    used: int
    stores: int
    """How many stores listen."""
    ahead_seconds: float
    """How far this machine's clock is ahead of the database's."""
    schema_trouble: str | None
    roles: RoleFacts
    hints_trouble: str | None
    snapshot_seconds: float
    """How long the oldest transaction holds back vacuum."""
    idle_slots: int
    moves: tuple[UnfinishedMove, ...] | None
    """Those that have stood still for longest; None where they cannot be read."""


async def read_facts(dsn: str, *, allow_test_clock: bool) -> DatabaseFacts:
    """Looks and changes nothing. Raises DatabaseUnreachable."""
    queries = Queries("diagnosis.sql")
    try:
        connection = await _connect(dsn)
    except _FAILURES as error:
        raise DatabaseUnreachable(f"{type(error).__name__}: {error}") from None
    try:
        before = datetime.now(UTC)
        server = await connection.fetchrow(queries["read_server"])
        after = datetime.now(UTC)
        horizon = await connection.fetchrow(queries["read_horizon"])
        roles = await connection.fetchrow(queries["read_roles"])
        moves = await _read_moves(connection)
    finally:
        await connection.close()
    return DatabaseFacts(
        version=divmod(server["version"], 10_000),
        is_replica=server["is_replica"],
        switched_off=tuple(server["switched_off"]),
        connections=server["connections"],
        used=server["used"],
        stores=server["stores"],
        ahead_seconds=(before + (after - before) / 2 - server["now"]).total_seconds(),
        schema_trouble=await _schema_trouble(dsn, allow_test_clock=allow_test_clock),
        roles=RoleFacts(
            login=roles["login"],
            is_above_rows=roles["is_above_rows"],
            missing=tuple(roles["missing"]),
            is_store=roles["is_store"],
        ),
        hints_trouble=await _hints_trouble(dsn),
        snapshot_seconds=max(horizon["snapshot_seconds"], horizon["prepared_seconds"]),
        idle_slots=horizon["idle_slots"],
        moves=moves,
    )


async def read_snapshot_seconds(dsn: str) -> float:
    """How long the oldest transaction holds back vacuum, of those that whoever connects may see: a member of
    `pg_read_all_stats` sees all. Raises STORAGE_UNAVAILABLE."""
    try:
        connection = await _connect(dsn)
        try:
            horizon = await connection.fetchrow(Queries("diagnosis.sql")["read_horizon"])
        finally:
            await connection.close(timeout=5)
    except _FAILURES:
        raise Refusal(Reason.STORAGE_UNAVAILABLE) from None
    return float(max(horizon["snapshot_seconds"], horizon["prepared_seconds"]))


async def _read_moves(connection: asyncpg.Connection) -> tuple[UnfinishedMove, ...] | None:
    try:
        return read_unfinished(await connection.fetch(Queries("moves.sql")["moves_under_way"], MOST_MOVES))
    except asyncpg.PostgresError:  # of a schema that lacks it, or is not this user's to read
        return None


async def _schema_trouble(dsn: str, *, allow_test_clock: bool) -> str | None:
    try:
        await check_schema(dsn, allow_test_clock=allow_test_clock)
    except SchemaError as error:
        return str(error)
    except (*_FAILURES, Refusal) as error:
        return f"it cannot be read: {error}; run `tenure-store migrate` as its owner"
    return None


async def _hints_trouble(dsn: str) -> str | None:
    """Why what one connection notifies does not reach another that listens."""
    channel, heard = f"tenure_doctor_{uuid4().hex}", asyncio.Event()
    listening: asyncpg.Connection | None = None
    try:
        listening = await _connect(dsn)
        await listening.add_listener(channel, lambda *_: heard.set())
        sending = await _connect(dsn)
        try:
            await sending.fetchval(Queries("chores.sql")["notify"], channel, "")
        finally:
            await sending.close()
        async with asyncio.timeout(HINT_SECONDS):
            await heard.wait()
    except TimeoutError:
        return "a NOTIFY did not arrive"
    except _FAILURES as error:
        return f"LISTEN cannot be used: {error}"
    finally:
        if listening is not None:
            await listening.close(timeout=5)
    return None


async def _connect(dsn: str) -> asyncpg.Connection:
    return await asyncpg.connect(dsn, timeout=10, command_timeout=15, server_settings={"application_name": "tenure-doctor"})
