"""`tenure-store holds`: keep a task, or its tombstone."""

import argparse
from collections.abc import Mapping
from typing import Any, Final

from taskstore.v1 import retention_pb2

from store_service.operator.connection import Connection
from store_service.operator.display import Display, shown

COLUMNS: Final = ("number", "task_id", "generation", "placed_by", "placed_at", "released_by", "reason")


def add_actions(actions: Any, usual: Mapping[str, Any]) -> None:
    """Adds place, release, list."""
    place = actions.add_parser("place", **usual, help="neither remove a task nor purge its tombstone")
    place.add_argument("task_id", metavar="TASK")
    place.add_argument("--reason", required=True)
    place.set_defaults(run=place_hold)
    release = actions.add_parser("release", **usual, help="end a hold")
    release.add_argument("number", type=int, metavar="NUMBER")
    release.set_defaults(run=release_hold)
    listing = actions.add_parser("list", **usual, help="list holds, those that ended included")
    listing.add_argument("--task", default="", help="only those of this task")
    listing.add_argument("--active", action="store_true", help="only those that hold still")
    listing.set_defaults(run=list_holds)
    for each in (place, release, listing):
        each.add_argument("--tenant", required=True)


async def place_hold(connection: Connection, options: argparse.Namespace, display: Display) -> int:
    """Places a hold, or shows the one that there is."""
    request = retention_pb2.PlaceHoldRequest(
        tenant_id=options.tenant, task_id=options.task_id, reason=options.reason, principal=connection.principal
    )
    display.whole(shown((await connection.ask(connection.governance.PlaceHold, request)).hold))
    return 0


async def release_hold(connection: Connection, options: argparse.Namespace, display: Display) -> int:
    """Ends a hold."""
    request = retention_pb2.ReleaseHoldRequest(tenant_id=options.tenant, number=options.number, principal=connection.principal)
    display.whole(shown((await connection.ask(connection.governance.ReleaseHold, request)).hold))
    return 0


async def list_holds(connection: Connection, options: argparse.Namespace, display: Display) -> int:
    """A row for each."""
    request = retention_pb2.ListHoldsRequest(tenant_id=options.tenant, task_id=options.task, active=options.active)
    async for hold in connection.each(connection.governance.ListHolds, request, lambda page: page.holds, by="number"):
        display.row(shown(hold), COLUMNS)
    return 0
