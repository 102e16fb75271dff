"""The last receipt proves a whole archive: whatever is taken away from it or changed in it is found."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import pytest

from store_service.archive.batches import Batch, BatchId, Receipt
from store_service.archive.chain import Broken, read_chain
from store_service.archive.documents import Contents, Record, write_batch
from store_service.archive.errors import ArchiveError, Fault
from store_service.archive.exports import export_batch
from store_service.archive.folder import Folder
from store_service.archive.opening import ArchiveSettings, open_destination

TENANT: Final = "acme"
HISTORY: Final = '[0, "CREATED", 1795998840000000, null, null, ""]\n[1, "CANCELLED", 1795998841000001, null, null, "é"]\n'


def record(cursor: int) -> Record:
    now = datetime(2026, 11, 29, 12, 0, 0, 123456, UTC)
    return Record(
        cursor=cursor, task_id=f"task {cursor}", tool="report", workflow="report", workflow_version=1, state="COMPLETED",
        created_at=now, ended_at=now, removed_at=now, removed_by="cleanup", history_lines=2,
        history_digest=hashlib.sha256(HISTORY.encode()).hexdigest(), history=HISTORY,
    )  # fmt: skip


@dataclass
class Store:
    """A store with so many tombstones, from which pages are read."""

    tombstones: int
    page: int = 3
    receipt: Receipt | None = None
    dies: list[bool] = field(default_factory=list)
    """Whether the process dies before the next confirmations."""

    async def get_receipt(self, tenant_id: str) -> str:
        return str(self.receipt or "")

    async def list_records(self, tenant_id: str, *, after_cursor: int) -> Sequence[Record]:
        return [record(each) for each in range(after_cursor + 1, min(self.tombstones, after_cursor + self.page) + 1)]

    async def confirm_export(self, receipt: Receipt) -> None:
        if self.dies and self.dies.pop(0):
            raise ConnectionError
        self.receipt = receipt


async def exported(folder: Folder, store: Store) -> Receipt:
    """The last receipt, once nothing is left to export."""
    while await export_batch(store, folder, TENANT):
        pass
    assert store.receipt is not None
    return store.receipt


async def read(folder: Folder, receipt: Receipt) -> list[int | tuple[int, int, str]]:
    """The cursors that were read, and what is broken."""
    found: list[int | tuple[int, int, str]] = []
    async for each in read_chain(folder, receipt):
        if isinstance(each, Broken):
            found.append((each.batch_id.first, each.batch_id.last, each.reason.split(" ")[0]))
        else:
            assert all(one.is_proved for one in each.records)
            found += [one.cursor for one in reversed(each.records)]
    return found


async def test_every_tombstone_is_archived_once_and_read_back_from_the_last_receipt(tmp_path: Path) -> None:
    folder, store = Folder(tmp_path), Store(tombstones=8)
    receipt = await exported(folder, store)
    assert receipt.batch_id == BatchId(TENANT, 7, 8)
    assert await read(folder, receipt) == list(range(8, 0, -1))
    assert await export_batch(store, folder, TENANT) is None


async def test_who_dies_between_archive_and_confirmation_is_followed_by_the_same_batch(tmp_path: Path) -> None:
    folder, store = Folder(tmp_path), Store(tombstones=3, dies=[True])
    with pytest.raises(ConnectionError):
        await export_batch(store, folder, TENANT)
    (path,) = (tmp_path / "tenant=acme").iterdir()
    before = path.stat()
    receipt = await exported(folder, store)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert await read(folder, receipt) == [3, 2, 1]


async def test_who_dies_and_is_followed_by_a_longer_batch_has_done_no_harm(tmp_path: Path) -> None:
    folder, store = Folder(tmp_path), Store(tombstones=2, dies=[True])
    with pytest.raises(ConnectionError):
        await export_batch(store, folder, TENANT)
    store.tombstones = 5
    assert await read(folder, await exported(folder, store)) == [5, 4, 3, 2, 1]


async def test_the_watermark_stays_where_the_archive_has_other_bytes(tmp_path: Path) -> None:
    folder, store = Folder(tmp_path), Store(tombstones=3)
    await folder.put_batch(Batch(BatchId(TENANT, 1, 3), b"not this"))
    with pytest.raises(ArchiveError):
        await export_batch(store, folder, TENANT)
    assert store.receipt is None


async def test_nothing_is_chained_to_a_receipt_that_is_of_no_archive(tmp_path: Path) -> None:
    class Elsewhere(Store):
        async def get_receipt(self, tenant_id: str) -> str:
            return "tape 7"

    with pytest.raises(ArchiveError, match="tape 7") as caught:
        await export_batch(Elsewhere(tombstones=3), Folder(tmp_path), TENANT)
    assert caught.value.fault is Fault.CONFIGURATION
    assert await Folder(tmp_path).list_batches(TENANT) == []


async def test_a_batch_that_is_missing_or_changed_is_found_and_those_below_it_are_still_read(tmp_path: Path) -> None:
    folder, store = Folder(tmp_path), Store(tombstones=12)
    receipt = await exported(folder, store)
    paths = {each.first: tmp_path / each.path for each in await folder.list_batches(TENANT)}
    for path in paths.values():
        path.chmod(0o640)
    paths[7].unlink()
    paths[4].write_bytes(paths[4].read_bytes().replace(b"COMPLETED", b"FAILED   "))
    assert await read(folder, receipt) == [12, 11, 10, (7, 9, "missing"), 6, 5, 4, 3, 2, 1], "unproved from below 7 on"
    paths[7].write_bytes(write_batch(TENANT, [record(each) for each in (7, 8, 9)], _receipt(paths[4], 4)).body)
    assert await read(folder, receipt) == [12, 11, 10, (7, 9, f"{BatchId(TENANT, 7, 9)}"), 6, 5, 4, 3, 2, 1]
    paths[1].unlink()
    assert await read(folder, receipt) == [12, 11, 10, (7, 9, f"{BatchId(TENANT, 7, 9)}"), 6, 5, 4, (1, 3, "missing")]


async def test_an_archive_that_is_gone_is_missing_as_a_whole(tmp_path: Path) -> None:
    receipt = await exported(Folder(tmp_path), Store(tombstones=12))
    assert await read(Folder(tmp_path / "elsewhere"), receipt) == [(10, 12, "missing"), (1, 9, "missing")]


def test_a_history_that_was_changed_has_another_digest() -> None:
    assert record(1).is_proved
    assert msgspec.structs.replace(record(1), history=HISTORY.replace("CANCELLED", "COMPLETED")).is_proved is False
    assert msgspec.structs.replace(record(1), history="").is_proved is None


def test_a_batch_with_a_gap_is_neither_written_nor_read() -> None:
    good = write_batch(TENANT, [record(1), record(2)], None)
    assert [each.cursor for each in Contents.read(good.id, good.body).records] == [1, 2]
    follows = write_batch(TENANT, [record(3)], good.receipt)
    for records, previous in (([1, 3], None), ([2], None), ([4], good.receipt), ([1], replace(good.receipt, sha256="0" * 64))):
        with pytest.raises(ArchiveError) as caught:
            write_batch(TENANT, [record(each) for each in records], previous)
        assert caught.value.fault is Fault.INTEGRITY
    lines = good.body.splitlines(keepends=True)
    for batch_id, body in (
        (good.id, b"".join(lines[:-1])),
        (good.id, b"".join([lines[0], lines[2], lines[1]])),
        (follows.id, good.body),
        (BatchId("globex", 1, 2), good.body),
        (good.id, b""),
        (good.id, good.body[:-40]),
    ):
        with pytest.raises(ArchiveError) as caught:
            Contents.read(batch_id, body)
        assert caught.value.fault is Fault.INTEGRITY


def test_what_is_no_archive_is_told_at_once() -> None:
    for address in ("archive", "s3://", "ftp://archive", ""):
        with pytest.raises(ArchiveError) as caught:
            open_destination(ArchiveSettings(address=address))
        assert caught.value.fault is Fault.CONFIGURATION


def _receipt(path: Path, first: int) -> Receipt:
    return Receipt(BatchId(TENANT, first, first + 2), hashlib.sha256(path.read_bytes()).hexdigest())
