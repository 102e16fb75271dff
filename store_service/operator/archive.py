"""`tenure-store archive`: keep tombstones outside of the database, and prove them."""

import argparse
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC
from typing import Any, Final

from taskstore.v1 import retention_pb2

from store_service.archive.batches import Destination, Receipt
from store_service.archive.chain import Broken, read_chain
from store_service.archive.documents import Contents, Record
from store_service.archive.exports import export_batch, last_receipt
from store_service.archive.opening import open_destination
from store_service.config import read_archive
from store_service.operator.connection import PAGE, Connection
from store_service.operator.display import Display, shown

EXPORTED: Final = ("tenant_id", "batches", "through_cursor", "receipt")
FAULTS: Final = ("first", "last", "fault")


def add_actions(actions: Any, usual: Mapping[str, Any]) -> None:
    """Adds export, verify."""
    export = actions.add_parser("export", **usual, help="archive what is not archived yet")
    export.set_defaults(run=export_tombstones)
    verify = actions.add_parser("verify", **usual, help="hold the whole archive to its digests and to the store")
    verify.set_defaults(run=verify_archive)
    for each in (export, verify):
        each.add_argument("--tenant", required=True)
        add_address(each)


def add_address(parser: argparse.ArgumentParser) -> None:
    """Adds where the archive is."""
    parser.add_argument(
        "--archive", metavar="ADDRESS", help="the archive; TENURE_STORE_ARCHIVE and its settings, as the store has them"
    )


@asynccontextmanager
async def opened(options: argparse.Namespace) -> AsyncIterator[Destination]:
    """The archive that is asked for. Raises ValueError where none is."""
    settings = read_archive(options.environment, options.archive)
    if settings is None:
        raise ValueError("no archive is named; set TENURE_STORE_ARCHIVE, or say --archive")
    destination = open_destination(settings)
    try:
        yield destination
    finally:
        await destination.close()


class Tombstones:
    """The store, seen by who exports. See `exports.Source`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def get_receipt(self, tenant_id: str) -> str:
        """See `Source`."""
        request = retention_pb2.GetRetentionRequest(tenant_id=tenant_id)
        return (await self._connection.ask(self._connection.retention.GetRetention, request)).exported.receipt

    async def list_records(self, tenant_id: str, *, after_cursor: int) -> Sequence[Record]:
        """See `Source`."""
        request = retention_pb2.ListTombstonesRequest(
            tenant_id=tenant_id, after_cursor=after_cursor, page_size=PAGE, with_history=True
        )
        return [
            record_of(each)
            for each in (await self._connection.ask(self._connection.retention.ListTombstones, request)).tombstones
        ]

    async def confirm_export(self, receipt: Receipt) -> None:
        """See `Source`."""
        request = retention_pb2.ConfirmExportRequest(
            tenant_id=receipt.batch_id.tenant_id, through_cursor=receipt.batch_id.last, receipt=str(receipt),
            principal=self._connection.principal,
        )  # fmt: skip
        await self._connection.ask(self._connection.governance.ConfirmExport, request)


async def export_tombstones(connection: Connection, options: argparse.Namespace, display: Display) -> int:
    """Archives page after page until nothing is left."""
    source, batches = Tombstones(connection), 0
    async with opened(options) as destination:
        while (receipt := await export_batch(source, destination, options.tenant)) is not None:
            batches += 1
            display.progress(f"{options.tenant}: archived up to {receipt.batch_id.last}")
    last = await last_receipt(source, options.tenant)
    through = last.batch_id.last if last is not None else 0
    display.row(
        {"tenant_id": options.tenant, "batches": batches, "through_cursor": through, "receipt": str(last or "")}, EXPORTED
    )
    return 0


async def verify_archive(connection: Connection, options: argparse.Namespace, display: Display) -> int:
    """Reads the archive from the last receipt back to its beginning. A row for each fault, then the sum."""
    sums = {"batches": 0, "tombstones": 0, "proved": 0, "not_kept": 0, "purged": 0, "faults": 0}
    async with opened(options) as destination:
        last = await last_receipt(Tombstones(connection), options.tenant)
        async for part in read_chain(destination, last):
            faults = await _faults_of(connection, options.tenant, part, sums)
            for first, last_cursor, fault in faults:
                display.row({"first": first, "last": last_cursor, "fault": fault}, FAULTS)
            sums["faults"] += len(faults)
            display.progress(f"{options.tenant}: read back to {part.batch_id.first}")
    display.whole({"tenant_id": options.tenant, "through_cursor": last.batch_id.last if last is not None else 0, **sums})
    return 1 if sums["faults"] else 0


async def find(
    connection: Connection, destination: Destination, tenant_id: str, task_id: str, display: Display
) -> Record | None:
    """The record of a task in an archive."""
    last = await last_receipt(Tombstones(connection), tenant_id)
    async for part in read_chain(destination, last):
        display.progress(f"{tenant_id}: read back to {part.batch_id.first}")
        if isinstance(part, Contents):
            for record in part.records:
                if record.task_id == task_id:
                    return record
    return None


def record_of(stone: retention_pb2.Tombstone) -> Record:
    """What is archived of a tombstone."""
    row = shown(stone)
    times = {name: getattr(stone, name).ToDatetime(UTC) for name in ("created_at", "ended_at", "removed_at")}
    return Record(**{name: times.get(name, row[name]) for name in Record.__struct_fields__})


def proof(is_proved: bool | None) -> str:
    """What a digest says of a history."""
    return {True: "proved", False: "changed", None: "not kept"}[is_proved]


async def _faults_of(
    connection: Connection, tenant_id: str, part: Contents | Broken, sums: dict[str, int]
) -> list[tuple[int, int, str]]:
    """What is wrong with a batch: first cursor, last cursor, fault."""
    ids = part.batch_id
    if isinstance(part, Broken):
        return [(ids.first, ids.last, part.reason)]
    stones = await _stones(connection, tenant_id, ids.first, ids.last)
    faults = []
    for record in part.records:
        stone = stones.get(record.cursor)
        sums["purged"] += stone is None
        sums["not_kept"] += record.is_proved is None
        sums["proved"] += record.is_proved is True
        if record.is_proved is False:
            faults.append((record.cursor, record.cursor, "the history has another digest"))
        elif stone is not None and record != stone:
            faults.append((record.cursor, record.cursor, "the store's tombstone differs"))
    sums["batches"] += 1
    sums["tombstones"] += len(part.records)
    return faults


async def _stones(connection: Connection, tenant_id: str, first: int, last: int) -> dict[int, Record]:
    """What the store has of these tombstones, by cursor. A page ends where it has many histories."""
    found: dict[int, Record] = {}
    after = first - 1
    while after < last:
        page = await Tombstones(connection).list_records(tenant_id, after_cursor=after)
        if not page:
            break
        found.update((each.cursor, each) for each in page)
        after = page[-1].cursor
    return found
