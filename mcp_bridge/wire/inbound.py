"""The ladder of a request, as far as it needs nobody else: from bytes to something that a method can be asked.

The first failure wins, in the order of the contract, section 10.6.
"""

from enum import Enum, auto
from typing import Final

import msgspec

from mcp_bridge.wire.failures import header_mismatch, unsupported_version
from mcp_bridge.wire.headers import Headers, check_mirror, check_name
from mcp_bridge.wire.jsonrpc import Request
from mcp_bridge.wire.mcp import INITIALIZE, LEGACY_VERSIONS, NAMED_BY, SUPPORTED_VERSIONS, Meta, names_version, read_meta

VERSION_HEADER: Final = "MCP-Protocol-Version"
SESSION_HEADER: Final = "Mcp-Session-Id"


class Era(Enum):
    """How a client speaks: each request says everything, or a session was opened by `initialize`."""

    MODERN = auto()
    LEGACY = auto()


def era_of(message: Request, headers: Headers) -> Era:
    """In which era a request was sent. Raises Failure -32020 where nothing tells. Source: contract, section 10.5."""
    if names_version(message.params):
        return Era.MODERN
    version = headers.one(VERSION_HEADER)
    if version is not None:
        return Era.LEGACY if version in LEGACY_VERSIONS else Era.MODERN
    if message.method == INITIALIZE:
        return Era.LEGACY
    raise header_mismatch(f"{VERSION_HEADER} is missing")


def era_of_line(message: Request, *, is_initialized: bool) -> Era:
    """In which era a request was sent over a transport without headers, where `initialize` selects it for what follows."""
    is_legacy = not names_version(message.params) and (is_initialized or message.method == INITIALIZE)
    return Era.LEGACY if is_legacy else Era.MODERN


class Inbound(msgspec.Struct, frozen=True):
    """A request whose envelope, `_meta`, mirrored headers and version are right."""

    request: Request
    meta: Meta
    name_is_missing: bool
    """Whether `Mcp-Name` was tolerated to be absent."""


def read_inbound(message: Request, headers: Headers | None, *, strict_headers: bool) -> Inbound:
    """Climbs from `_meta` to the version; without headers where the transport has none. Raises Failure."""
    meta = read_meta(message.params)
    is_there = headers is None or _check_headers(message, meta, headers, strict_headers=strict_headers)
    if meta.version not in SUPPORTED_VERSIONS:
        raise unsupported_version(meta.version, SUPPORTED_VERSIONS)
    return Inbound(message, meta, name_is_missing=not is_there)


def _check_headers(message: Request, meta: Meta, headers: Headers, *, strict_headers: bool) -> bool:
    """Returns whether the name is there, if it should be. Raises Failure -32020."""
    check_mirror(headers, VERSION_HEADER, meta.version)
    check_mirror(headers, "Mcp-Method", message.method)
    named_by = NAMED_BY.get(message.method)
    name = message.params.get(named_by) if named_by else None
    if not isinstance(name, str):  # the method itself refuses its parameters
        return True
    may_miss = message.method.startswith("tasks/") and not strict_headers
    return check_name(headers, name, may_miss=may_miss)
