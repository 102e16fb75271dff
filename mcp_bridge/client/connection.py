"""Connections of which it is noticed when their other end vanishes, though an answer may take as long as it likes."""

import socket
from typing import Final

from aiohttp import AddrInfoType

_OPTIONS: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 60_000))
"""A machine that says nothing is asked after 30 s, thrice, 10 s apart; what was sent is acknowledged within 60,000 ms."""


def open_socket(address: AddrInfoType) -> socket.socket:
    """A socket for this address, which fails within about a minute once nothing is there any more."""
    family, kind, protocol, *_ = address
    opened = socket.socket(family, kind, protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS:
        if hasattr(socket, name):  # each system has its own
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return opened
