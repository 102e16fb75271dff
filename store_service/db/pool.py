"""Connections to Postgres, and what becomes of their failures."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakValueDictionary

import asyncpg
import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from store_service.db.fault_points import reaching_statement
from store_service.db.leaving import to_its_end
from store_service.db.queries import Queries, name_of
from store_service.db.traces import Traces
from store_service.fault_points import FaultPoints
from store_service.model.refusals import Reason, Refusal

SETTINGS = {
    "application_name": "tenure-store",
    "role": "tenure_app",  # whoever the address names, the store has this role's rights alone
    "jit": "off",
    # One plan for all parameters, by key and by nested loop: made once a connection, not once a call.
    "plan_cache_mode": "force_generic_plan",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "timezone": "UTC",
    "default_transaction_isolation": "read committed",  # whatever the database has: functions look anew after each lock
    "statement_timeout": "15s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "10s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}

_CONTENTION = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)
_NOT_APPLIED = (
    asyncpg.TooManyConnectionsError,
    asyncpg.CannotConnectNowError,
    asyncpg.QueryCanceledError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InsufficientResourcesError,
)
_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    ConnectionError,
    TimeoutError,
    OSError,
)

_MOVED = "TN001"
"""Raised by `tenure.allow`."""


AWAY = tuple(kind for kind in (*_LOST, *_NOT_APPLIED) if issubclass(kind, asyncpg.PostgresError | asyncpg.InterfaceError))
"""What Postgres itself, or the driver, says when there is no connection to be had, or no longer."""


@contextlib.contextmanager
def reaching(*others: type[Exception]) -> Iterator[None]:
    """Within it, a database that is away is refused with STORAGE_UNAVAILABLE, and so is what else says that; an address that is
    none is a ValueError."""
    try:
        yield
    except asyncpg.ClientConfigurationError:
        raise
    except (*AWAY, *others):
        raise Refusal(Reason.STORAGE_UNAVAILABLE) from None


class Locked(Refusal):
    """Others held what the statement needs for longer than it may wait. Nothing was applied."""

    def __init__(self) -> None:
        super().__init__(Reason.STORAGE_UNAVAILABLE)


class Moved(Refusal):
    """Tenants that the statement names are being moved to another cell, or were. Nothing was applied."""

    def __init__(self, tenants: Sequence[str]) -> None:
        super().__init__(Reason.TENANT_MOVED)
        self.tenants = frozenset(tenants)


class Database:
    """A pool of connections. Every statement is a transaction of its own. Writes of one tenant alone, who may all wait for the
    same row, take half of the connections at most, and so do claims of one worker, which wait for each other.

    Failures come out as `Refusal`s: STORAGE_UNAVAILABLE where nothing was applied, OUTCOME_UNKNOWN where a write was under
    way when the connection went. Serialization failures and deadlocks are tried again up to five times. A caller that is
    cancelled loses the answer; the statement runs to its end, since the driver cancels by another connection, and may then meet
    an answer that it has no state for.

    Behind a PgBouncer in transaction mode a session belongs to nobody for longer than a transaction. So each statement is one
    that is begun and ended, sets locally what the session would have, and is not prepared under a name.
    """

    def __init__(
        self,
        pool: asyncpg.Pool,
        *,
        acquire_seconds: float,
        registry: CollectorRegistry,
        is_shared: bool = False,
        traces: Traces | None = None,
        points: FaultPoints | None = None,
    ) -> None:
        self._pool = pool
        self._fetch = reaching_statement(points, self._fetch_rows)
        self._is_shared = is_shared
        self._queries = Queries("pool.sql")
        self._traces = traces
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._acquire_seconds = acquire_seconds
        self._waits = Histogram(
            "tenure_store_pool_wait_seconds",
            "Time to get a connection.",
            registry=registry,
            buckets=(0.0005, 0.005, 0.05, 0.5, 5),
        )
        self._contended = Counter(
            "tenure_store_statement_retries", "Statements repeated after 40001 or 40P01.", registry=registry
        )

    @property
    def size(self) -> int:
        """How many connections there are at most."""
        size: int = self._pool.get_max_size()
        return size

    async def read(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        """Runs one statement that writes nothing."""
        return await to_its_end(self._run(query, arguments, lost=Reason.STORAGE_UNAVAILABLE))

    async def write(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        """Runs one statement that writes.

        Its first argument is its tenant, or the tenant of each of its items; or else names who asks.
        """
        return await to_its_end(self._run_in_share(query, arguments))

    async def close(self) -> None:
        """Closes every connection, once the statements under way have ended."""
        await self._pool.close()

    async def _run_in_share(self, query: str, arguments: Sequence[Any]) -> list[asyncpg.Record]:
        if (whose := _only_one(arguments[0] if arguments else None)) is None:
            return await self._run(query, arguments, lost=Reason.OUTCOME_UNKNOWN)
        share = self._shares.get(whose)
        if share is None:
            share = self._shares[whose] = asyncio.Semaphore(max(1, self.size // 2))
        try:
            async with asyncio.timeout(self._acquire_seconds):
                await share.acquire()
        except TimeoutError:
            raise Refusal(Reason.OVERLOADED) from None
        try:
            return await self._run(query, arguments, lost=Reason.OUTCOME_UNKNOWN)
        finally:
            share.release()

    async def _run(self, query: str, arguments: Sequence[Any], *, lost: Reason) -> list[asyncpg.Record]:
        if self._traces is None:
            return await self._run_tried(query, arguments, lost)
        with self._traces.statement(name_of(query)):
            return await self._run_tried(query, arguments, lost)

    async def _run_tried(self, query: str, arguments: Sequence[Any], lost: Reason) -> list[asyncpg.Record]:
        try:
            return await self._run_once(query, arguments, lost)
        except _CONTENTION:
            return await self._run_again(query, arguments, lost)

    async def _run_again(self, query: str, arguments: Sequence[Any], lost: Reason) -> list[asyncpg.Record]:
        attempts = AsyncRetrying(
            retry=retry_if_exception_type(_CONTENTION),
            stop=stop_after_attempt(4),
            wait=wait_random_exponential(multiplier=0.01, max=0.25),
            before=self._count_contention,
            reraise=True,
        )
        try:
            return await attempts(self._run_once, query, arguments, lost)
        except _CONTENTION:
            raise Refusal(Reason.OVERLOADED) from None

    async def _run_once(self, query: str, arguments: Sequence[Any], lost: Reason) -> list[asyncpg.Record]:
        with self._waits.time():
            try:
                connection = await self._pool.acquire(timeout=self._acquire_seconds)
            except TimeoutError:
                raise Refusal(Reason.OVERLOADED) from None
            except (*_LOST, *_NOT_APPLIED, asyncpg.PostgresError):
                raise Refusal(Reason.STORAGE_UNAVAILABLE) from None
        broken = False
        try:
            return await self._fetch(connection, query, arguments)
        except asyncpg.LockNotAvailableError:
            raise Locked from None
        except _NOT_APPLIED as error:
            broken = isinstance(error, asyncpg.ReadOnlySQLTransactionError)
            raise Refusal(Reason.STORAGE_UNAVAILABLE) from None
        except _LOST:
            broken = True
            raise Refusal(lost) from None
        except asyncpg.PostgresError as error:
            if error.sqlstate == _MOVED:
                raise Moved(msgspec.json.decode(error.detail, type=list[str])) from None
            raise
        finally:
            if broken:
                with contextlib.suppress(asyncpg.InterfaceError):  # the pool may have seen its end before us
                    connection.terminate()
            await self._pool.release(connection)

    async def _fetch_rows(self, connection: asyncpg.Connection, query: str, arguments: Sequence[Any]) -> list[asyncpg.Record]:
        rows: list[asyncpg.Record]
        if self._is_shared:
            async with connection.transaction(isolation="read_committed"):
                await connection.execute(self._queries["set_locally"], list(SETTINGS), list(SETTINGS.values()))
                rows = await connection.fetch(query, *arguments)
        else:
            rows = await connection.fetch(query, *arguments)
        return rows

    def _count_contention(self, _: RetryCallState) -> None:
        self._contended.inc()


def _only_one(first: Any) -> str | None:
    """Whose a statement is by its first argument; None if it is of several."""
    if isinstance(first, list) and first and first.count(first[0]) == len(first):
        first = first[0]
    return first if isinstance(first, str) else None


async def open_database(
    dsn: str,
    *,
    size: int,
    registry: CollectorRegistry,
    is_shared: bool = False,
    acquire_seconds: float = 5.0,
    connect_seconds: float = 10.0,
    points: FaultPoints | None = None,
    traces: Traces | None = None,
) -> Database:
    """Opens a pool of at most `size` connections; `is_shared` where the address is a PgBouncer's, in transaction mode. Raises
    STORAGE_UNAVAILABLE when the database cannot be reached, ValueError when the address is none."""
    settings = {"application_name": SETTINGS["application_name"]} if is_shared else SETTINGS
    with reaching(*_LOST):
        pool = await asyncpg.create_pool(
            dsn,
            min_size=min(2, size),
            max_size=size,
            timeout=connect_seconds,
            command_timeout=20,
            max_inactive_connection_lifetime=300,
            reset=_keep,
            server_settings=settings,
            statement_cache_size=0 if is_shared else 100,
        )
    return Database(pool, acquire_seconds=acquire_seconds, registry=registry, is_shared=is_shared, traces=traces, points=points)


async def _keep(_: asyncpg.Connection) -> None:
    """Resets nothing when a connection comes back: no statement of ours leaves anything in its session."""
