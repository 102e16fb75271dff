"""From where a request comes, through proxies. Security checklist H28."""

import pytest

from mcp_bridge.access.proxies import Proxies, read_networks
from mcp_bridge.wire.headers import Headers

PROXIES = Proxies(read_networks(["10.0.0.0/8", "192.0.2.7", "fd00::/8"]))


@pytest.mark.row("H28")
@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("203.0.113.1", [], "203.0.113.1"),
        ("203.0.113.1", ["198.51.100.1"], "203.0.113.1"),  # whoever it is, it is no proxy of ours
        ("10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["1.1.1.1, 198.51.100.1"], "198.51.100.1"),  # the first was written by the client
        ("10.0.0.1", ["1.1.1.1", "198.51.100.1, 192.0.2.7"], "198.51.100.1"),
        ("::ffff:10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("fd00::1", ["2001:db8::1"], "2001:db8::/64"),
        ("10.0.0.1", ["10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["nonsense"], "nonsense"),
        ("", ["198.51.100.1"], ""),
        ("2001:db8::2", [], "2001:db8::/64"),
    ],
)
def test_the_nearest_address_that_is_no_proxy_of_ours_is_the_clients(peer: str, forwarded: list[str], address: str) -> None:
    source = PROXIES.source(peer, Headers(("X-Forwarded-For", value) for value in forwarded))
    assert source.address == address


@pytest.mark.row("H28")
def test_scheme_and_host_are_believed_of_a_proxy_alone() -> None:
    headers = Headers([("X-Forwarded-Proto", "https"), ("X-Forwarded-Host", "mcp.example"), ("Forwarded", "for=1.1.1.1")])
    source = PROXIES.source("10.1.1.1", headers)
    assert (source.host, source.is_secure) == ("mcp.example", True)
    source = PROXIES.source("11.1.1.1", headers)
    assert (source.host, source.is_secure) == (None, False)
    assert not Proxies([]).source("127.0.0.1", headers).is_secure


def test_a_network_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="example"):
        read_networks(["example"])
    with pytest.raises(ValueError, match="host bits"):
        read_networks(["10.0.0.1/8"])
