"""Which hosts and origins may be named by a request: the guard against web pages that drive a local server.

Source: contract, section 1; security checklist H2 and H3; case 17.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import Final

from mcp_bridge.access.proxies import Source
from mcp_bridge.wire.failures import refused
from mcp_bridge.wire.headers import REMEMBERED, Headers

_LOOPBACK: Final = frozenset(("localhost", "127.0.0.1", "[::1]", "::1"))
_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:/?#@\[\]\s]+)(:[0-9]{1,5})?")
_LOOPBACK_ORIGIN = re.compile(r"https?://(?P<authority>[^/?#@\s]+)")


@dataclass(frozen=True, slots=True)
class Guard:
    """Refuses requests by their Host and Origin.

    Loopback hosts and origins with any port are welcome while the bridge is bound to loopback; others must be listed,
    a host as `name` or `name:port`, an origin exactly as a browser sends it.
    """

    loopback: bool
    allowed_hosts: frozenset[str]
    allowed_origins: frozenset[str]
    requires_tls: bool = False
    """Whether only a proxy that is believed may call, and only for clients that came to it over TLS."""

    def check(self, headers: Headers, source: Source, *, target_authority: str | None = None) -> None:
        """Raises Failure 403, or 400 for two Host fields. `target_authority` is that of an absolute request target."""
        hosts = headers.all("Host")
        if len(hosts) > 1:
            raise refused(400, "Host is there more than once", closes=True)
        if self.requires_tls and not source.is_secure:
            raise refused(403, "Only HTTPS is served here", closes=True)
        if source.host is not None:
            hosts = [source.host]
        if target_authority is not None:
            hosts = [*hosts, target_authority]
        for host in hosts or ("",):
            if not _is_host_allowed(host, self.allowed_hosts, self.loopback):
                raise refused(403, "Host is not allowed", closes=True)
        origins = headers.all("Origin")
        if not origins:
            return
        if len(origins) > 1 or not all(self._is_origin_allowed(origin) for origin in origins):
            raise refused(403, "Origin is not allowed", closes=True)

    def _is_origin_allowed(self, origin: str) -> bool:
        if origin in self.allowed_origins:
            return True
        match = _LOOPBACK_ORIGIN.fullmatch(origin)
        authority = _AUTHORITY.fullmatch(match["authority"]) if match else None
        return self.loopback and authority is not None and is_loopback(authority["host"].lower())


@lru_cache(maxsize=REMEMBERED)
def _is_host_allowed(host: str, allowed_hosts: frozenset[str], loopback: bool) -> bool:
    match = _AUTHORITY.fullmatch(host)
    if match is None:
        return False
    name = match["host"].lower()
    if loopback:
        return is_loopback(name) or name in allowed_hosts or host.lower() in allowed_hosts
    return not allowed_hosts or name in allowed_hosts or host.lower() in allowed_hosts


def is_loopback(host: str) -> bool:
    """Whether a host, an address with or without brackets, means this machine only."""
    if host in _LOOPBACK:
        return True
    try:
        return ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False
