"""Where MCP is spoken: at `/mcp`, and at `/t/{tenant}/mcp`. Source: contract, section 7; security checklist A3."""

import re
from dataclasses import dataclass
from typing import Final

from mcp_bridge.wire.failures import Failure, refused

PATH: Final = "/mcp"
_TENANT_PATH = re.compile(r"/t/(?P<tenant>(?!\.{1,2}/)[A-Za-z0-9_.-]{1,128})/mcp")  # no step up or none


@dataclass(frozen=True, slots=True)
class Place:
    """One place where MCP is spoken."""

    tenant: str | None = None
    """The tenant that its path names, whether there is one or not; None where the token alone says which."""

    @property
    def path(self) -> str:
        """Its path, which is the only way to write it."""
        return PATH if self.tenant is None else f"/t/{self.tenant}/mcp"


UNNAMED: Final = Place()
"""The place whose path names no tenant."""


def place_at(path: str) -> Place | None:
    """The place at a path as it was sent; None if MCP is not spoken there."""
    if path == PATH:
        return UNNAMED
    match = _TENANT_PATH.fullmatch(path)
    return Place(match["tenant"]) if match else None


def nothing_here() -> Failure:
    """The answer for every path at which nothing is served."""
    return refused(404, f"There is nothing here; MCP is at {PATH}")
