"""One of the two databases between which a tenant moves."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final, Self

import asyncpg

from store_service.db.queries import Queries
from store_service.model.moves import MoveError, MoveState, Place, UnfinishedMove

_SETTINGS: Final = {
    "application_name": "tenure-move",
    "role": "tenure_mover",
    "timezone": "UTC",  # rows are compared as texts
    "jit": "off",
    "lock_timeout": "30s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
_LOOK_SECONDS: Final = 0.05
_CHUNKS: Final = 16
"""So many pieces of a copy are in memory at most."""


@dataclass(frozen=True, slots=True)
class Table:
    """One in which tenants have rows."""

    name: str
    columns: str
    reading: str
    """The query for the rows of tenant $1."""


class MoveRows:
    """A connection to one of the databases, and its lock on the tenant that moves."""

    def __init__(self, connection: asyncpg.Connection, tenant_id: str, identity: str, actor: str) -> None:
        self._connection = connection
        self._queries = Queries("moves.sql")
        self._tenant_id = tenant_id
        self._actor = actor
        self.identity = identity
        """Which database it is, whatever address leads to it."""

    @classmethod
    async def open(cls, dsn: str, tenant_id: str) -> Self:
        """Connects. Raises MoveError where who connects may not move tenants."""
        queries = Queries("moves.sql")
        try:
            connection = await asyncpg.connect(dsn, server_settings=_SETTINGS)
        except asyncpg.PostgresError as error:
            raise MoveError(f"{error}; both databases must be migrated, and who connects a member of tenure_mover") from None
        row = await connection.fetchrow(queries["identity"])
        return cls(connection, tenant_id, row["identity"], row["actor"])

    async def lock(self) -> None:
        """Keeps other movers of the tenant away until the end of the connection. Raises MoveError where there is one."""
        row = await self._connection.fetchrow(self._queries["lock_move"], self._tenant_id)
        if not row["locked"]:
            raise MoveError("it is being moved by another process")

    async def close(self) -> None:
        """Lets go of the lock."""
        await self._connection.close(timeout=10)

    async def find_move(self) -> Place:
        """What is known of the tenant here."""
        row = await self._connection.fetchrow(self._queries["find_move"], self._tenant_id)
        return Place(
            lives=row["lives"],
            state=None if row["state"] is None else MoveState(row["state"]),
            other=row["other"] or "",
            epoch=row["epoch"] or 0,
            copied=bool(row["copied"]),
        )

    async def begin_arrival(self, other: str, epoch: int) -> str:
        """Returns the outcome."""
        row = await self._connection.fetchrow(self._queries["begin_arrival"], self._tenant_id, other, epoch)
        return str(row["outcome"])

    async def begin_leaving(self, other: str) -> str:
        """Returns the outcome."""
        row = await self._connection.fetchrow(self._queries["begin_leaving"], self._tenant_id, other)
        return str(row["outcome"])

    async def count_leased(self) -> int:
        """How many of its tasks are leased."""
        row = await self._connection.fetchrow(self._queries["count_leased"], self._tenant_id)
        return int(row["leased"])

    async def freeze(self) -> None:
        """Refuses every call from now on."""
        await self._connection.fetchrow(self._queries["freeze"], self._tenant_id, self._actor)

    async def settle(self, *, within_seconds: float) -> None:
        """Waits until everything has ended that began before. Raises MoveError when it takes too long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + within_seconds
        before = await self._under_way()
        while before:
            if loop.time() > until:
                raise MoveError("a transaction in the database does not end; end it, and move again")
            await asyncio.sleep(_LOOK_SECONDS)
            before &= await self._under_way()

    async def tables(self) -> list[Table]:
        """Where its rows are."""
        rows = await self._connection.fetch(self._queries["moved_tables"])
        return [Table(row["name"], row["columns"], row["reading"]) for row in rows]

    async def copy_from(self, source: "MoveRows", *, epoch: int) -> int:
        """Brings all rows of the tenant here, in one transaction, and compares them. Returns how many there are.

        Raises MoveError where the two databases differ in what they keep, and where the rows do.
        """
        tables = await self.tables()
        if tables != await source.tables():
            raise MoveError("the two schemas differ; run `tenure-store migrate` of one version on both")
        async with self._connection.transaction():
            for table in tables:
                await self._connection.fetchrow(self._queries["stage_rows"], table.name)
                await self._connection.copy_to_table(
                    "staged", schema_name="pg_temp", source=source.read_rows(table), format="binary"
                )
                await self._connection.fetchrow(self._queries["store_rows"], table.name)
            digests = await self.digest_rows()
            if digests != await source.digest_rows():
                raise MoveError("what was copied differs from what is there; nothing was kept of it, move again")
            await self._connection.fetchrow(self._queries["end_copy"], self._tenant_id, epoch)
        return sum(amount for amount, _ in digests.values())

    async def read_rows(self, table: Table) -> AsyncIterator[bytes]:
        """The tenant's rows in one table, in pieces of Postgres's binary format."""
        pieces: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue(_CHUNKS)

        async def read() -> None:
            try:
                query = self._connection.copy_from_query(table.reading, self._tenant_id, output=pieces.put, format="binary")
                await query
                await pieces.put(None)
            except Exception as error:  # noqa: BLE001 (told to who reads)
                await pieces.put(error)

        reading = asyncio.create_task(read())
        try:
            while (piece := await pieces.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            reading.cancel()
            await asyncio.wait({reading})

    async def digest_rows(self) -> dict[str, tuple[int, str]]:
        """How many rows there are in each table, and their digest."""
        rows = await self._connection.fetch(self._queries["digest_rows"], self._tenant_id)
        return {row["name"]: (row["amount"], row["digest"]) for row in rows}

    async def leave(self, other: str, epoch: int) -> bool:
        """Notes that the tenant lives in the other database. Returns whether it does."""
        row = await self._connection.fetchrow(self._queries["leave"], self._tenant_id, other, epoch)
        return bool(row["has_left"])

    async def arrive(self) -> None:
        """The tenant lives here from now on."""
        await self._connection.fetchrow(self._queries["arrive"], self._tenant_id)

    async def abandon_arrival(self) -> None:
        """It does not come after all."""
        await self._connection.fetchrow(self._queries["abandon_arrival"], self._tenant_id)

    async def stay(self) -> None:
        """It stays after all."""
        await self._connection.fetchrow(self._queries["stay"], self._tenant_id)

    async def forget_rows(self, limit: int) -> int:
        """Removes rows of one that has left. Returns how many."""
        row = await self._connection.fetchrow(self._queries["forget_rows"], self._tenant_id, limit)
        return int(row["forgotten"])

    async def _under_way(self) -> set[str]:
        row = await self._connection.fetchrow(self._queries["under_way"])
        return set(row["found"] or ())


def read_unfinished(rows: Iterable[asyncpg.Record]) -> tuple[UnfinishedMove, ...]:
    """The rows of `moves_under_way`, as whoever looks at moves and makes none asks for them."""
    return tuple(
        UnfinishedMove(row["tenant_id"], MoveState(row["state"]), row["since_ms"] / 1000, row["attended"]) for row in rows
    )


@asynccontextmanager
async def open_move(source_dsn: str, target_dsn: str, tenant_id: str) -> AsyncIterator[tuple[MoveRows, MoveRows]]:
    """Both databases, locked for one mover of this tenant. Raises MoveError where another is at work, and where a database
    fails, then or later."""
    async with AsyncExitStack() as stack:
        both = []
        for dsn in (source_dsn, target_dsn):
            rows = await MoveRows.open(dsn, tenant_id)
            stack.push_async_callback(rows.close)
            both.append(rows)
        if both[0].identity == both[1].identity:
            raise MoveError("both addresses lead to the same database")
        try:
            for rows in both:
                await rows.lock()
            yield both[0], both[1]
        except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise MoveError(f"{error}; mend that, and move again: it goes on where it was broken off") from error
