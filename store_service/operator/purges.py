"""`tenure-store purge`: forget tombstones for good, by two persons, and keep the evidence."""

import argparse
from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

from taskstore.v1 import retention_pb2

from store_service.operator.connection import Connection
from store_service.operator.display import Display, shown
from store_service.operator.leases import cleanup_lease

COLUMNS: Final = ("number", "state", "tombstones", "first_cursor", "last_cursor", "prepared_by", "deadline_at", "decided_by")
_DAY_MS: Final = 86_400_000
_HOUR_MS: Final = 3_600_000
_WAITING: Final = (retention_pb2.PURGE_STATE_PENDING, retention_pb2.PURGE_STATE_CLAIMED)


def add_actions(actions: Any, usual: Mapping[str, Any]) -> None:
    """Adds prepare, inbox, approve, reject, execute, evidence."""
    prepare = actions.add_parser("prepare", **usual, help="choose the oldest tombstones that are archived and not held")
    prepare.add_argument("--older-than-days", type=float, required=True, help="how long ago their tasks were removed at least")
    prepare.add_argument("--limit", type=int, default=100, help="at most so many (100)")
    prepare.add_argument("--within-hours", type=float, default=72, help="until when it must be approved and executed (72)")
    prepare.add_argument("--request-id", help="the same for each repetition; a new one, if it is not given")
    prepare.set_defaults(run=prepare_purge)
    inbox = actions.add_parser("inbox", **usual, help="purges that wait for a decision")
    inbox.add_argument("--all", action="store_true", help="all others, too")
    inbox.add_argument("--claim", action="store_true", help="take the oldest that you may decide, for 15 minutes")
    inbox.set_defaults(run=show_inbox)
    approve = actions.add_parser("approve", **usual, help="approve a purge that another prepared")
    approve.set_defaults(run=approve_purge)
    reject = actions.add_parser("reject", **usual, help="reject a purge for good")
    reject.add_argument("--reason", required=True)
    reject.set_defaults(run=reject_purge)
    execute = actions.add_parser("execute", **usual, help="forget the tombstones of a purge that was approved")
    execute.set_defaults(run=execute_purge)
    evidence = actions.add_parser("evidence", **usual, help="what was forgotten, and by whom")
    evidence.set_defaults(run=show_evidence)
    for each in (prepare, inbox, approve, reject, execute, evidence):
        each.add_argument("--tenant", required=True)
    for each in (approve, reject, execute, evidence):
        each.add_argument("number", type=int, metavar="NUMBER")
    for each in (approve, reject):
        each.add_argument("--claim", type=int, default=0, metavar="TOKEN", help="the token of your claim, if you took it")


async def prepare_purge(connection: Connection, options: argparse.Namespace, display: Display) -> int:
    """Prepares a purge, under the tenant's cleanup lease."""
    async with cleanup_lease(connection, options.tenant) as lease:
        request = retention_pb2.PreparePurgeRequest(
            lease=lease, request_id=options.request_id or str(uuid4()), limit=options.limit,
            retention_ms=round(options.older_than_days * _DAY_MS), approval_ms=round(options.within_hours * _HOUR_MS),
            principal=connection.principal,
        )  # fmt: skip
        display.whole(shown((await connection.ask(connection.governance.PreparePurge, request)).purge))
    return 0


async def show_inbox(connection: Connection, options: argparse.Namespace, display: Display) -> int:
    """A row for each purge, or the one that was taken."""
    if options.claim:
        claim = retention_pb2.ClaimPurgeRequest(tenant_id=options.tenant, lease_ms=900_000, principal=connection.principal)
        taken = await connection.ask(connection.governance.ClaimPurge, claim)
        if taken.HasField("purge"):
            display.whole({**shown(taken.purge), "claim_token": taken.claim_token})
        return 0
    request = retention_pb2.ListPurgesRequest(tenant_id=options.tenant, states=() if options.all else _WAITING)
    async for purge in connection.each(connection.governance.ListPurges, request, lambda page: page.purges, by="number"):
        display.row(shown(purge), COLUMNS)
    return 0


async def approve_purge(connection: Connection, options: argparse.Namespace, display: Display) -> int:
    """Approves a purge."""
    request = retention_pb2.ApprovePurgeRequest(
        tenant_id=options.tenant, number=options.number, claim_token=options.claim, principal=connection.principal
    )
    display.whole(shown((await connection.ask(connection.governance.ApprovePurge, request)).purge))
    return 0


async def reject_purge(connection: Connection, options: argparse.Namespace, display: Display) -> int:
    """Rejects a purge."""
    request = retention_pb2.RejectPurgeRequest(
        tenant_id=options.tenant, number=options.number, claim_token=options.claim, reason=options.reason,
        principal=connection.principal,
    )  # fmt: skip
    display.whole(shown((await connection.ask(connection.governance.RejectPurge, request)).purge))
    return 0


async def execute_purge(connection: Connection, options: argparse.Namespace, display: Display) -> int:
    """Executes a purge, under the tenant's cleanup lease."""
    async with cleanup_lease(connection, options.tenant) as lease:
        request = retention_pb2.ExecutePurgeRequest(lease=lease, number=options.number, principal=connection.principal)
        display.whole(shown((await connection.ask(connection.governance.ExecutePurge, request)).evidence))
    return 0


async def show_evidence(connection: Connection, options: argparse.Namespace, display: Display) -> int:
    """All of it."""
    request = retention_pb2.GetPurgeEvidenceRequest(tenant_id=options.tenant, number=options.number)
    display.whole(shown((await connection.ask(connection.governance.GetPurgeEvidence, request)).evidence))
    return 0
