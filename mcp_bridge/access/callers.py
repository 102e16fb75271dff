"""Who calls. Source: contract, section 7; security checklist A16."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from taskstore.v1 import types_pb2

from mcp_bridge.access.places import Place, nothing_here
from mcp_bridge.access.proxies import Source
from mcp_bridge.wire.headers import Headers


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The principal of one request, and the tenant for which it was let in. Nothing of it is taken from the message."""

    tenant: str
    issuer: str
    subject: str
    scopes: frozenset[str] = frozenset()
    """What its token was issued for, as it says, without what that implies."""
    groups: frozenset[str] = frozenset()
    token_id: str = ""
    """What stands for its token in the audit log."""
    expires_at: float | None = None
    """When its token ends, in seconds of the epoch; None means never."""
    is_development: bool = False
    """Whether nobody was asked who they are: then everything of the tenant's may be done."""

    @property
    def owner(self) -> types_pb2.Owner:
        """The same principal, in the store's words: a message that several share."""
        return _owner(self.issuer, self.subject)

    def is_expired(self, now: float) -> bool:
        """Whether its token has ended; `now` in seconds of the epoch."""
        return self.expires_at is not None and self.expires_at <= now


@lru_cache(maxsize=1024)
def _owner(issuer: str, subject: str) -> types_pb2.Owner:
    return types_pb2.Owner(issuer=issuer, subject=subject)


class Arrival(NamedTuple):
    """What is known of a request before it is known who sent it."""

    place: Place
    headers: Headers
    source: Source


Authenticate = Callable[[Arrival], Awaitable[Caller]]
"""Tells who sent a request, from its headers and its place alone. Raises Failure for a request that is not let in."""


def development_caller(tenant: str) -> Caller:
    """Whoever calls in development mode."""
    return Caller(tenant=tenant, issuer="dev", subject="dev", is_development=True)


def development_access(tenant: str) -> Authenticate:
    """Lets everybody in as one principal of one tenant. Only for a bridge that is bound to loopback."""
    caller = development_caller(tenant)

    async def authenticate(arrival: Arrival) -> Caller:
        if arrival.place.tenant not in (None, tenant):
            raise nothing_here()
        return caller

    return authenticate
