"""The `WWW-Authenticate` of an answer: what a client must do to be let in.

Source: RFC 6750, section 3; RFC 9728, section 5.1; security checklist A2, A4, A5, A11.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

INVALID_REQUEST: Final = "invalid_request"
INVALID_TOKEN: Final = "invalid_token"  # noqa: S105 (a code, not a secret)
INSUFFICIENT_SCOPE: Final = "insufficient_scope"
OFFLINE_ACCESS: Final = "offline_access"
"""A scope that is between a client and its authorization server; no resource asks for it."""

_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,128}")


@dataclass(frozen=True, slots=True)
class Challenge:
    """What is missing. Whoever answers adds where the resource is described."""

    error: str = ""
    """Empty for a request that brought nothing to judge."""
    description: str = ""
    scopes: Sequence[str] | None = None
    """Every scope that is needed, all at once; None where that is not known yet."""


def is_scope(text: str) -> bool:
    """Whether this is one scope that a resource may ask for, of 1 to 128 characters."""
    return _SCOPE.fullmatch(text) is not None and text != OFFLINE_ACCESS


def write_challenge(challenge: Challenge, *, metadata_url: str, base_scopes: Sequence[str]) -> str:
    """The header's value: one challenge, every parameter quoted, none of it in need of an escape."""
    parameters = {
        "error": challenge.error,
        "error_description": challenge.description,
        "resource_metadata": metadata_url,
        "scope": " ".join(base_scopes if challenge.scopes is None else challenge.scopes),
    }
    return "Bearer " + ", ".join(f'{name}="{value}"' for name, value in parameters.items() if value)
