"""From where a request comes when there are proxies in between. Source: security checklist H28.

Forwarded headers are believed only when they come from a proxy that is named in the settings; from anybody else they are
words like any other.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from mcp_bridge.wire.headers import REMEMBERED, Headers

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Source:
    """From where a request comes."""

    address: str
    """The client's, as far as it is known; a network of 64 bits stands for those of IPv6, as one client has it whole."""
    host: str | None = None
    """The host by which the client called, where a proxy says so."""
    is_secure: bool = False
    """Whether a proxy says that the client came over TLS."""


class Proxies:
    """The proxies that are believed."""

    def __init__(self, networks: Iterable[Network]) -> None:
        self._networks = tuple(networks)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._networks)

    def source(self, peer: str, headers: Headers) -> Source:
        """From where a request comes that came in from `peer`."""
        if not self._networks or not self._trusts(peer):
            return _direct(peer)
        address = peer
        for hop in reversed(_listed(headers, "X-Forwarded-For")):
            if not self._trusts(address):
                break
            address = hop
        host, scheme = _listed(headers, "X-Forwarded-Host")[-1:], _listed(headers, "X-Forwarded-Proto")[-1:]
        return Source(
            _bucket(address),
            host=host[0] if host else None,
            is_secure=[one.lower() for one in scheme] == ["https"],
        )

    def _trusts(self, address: str) -> bool:
        try:
            parsed = ip_address(address)
        except ValueError:
            return False
        if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
        return any(parsed in network for network in self._networks)


def read_networks(texts: Iterable[str]) -> list[Network]:
    """Addresses and networks such as 10.0.0.0/8. Raises ValueError for what is none."""
    return [ip_network(text) for text in texts]


def _listed(headers: Headers, name: str) -> list[str]:
    return [part.strip() for part in ",".join(headers.all(name)).split(",") if part.strip()]


@lru_cache(maxsize=REMEMBERED)
def _direct(peer: str) -> Source:
    return Source(_bucket(peer))


@lru_cache(maxsize=REMEMBERED)
def _bucket(address: str) -> str:
    try:
        parsed = ip_address(address)
    except ValueError:
        return address[:64]
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is None:
        return str(ip_network((parsed, 64), strict=False))
    return str(parsed)
