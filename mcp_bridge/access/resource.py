"""The bridge as a protected resource: what it is called, and where that is told. Source: RFC 9728; checklist A1 to A3.

What is told of a tenant is the same for every name, so that it does not say which tenants there are.
"""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import msgspec

from mcp_bridge.access.places import Place, place_at
from mcp_bridge.wire.challenges import Challenge, write_challenge

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """The resources of one bridge: one for each place where MCP is spoken."""

    public_url: str
    """Under which all of it is reached: no slash at its end."""
    issuers: tuple[str, ...]
    scopes: tuple[str, ...]

    def url(self, place: Place) -> str:
        """What tokens for the place must have as their audience."""
        return self.public_url + place.path

    def metadata_url(self, place: Place) -> str:
        """Where the place is described: the well-known part stands before the path."""
        origin = self.public_url.removesuffix(self._prefix)
        return origin + WELL_KNOWN + self._prefix + place.path

    def metadata_at(self, path: str) -> bytes | None:
        """The description that is found at a path; None if there is none."""
        if not path.startswith(WELL_KNOWN):
            return None
        if path == WELL_KNOWN:
            return self._metadata(Place())
        head = WELL_KNOWN + self._prefix
        place = place_at(path.removeprefix(head)) if path.startswith(head) else None
        return self._metadata(place) if place is not None else None

    def challenge(self, place: Place, challenge: Challenge) -> str:
        """The `WWW-Authenticate` of an answer at the place."""
        return write_challenge(challenge, metadata_url=self.metadata_url(place), base_scopes=self.scopes)

    @property
    def _prefix(self) -> str:
        return urlsplit(self.public_url).path

    def _metadata(self, place: Place) -> bytes:
        described: dict[str, object] = {
            "resource": self.url(place),
            "authorization_servers": self.issuers,
            "bearer_methods_supported": ["header"],
        }
        if self.scopes:
            described["scopes_supported"] = self.scopes
        return msgspec.json.encode(described)
