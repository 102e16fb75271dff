"""Claims that wait for hints, and hints that get lost."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Final
from uuid import uuid4

import asyncpg
from taskstore.v1 import leases_pb2

from store_service.db.arrays import ids, numbers
from store_service.db.queries import Queries
from tests.conftest import Stubs
from tests.store.builders import claim

WELL_BEFORE_ITS_END_SECONDS: Final = 15.0


async def waiting_claim(store: Stubs, **fields: Any) -> "asyncio.Task[leases_pb2.LeaseTasksResponse]":
    """A claim that has found nothing and waits."""
    request = claim(wait_ms=20_000, **fields)
    call = asyncio.ensure_future(store.leases.LeaseTasks(request))
    # Its own look, and then another's full one, have passed by when an unrelated claim is answered.
    for _ in range(3):
        await store.leases.LeaseTasks(claim(workflow="nobody's"))
    assert not call.done()
    return call


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
