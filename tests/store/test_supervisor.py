"""Stores that clean up by themselves: any number, and each tenant's trouble is its own. Source: contract, section 16."""

import asyncio
import re
from contextlib import AbstractAsyncContextManager
from typing import Any

import asyncpg
import pytest

from store_service.config import read_config
from store_service.model.shards import shard_of
from store_service.server import Store
from store_service.settings import ConfigError
from tests.conftest import Clock, Stubs, started, store_on
from tests.pair import metrics_at
from tests.store.builders import LOCK_TENANT, TENANT, blocked, create, get, holding, until
from tests.store.retention import DAY, cleanup_lease, ended

TENANTS = ("a", "b", "c", "d")


def cleaning(dsn: str, **settings: Any) -> AbstractAsyncContextManager[Store]:
    """A store that looks all the time."""
    usual = {"cleanup": True, "drain_seconds": 20, "cleanup_scan_seconds": 0.05}
    return started(store_on(dsn, **usual | settings))


async def figures(store: Store) -> dict[str, float]:
    """What it says of cleaning up."""
    text = await asyncio.to_thread(metrics_at, store.admin_port)
    found = {
        name: float(value)
        for name, value in re.findall(r'^tenure_store_cleanup_total{event="(\w+)"} (\S+)', text, re.MULTILINE)
    }
    found["removed"] = float(re.findall(r"^tenure_store_removed_tasks_total (\S+)", text, re.MULTILINE)[0])
    return found


async def have_removed(count: int, *stores: Store) -> bool:
    """Whether they say that they removed so many; they count what was committed."""
    return sum([(await figures(each))["removed"] for each in stores]) == count


async def is_gone(database: asyncpg.Connection, *tenants: str) -> bool:
    """Whether nothing is left of what ended in these tenants."""
    query = "SELECT NOT EXISTS (SELECT FROM tenure.task_state WHERE tenant_id = ANY ($1) AND ended_at IS NOT NULL)"
    gone: bool = await database.fetchval(query, tenants)
    return gone


async def some_of_each(store: Stubs, clock: Clock, count: int = 3) -> None:
    """Tasks that are over in each tenant."""
    for tenant_id in TENANTS:
        for _ in range(count):
            await ended(store, ttl_ms=1, tenant_id=tenant_id)
    await clock.advance(seconds=2 * DAY)


async def test_two_stores_remove_each_task_once_and_nothing_that_lives(
    store: Stubs, clock: Clock, dsn: str, database: asyncpg.Connection
) -> None:
    await some_of_each(store, clock, count=7)
    live = [await create(store, tenant_id=tenant_id, ttl_ms=1) for tenant_id in TENANTS]
    await clock.advance(seconds=2 * DAY)
    async with cleaning(dsn, cleanup_batch=2, cleanup_batches_per_claim=2) as one, cleaning(dsn, cleanup_batch=3) as other:
        await until(lambda: is_gone(database, *TENANTS), "all that is over is removed")
        await until(lambda: have_removed(28, one, other), "each removal is counted once")
        told = [await figures(each) for each in (one, other)]
    assert all(each["failed"] == each["lease_lost"] == 0 for each in told)
    rows = await database.fetch(
        "SELECT tenant_id, array_agg(cursor ORDER BY cursor) AS cursors FROM tenure.tombstone GROUP BY 1"
    )
    assert {row["tenant_id"]: row["cursors"] for row in rows} == {tenant_id: [*range(1, 8)] for tenant_id in TENANTS}
    for task in live:
        await get(store, task.task_id, tenant_id=task.tenant_id)
    assert await database.fetchval("SELECT count(*) FROM tenure.cleanup_lease WHERE owner_id IS NOT NULL") == 0


async def test_a_look_removes_all_though_its_steps_are_smaller_than_they_may_be(
    store: Stubs, clock: Clock, dsn: str, database: asyncpg.Connection
) -> None:
    await some_of_each(store, clock)
    await database.execute("UPDATE tenure.task_state SET checkpoints = 10000, checkpoint_bytes = 64 << 20")
    async with cleaning(dsn, cleanup_scan_seconds=3_600):
        await until(lambda: is_gone(database, *TENANTS), "all that is over is removed")


async def test_one_tenant_s_failure_stops_no_other(store: Stubs, clock: Clock, dsn: str, database: asyncpg.Connection) -> None:
    await some_of_each(store, clock)
    await database.execute(
        "CREATE FUNCTION tenure.fail() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'no room'; END$$;"
        "CREATE TRIGGER fail BEFORE INSERT ON tenure.tombstone FOR EACH ROW WHEN (NEW.tenant_id = 'b') "
        "EXECUTE FUNCTION tenure.fail()"
    )
    async with cleaning(dsn) as running:
        await until(lambda: is_gone(database, "a", "c", "d"), "the others are cleaned")
        await until(lambda: failed_at_least(running, 2), "the one fails, and is tried again")
        assert not await is_gone(database, "b")
        await database.execute("DROP TRIGGER fail ON tenure.tombstone")
        await until(lambda: is_gone(database, "b"), "what failed is done when it can be")


async def failed_at_least(store: Store, count: int) -> bool:
    return (await figures(store))["failed"] >= count


async def test_a_look_that_fails_is_repeated_from_the_first_page(
    store: Stubs, clock: Clock, dsn: str, database: asyncpg.Connection
) -> None:
    await some_of_each(store, clock, count=1)
    await database.execute("ALTER FUNCTION tenure.list_cleanup_tenants RENAME TO away")
    async with cleaning(dsn) as running:
        await until(lambda: failed_at_least(running, 1), "the look fails")
        await database.execute("ALTER FUNCTION tenure.away RENAME TO list_cleanup_tenants")
        await until(lambda: is_gone(database, *TENANTS), "the next one succeeds")


async def test_a_tenant_that_another_cleans_is_left_to_it(
    store: Stubs, clock: Clock, dsn: str, database: asyncpg.Connection
) -> None:
    await some_of_each(store, clock, count=1)
    await cleanup_lease(store, tenant_id="c")
    async with cleaning(dsn) as running:
        await until(lambda: is_gone(database, "a", "b", "d"), "the others are cleaned")

        async def was_contended() -> bool:
            return (await figures(running))["contended"] > 0

        await until(was_contended, "the one is passed over")
        assert not await is_gone(database, "c")
        await clock.advance(seconds=901)
        await until(lambda: is_gone(database, "c"), "the lease of who is gone is taken over")


async def test_a_lease_that_is_lost_stops_its_tenant_and_is_counted(
    store: Stubs, clock: Clock, dsn: str, database: asyncpg.Connection
) -> None:
    await ended(store, ttl_ms=1)
    await clock.advance(seconds=2 * DAY)
    async with cleaning(dsn) as running:
        async with holding(dsn, LOCK_TENANT, TENANT):
            await blocked(database)
            await clock.advance(seconds=31)

        async def was_lost() -> bool:
            return (await figures(running))["lease_lost"] == 1

        await until(was_lost, "the lease is lost")
        await until(lambda: is_gone(database, TENANT), "it is taken anew")


async def test_a_store_that_stops_ends_its_steps_and_gives_its_leases_back(
    store: Stubs, clock: Clock, dsn: str, database: asyncpg.Connection
) -> None:
    for _ in range(3):
        await ended(store, ttl_ms=1)
    await clock.advance(seconds=2 * DAY)
    async with holding(dsn, LOCK_TENANT, TENANT):
        running = cleaning(dsn, cleanup_batch=1)
        cleanup = (await running.__aenter__())._parts.cleanup  # type: ignore[union-attr]
        await blocked(database)
        stopping = asyncio.ensure_future(running.__aexit__(None, None, None))
        assert cleanup is not None
        await cleanup._stopping.wait()
    await stopping
    assert await database.fetchval("SELECT count(*) FROM tenure.tombstone") == 1, "the step under way, and no other"
    assert await database.fetchval("SELECT owner_id IS NULL FROM tenure.cleanup_lease")


async def test_shards_share_out_tenants_and_leave_none_out(
    store: Stubs, clock: Clock, dsn: str, database: asyncpg.Connection
) -> None:
    await some_of_each(store, clock, count=1)
    parts = [[tenant_id for tenant_id in TENANTS if shard_of(tenant_id, 2) == shard] for shard in range(2)]
    assert all(parts)
    for shard in range(2):
        async with cleaning(dsn, cleanup_shards=2, cleanup_shard=shard):
            await until(lambda shard=shard: is_gone(database, *parts[shard]), "its part is cleaned")
        assert await is_gone(database, *parts[1]) == (shard == 1)


@pytest.mark.parametrize(
    ("text", "digest"), [("", 0xCBF29CE484222325), ("a", 0xAF63DC4C8601EC8C), ("foobar", 0x85944171F73967E8)]
)
def test_a_shard_is_the_published_fnv_1a_of_the_tenant(text: str, digest: int) -> None:
    assert shard_of(text, 2**64) == digest


def test_a_shard_that_is_none_of_the_shards_is_refused() -> None:
    with pytest.raises(ConfigError, match="TENURE_STORE_CLEANUP_SHARD must be 0 to 1"):
        read_config({"TENURE_STORE_DSN": "x", "TENURE_STORE_CLEANUP_SHARDS": "2", "TENURE_STORE_CLEANUP_SHARD": "2"})


async def test_the_figures_tell_what_is_to_be_removed_and_since_when(store: Stubs, clock: Clock, dsn: str) -> None:
    await some_of_each(store, clock)
    async with started(store_on(dsn)) as running:
        assert running._parts is not None
        await running._parts.chores.look_at_what_is_over()
        read = running._registry.get_sample_value
        assert read("tenure_store_removable_tasks") == 12
        assert DAY <= (read("tenure_store_removable_age_seconds") or 0) < DAY + 60
        assert read("tenure_store_purges_waiting") == 0
