"""Claims that wait for hints, and hints that get lost."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Final
from uuid import uuid4

import asyncpg

from store_service.db.arrays import ids, numbers
from store_service.db.queries import Queries

WELL_BEFORE_ITS_END_SECONDS: Final = 15.0


async def in_time(call: Awaitable[Any]) -> Any:
    """What a call answers, if it is woken and does not have to look by itself."""
    return await asyncio.wait_for(call, timeout=WELL_BEFORE_ITS_END_SECONDS)


async def create_unheard(database: asyncpg.Connection, *, tenant_id: str = "acme") -> None:
    """Creates a task in a way that tells nobody."""
    row: Sequence[Any] = (
        tenant_id, uuid4().hex, b"", 1, 0, "text/plain", b"", 0, None,
        "t", "report", 1, "i", "s", b"", b"", 1_000, 1_000, 0, "", "", "",
    )  # fmt: skip
    columns = [numbers([value]) if isinstance(value, int) else [value] for value in row]
    columns.insert(1, ids([str(uuid4())]))
    await database.fetch(Queries("tasks.sql")["create_tasks"], *columns, *([] for _ in range(5)))
