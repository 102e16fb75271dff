"""Who does it, and under which cleanup lease."""

from taskstore.v1 import retention_pb2

from store_service.model.limits import check_name, check_text
from store_service.model.retention import CleanupLease


def read_principal(principal: str) -> str:
    """Who does it. Where callers are asked who they are, the guard has written the caller's identity here."""
    return check_text("principal", principal, most_bytes=2_048)


def read_cleanup_lease(message: retention_pb2.CleanupLease, principal: str) -> CleanupLease:
    """A cleanup lease as its holder presents it."""
    return CleanupLease(
        check_name("lease.tenant_id", message.tenant_id),
        check_name("lease.owner_id", message.owner_id),
        read_principal(principal),
        message.token,
        message.epoch,
    )
