"""`tenure-store tombstones`: what became of tasks that were removed."""

import argparse
from collections.abc import Mapping
from typing import Any, Final

from taskstore.v1 import retention_pb2

from store_service.client.errors import StoreError
from store_service.operator import archive
from store_service.operator.connection import Connection
from store_service.operator.display import Display, shown

COLUMNS: Final = ("cursor", "task_id", "tool", "state", "ended_at", "removed_at", "removed_by")


def add_actions(actions: Any, usual: Mapping[str, Any]) -> None:
    """Adds list, show, verify."""
    listing = actions.add_parser("list", **usual, help="list tombstones in the order in which they became visible")
    listing.add_argument("--after", type=int, default=0, metavar="CURSOR", help="only those after this cursor")
    listing.add_argument("--limit", type=int, default=100, help="at most so many (100)")
    listing.set_defaults(run=list_tombstones)
    show = actions.add_parser("show", **usual, help="one tombstone with its history")
    show.set_defaults(run=show_tombstone)
    verify = actions.add_parser("verify", **usual, help="hold one tombstone to its digest, and to the archive")
    verify.set_defaults(run=verify_tombstone)
    archive.add_address(verify)
    for each in (listing, show, verify):
        each.add_argument("--tenant", required=True)
    for each in (show, verify):
        each.add_argument("task_id", metavar="TASK")


async def list_tombstones(connection: Connection, options: argparse.Namespace, display: Display) -> int:
    """A row for each."""
    request = retention_pb2.ListTombstonesRequest(tenant_id=options.tenant, after_cursor=options.after)
    async for stone in connection.each(
        connection.retention.ListTombstones, request, lambda page: page.tombstones, by="cursor", limit=options.limit
    ):
        display.row(_without_history(stone), COLUMNS)
    return 0


async def show_tombstone(connection: Connection, options: argparse.Namespace, display: Display) -> int:
    """All of one."""
    request = retention_pb2.GetTombstoneRequest(tenant_id=options.tenant, task_id=options.task_id)
    display.whole(shown((await connection.ask(connection.retention.GetTombstone, request)).tombstone))
    return 0


async def verify_tombstone(connection: Connection, options: argparse.Namespace, display: Display) -> int:
    """Says whether the history has the digest, here and in the archive. One that was purged is known to the archive alone."""
    request = retention_pb2.GetTombstoneRequest(tenant_id=options.tenant, task_id=options.task_id)
    stone = None
    try:
        stone = (await connection.ask(connection.retention.GetTombstone, request)).tombstone
    except StoreError as error:
        if error.reason != "TOMBSTONE_NOT_FOUND":
            raise
    here = "purged" if stone is None else archive.proof(archive.record_of(stone).is_proved)
    async with archive.opened(options) as destination:
        found = await archive.find(connection, destination, options.tenant, options.task_id, display)
    there = "missing" if found is None else archive.proof(found.is_proved)
    if found is not None and stone is not None and archive.record_of(stone) != found:
        there = "differs from the store's"
    state = found.state if found is not None else shown(stone)["state"] if stone is not None else None
    display.whole({"task_id": options.task_id, "state": state, "store": here, "archive": there})
    is_well = here in ("proved", "not kept", "purged") and there in ("proved", "not kept")
    return 0 if is_well else 1


def _without_history(stone: retention_pb2.Tombstone) -> dict[str, Any]:
    row = shown(stone)
    del row["history"]
    return row
