"""What a method is given, and what it gives back."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from mcp_bridge.access.callers import Caller
from mcp_bridge.wire.headers import Headers
from mcp_bridge.wire.mcp import Meta


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request of a caller that was let in, with its envelope, `_meta` and mirrored headers checked."""

    caller: Caller
    params: dict[str, Any]
    body: bytes
    """The whole request, for members that are passed on as they were sent."""
    meta: Meta
    headers: Headers
    noted: dict[str, object] = field(default_factory=dict)
    """What the log line of the call shows besides; never a payload."""


Method = Callable[[Call], Awaitable[bytes]]
"""Answers a call with its result, a JSON object. Raises Failure for any other answer, StoreError if the store did."""
