"""What the tests of moves say again and again."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import asyncpg
import grpc

from store_service.db.moves import open_move
from store_service.operations.moves import keep_tenant, move_tenant
from tests.conftest import Stubs
from tests.store.builders import TENANT, refusal_of

STEPS: Final = ("awaits it", "nothing new", "frozen", "copied", "has left", "lives in the second", "nothing of it is left")
"""What is told after each step."""


class BrokenOff(Exception):  # noqa: N818 (nothing is wrong)
    """The mover died."""


async def move(here: str, there: str, *, tenant_id: str = TENANT, until: str = "", drain_seconds: float = 0) -> Sequence[str]:
    """Moves a tenant from one database to another; dies once `until` was told. Returns all that was told."""
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        if until and until in text:
            raise BrokenOff

    async with open_move(here, there, tenant_id) as (source, target):
        await move_tenant(source, target, drain_seconds=drain_seconds, tell=tell)
    return told


async def stay(here: str, there: str, *, tenant_id: str = TENANT) -> None:
    """Takes a move back."""
    async with open_move(here, there, tenant_id) as (source, target):
        await keep_tenant(source, target, tell=lambda _: None)


ADJUSTED: Final = {
    "task_state": ["token", "expires_at", "check_at", "lived", "finish_token", "finish_digest"],
    "tenant": ["turn"],
    "lane": ["turn"],
    "cleanup_lease": ["token", "owner_id", "principal", "expires_at"],
    "budget_export": ["held_until", "metered"],
}
"""What is another on arrival."""
ROWS: Final = """
SELECT coalesce(array_agg(r::text ORDER BY r::text), '{{}}')
FROM (SELECT to_jsonb(x) - $2::text[] AS r FROM tenure.{} x WHERE tenant_id = $1) y
"""
FACTS: Final = "SELECT count(*) FROM tenure.{} WHERE tenant_id = $1"


@dataclass(frozen=True)
class Cell:
    """A cell that is not where the test's tenant lives at first."""

    dsn: str
    store: Stubs
    database: asyncpg.Connection


async def tables(database: asyncpg.Connection) -> list[str]:
    """Those that move."""
    return [row["name"] for row in await database.fetch("SELECT name FROM tenure.moved_tables()")]


async def kept(database: asyncpg.Connection, tenant_id: str = TENANT) -> dict[str, list[Any]]:
    """All that a tenant has, but for what is adjusted."""
    return {
        name: [json.loads(row) for row in await database.fetchval(ROWS.format(name), tenant_id, ADJUSTED.get(name, []))]
        for name in await tables(database)
    }


async def counts(database: asyncpg.Connection, tenant_id: str = TENANT) -> dict[str, int]:
    """How many rows a tenant has, where it has any."""
    found = {name: await database.fetchval(FACTS.format(name), tenant_id) for name in await tables(database)}
    return {name: count for name, count in found.items() if count}


async def assert_moved(call: Any) -> None:
    """The call is refused as the tenant is elsewhere."""
    refused = await refusal_of(call)
    assert (refused.reason, refused.code) == ("TENANT_MOVED", grpc.StatusCode.UNAVAILABLE)
    assert refused.retry_after_ms == 1_000
