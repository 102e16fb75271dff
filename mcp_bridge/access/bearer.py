"""Letting in those who bring a token, and nobody else. Source: contract, section 7; security checklist A6 to A17."""

from collections.abc import Callable
from string import ascii_letters, digits
from typing import Final

import structlog

from mcp_bridge.access.callers import Arrival, Authenticate, Caller
from mcp_bridge.access.keys import KeysUnavailable
from mcp_bridge.access.limits import Limiter
from mcp_bridge.access.resource import Resource
from mcp_bridge.access.tokens import Fault, NotBelieved, Tokens
from mcp_bridge.metrics import Metrics
from mcp_bridge.wire.failures import malformed_authorization, tenant_not_served, unauthorized, unavailable
from mcp_bridge.wire.headers import Headers

EXPIRED: Final = "The access token has expired"
NOT_VALID: Final = "The access token is not valid for this resource"
_CHARACTERS: Final = (ascii_letters + digits + "._~+/-").encode()


def bearer_access(
    tokens: Tokens,
    resource: Resource,
    *,
    is_tenant: Callable[[str], bool],
    limiter: Limiter,
    metrics: Metrics,
    clock: Callable[[], float],
) -> Authenticate:
    """Lets in the bearers of tokens for the place that they call. `clock` tells seconds of the epoch."""

    async def authenticate(arrival: Arrival) -> Caller:
        outcome = "refused"
        try:
            limiter.check_address(arrival.source.address)
            token = read_bearer(arrival.headers)
            if token is None:
                outcome = "missing"
                raise unauthorized()
            caller = await tokens.read(token, audience=resource.url(arrival.place), now=clock())
            if arrival.place.tenant not in (None, caller.tenant) or not is_tenant(caller.tenant):
                outcome = "tenant"
                raise tenant_not_served()
            outcome = "ok"
        except NotBelieved as refusal:
            outcome = refusal.fault.value
            limiter.blame_address(arrival.source.address)
            raise unauthorized(EXPIRED if refusal.fault is Fault.EXPIRED else NOT_VALID) from None
        except KeysUnavailable:
            outcome = "unavailable"
            raise unavailable() from None
        finally:
            metrics.tell_authentication(outcome)
            if outcome != "ok":
                structlog.get_logger().info("not_let_in", why=outcome)
        return caller

    return authenticate


def read_bearer(headers: Headers) -> str | None:
    """The token that the header brings; None for no credentials, or for those of another kind. It is looked for nowhere
    else. Raises Failure 400 for what is not written as RFC 6750 has it."""
    values = headers.all("Authorization")
    if len(values) > 1:
        raise malformed_authorization("Authorization is there more than once")
    scheme, _, rest = (values[0] if values else "").partition(" ")
    if scheme.lower() != "bearer":
        return None
    token = rest.strip(" ")
    characters = token.rstrip("=")
    if not characters or characters.encode().translate(None, _CHARACTERS):
        raise malformed_authorization("Authorization must be Bearer and one token")
    return token
