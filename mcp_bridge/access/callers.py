"""Who calls. Source: contract, section 7; security checklist A16."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taskstore.v1 import types_pb2

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest


@dataclass(frozen=True, slots=True)
class Caller:
    """The principal of one request, and the tenant for which it was let in. Nothing of it is taken from the message."""

    tenant: str
    issuer: str
    subject: str

    @property
    def owner(self) -> types_pb2.Owner:
        """The same principal, in the store's words."""
        return types_pb2.Owner(issuer=self.issuer, subject=self.subject)


Authenticate = Callable[["BaseRequest"], Awaitable[Caller]]
"""Tells who sent a request, from its headers alone. Raises Failure 401 for a request that says nothing it believes."""


def development_access(tenant: str) -> Authenticate:
    """Lets everybody in as one principal of one tenant. Only for a bridge that is bound to loopback."""
    caller = Caller(tenant=tenant, issuer="dev", subject="dev")

    async def authenticate(_request: "BaseRequest") -> Caller:
        return caller

    return authenticate
