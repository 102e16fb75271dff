"""The cleanup lease of a tenant, in the hands of an operator."""

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from taskstore.v1 import retention_pb2

from store_service.operator.connection import Connection

LEASE_MS: Final = 60_000


class Busy(Exception):  # noqa: N818 (it says how it is)
    """Somebody else cleans this tenant now."""

    def __init__(self, tenant_id: str, until: str) -> None:
        super().__init__(f"{tenant_id} is being cleaned by another until {until} or before; try again then")


@asynccontextmanager
async def cleanup_lease(connection: Connection, tenant_id: str) -> AsyncIterator[retention_pb2.CleanupLease]:
    """Holds the lease, and gives it back. Raises Busy where another holds it."""
    request = retention_pb2.ClaimCleanupRequest(
        tenant_id=tenant_id, owner_id=f"operator-{_host()}-{os.getpid()}", lease_ms=LEASE_MS, principal=connection.principal
    )
    claim = await connection.ask(connection.retention.ClaimCleanup, request)
    if not claim.HasField("lease"):
        raise Busy(tenant_id, claim.expires_at.ToJsonString())
    try:
        yield claim.lease
    finally:
        release = retention_pb2.ReleaseCleanupRequest(lease=claim.lease, principal=connection.principal)
        await connection.ask(connection.retention.ReleaseCleanup, release)


async def heartbeat(connection: Connection, lease: retention_pb2.CleanupLease) -> None:
    """Extends the lease."""
    request = retention_pb2.HeartbeatCleanupRequest(lease=lease, lease_ms=LEASE_MS, principal=connection.principal)
    await connection.ask(connection.retention.HeartbeatCleanup, request)


def _host() -> str:
    """This machine's name, as far as it may be part of an id."""
    return "".join(mark for mark in socket.gethostname() if mark.isascii() and (mark.isalnum() or mark in "_-."))[:80]
