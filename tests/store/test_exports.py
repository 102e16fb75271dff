"""Stores archive what they removed, and the watermark moves only behind what the archive has."""

import asyncio
import re
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from taskstore.v1 import retention_pb2

from store_service.archive.batches import Batch, BatchId
from store_service.archive.folder import Folder
from tests.conftest import Clock, Stubs, serving
from tests.pair import metrics_at
from tests.store.builders import TENANT, set_policy, until
from tests.store.retention import DAY, HOUR_MS, ended, remove


def archiving(dsn: str, archive: Path, **settings: Any) -> AbstractAsyncContextManager[Stubs]:
    """A store that cleans up and archives by itself."""
    return serving(dsn, cleanup=True, cleanup_scan_seconds=0.05, archive=str(archive), **settings)


async def exported(store: Stubs, tenant_id: str = TENANT) -> int:
    """Up to which cursor tombstones are archived."""
    told = await store.retention.GetRetention(retention_pb2.GetRetentionRequest(tenant_id=tenant_id))
    return told.exported.through_cursor


async def failures(store: Stubs, fault: str) -> float:
    """How often the archive failed so."""
    text = await asyncio.to_thread(metrics_at, store.admin_port)
    found = re.search(rf'^tenure_store_archive_failures_total{{fault="{fault}"}} (\S+)$', text, re.MULTILINE)
    assert found is not None
    return float(found[1])


async def test_what_is_removed_is_archived_by_itself_also_what_was_removed_before_there_was_an_archive(
    store: Stubs, clock: Clock, dsn: str, tmp_path: Path
) -> None:
    for tenant_id in ("a", "b"):
        await set_policy(store, tenant_id=tenant_id)
        await ended(store, tenant_id=tenant_id, ttl_ms=HOUR_MS)
    await clock.advance(seconds=2 * DAY)
    await remove(store, tenant_id="a")
    await clock.advance(seconds=DAY)  # the lease of who removed has run out
    async with archiving(dsn, tmp_path) as archivist:
        for tenant_id in ("a", "b"):
            await until(lambda tenant_id=tenant_id: _is_exported(archivist, tenant_id, 1), "it is archived")
    assert await Folder(tmp_path).list_batches("a") == [BatchId("a", 1, 1)]
    assert await Folder(tmp_path).list_batches("b") == [BatchId("b", 1, 1)]


async def test_an_archive_that_fails_stops_no_removal_and_is_made_up_for(
    store: Stubs, clock: Clock, dsn: str, tmp_path: Path
) -> None:
    place = tmp_path / "archive"
    await ended(store, ttl_ms=HOUR_MS)
    await clock.advance(seconds=2 * DAY)
    async with archiving(dsn, place) as archivist:
        await until(lambda: _has_failed(archivist, "configuration"), "the archive fails")
        told = await archivist.retention.GetRetention(retention_pb2.GetRetentionRequest(tenant_id=TENANT))
        assert (told.last_cursor, told.exported.through_cursor) == (1, 0)
    place.mkdir()
    async with archiving(dsn, place) as archivist:
        await until(lambda: _is_exported(archivist, TENANT, 1), "it is archived")


async def test_a_tenant_whose_archive_was_tampered_with_stops_no_other_and_its_watermark_stays(
    store: Stubs, clock: Clock, dsn: str, tmp_path: Path
) -> None:
    await Folder(tmp_path).put_batch(Batch(BatchId("a", 1, 1), b"something else"))
    for tenant_id in ("a", "b"):
        await set_policy(store, tenant_id=tenant_id)
        await ended(store, tenant_id=tenant_id, ttl_ms=HOUR_MS)
    await clock.advance(seconds=2 * DAY)
    async with archiving(dsn, tmp_path) as archivist:
        await until(lambda: _is_exported(archivist, "b", 1), "the other tenant is archived")
        await until(lambda: _has_failed(archivist, "integrity"), "the archive fails")
        assert await exported(archivist, "a") == 0


async def _is_exported(store: Stubs, tenant_id: str, through: int) -> bool:
    return await exported(store, tenant_id) == through


async def _has_failed(store: Stubs, fault: str) -> bool:
    return await failures(store, fault) > 0
