"""A database in which time stands still, whose whole state can be kept, put back and compared, and the sessions on it.

With the clock at rest, ids given and the sequence reset, the same steps leave the same rows to the last byte. So outcomes are
compared whole, and nothing has to be left out of the comparison.
"""

import asyncio
import json
import time
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self

import asyncpg

from store_service.db.budgets import BudgetRows
from store_service.db.chores import ChoreRows
from store_service.db.cleanup import CleanupRows
from store_service.db.holds import HoldRows
from store_service.db.leases import LeaseRows
from store_service.db.pool import SETTINGS, Database
from store_service.db.purges import PurgeRows
from store_service.db.redrives import RedriveRows
from store_service.db.retention import RetentionRows
from store_service.db.tasks import TaskRows
from store_service.db.tenants import TenantRows
from store_service.db.waits import WaitRows

LONG_AGO: Final = datetime(2030, 1, 1, tzinfo=UTC)
BEFORE: Final = LONG_AGO + timedelta(days=2)
"""When what is there was made."""
START: Final = BEFORE + timedelta(seconds=5)
"""When the schedules start."""
MOST_SECONDS: Final = 60.0
"""How long a schedule waits for what must happen."""

_STILL = """
CREATE SCHEMA stage;
CREATE TABLE stage.clock (instant timestamptz NOT NULL);
INSERT INTO stage.clock VALUES (clock_timestamp());
CREATE OR REPLACE FUNCTION tenure.task_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT instant FROM stage.clock';
GRANT USAGE ON SCHEMA stage TO PUBLIC;
GRANT SELECT ON stage.clock TO PUBLIC;
CREATE TABLE stage.scene (name text PRIMARY KEY, tables jsonb NOT NULL);
"""
_TABLES = """
SELECT relname FROM pg_class WHERE relnamespace = 'tenure'::regnamespace AND relkind = 'r' AND relname <> 'epoch' ORDER BY 1
"""
_WAITS = """
SELECT wait_event_type IS NOT DISTINCT FROM 'Lock' AND wait_event IN ('transactionid', 'tuple', 'advisory')
FROM pg_stat_activity WHERE pid = $1
"""


class Session(Database):
    """One connection, and on it the store's own statements."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection
        self.pid: int = connection.get_server_pid()
        self.tasks = TaskRows(self)
        self.leases = LeaseRows(self)
        self.waits = WaitRows(self)
        self.tenants = TenantRows(self)
        self.chores = ChoreRows(self)
        self.retention = RetentionRows(self)
        self.cleanup = CleanupRows(self)
        self.holds = HoldRows(self)
        self.purges = PurgeRows(self)
        self.budgets = BudgetRows(self)
        self.redrives = RedriveRows(self)

    @property
    def size(self) -> int:
        return 4

    async def read(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        return await self.write(query, *arguments)

    async def write(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        rows: list[asyncpg.Record] = await self.connection.fetch(query, *arguments)
        return rows


class Stage:
    """The database, two sessions `a` and `b` that race, one, `other`, that holds locks, and one that looks on."""

    a: Session
    b: Session
    other: Session

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._open = AsyncExitStack()
        self._scenes: set[str] = set()

    async def __aenter__(self) -> Self:
        self.look = await self.session(role="none")
        self.a, self.b = [await self.session() for _ in range(2)]
        self.other = await self.session(role="none")
        await self.look.connection.execute(_STILL)
        names = [row["relname"] for row in await self.look.read(_TABLES)]
        parts = [f"'{name}', ({_rows_of(name)})" for name in (*names, "audit", "budget_audit")]
        self._dump = f"SELECT jsonb_build_object({', '.join(parts)})::text"
        steps = [
            f"DELETE FROM tenure.{name}; INSERT INTO tenure.{name} "
            f"SELECT * FROM jsonb_populate_recordset(NULL::tenure.{name}, v_tables -> '{name}');"
            for name in names
        ]
        await self.look.connection.execute(
            "CREATE FUNCTION stage.put_back(p_name text, p_start timestamptz) RETURNS void LANGUAGE plpgsql AS $$ "
            "DECLARE v_tables jsonb; BEGIN SELECT s.tables INTO v_tables FROM stage.scene s WHERE s.name = p_name; "
            f"{' '.join(steps)} UPDATE stage.clock SET instant = p_start; "
            "PERFORM setval('tenure.turn', CASE p_name WHEN 'nothing' THEN 1 ELSE 1000 END); END $$"
        )
        await self.keep("nothing")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def session(self, *, role: str = SETTINGS["role"]) -> Session:
        """Another session, with the settings of the store's own; `none` is whoever the address names."""
        connection = await asyncpg.connect(self._dsn, server_settings=SETTINGS | {"role": role})
        self._open.push_async_callback(connection.close)
        return Session(connection)

    async def set_clock(self, instant: datetime) -> None:
        """Makes it that time for everyone."""
        await self.look.read("UPDATE stage.clock SET instant = $1", instant)

    async def keep(self, name: str) -> None:
        """Keeps what there is, under a name."""
        await self.look.read(f"INSERT INTO stage.scene SELECT $1, ({self._dump})::jsonb", name)
        self._scenes.add(name)

    def has(self, name: str) -> bool:
        """Whether something was kept under that name."""
        return name in self._scenes

    async def put_back(self, name: str) -> None:
        """Makes everything as it was when it was kept, and the time that of the start."""
        await self.look.read("SELECT stage.put_back($1, $2)", name, START)

    async def state(self) -> dict[str, Any]:
        """Every row of every table."""
        found: dict[str, Any] = json.loads((await self.look.read(self._dump))[0][0])
        return found

    async def waits(self, session: Session) -> bool:
        """Whether a session waits, right now, for a lock that another holds."""
        return bool((await self.look.read(_WAITS, session.pid))[0][0])

    async def settled(self, running: "asyncio.Task[Any]", session: Session) -> bool:
        """Returns when a statement has ended (False) or waits for a lock (True)."""
        end = time.monotonic() + MOST_SECONDS
        while not running.done():
            if await self.waits(session):
                return True
            assert time.monotonic() < end, "a statement neither ended nor waited for a lock"
        return False


def start(call: Awaitable[Any]) -> "asyncio.Task[Any]":
    """Runs a call beside the others."""
    return asyncio.ensure_future(call)


def _rows_of(table: str) -> str:
    return f"SELECT coalesce(jsonb_agg(to_jsonb(x) ORDER BY to_jsonb(x)::text), '[]') FROM tenure.{table} x"
