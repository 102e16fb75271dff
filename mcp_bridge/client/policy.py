"""How patient a client is: its bounds, and how long it waits between two looks."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from mcp_bridge.client.messages import TaskSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The bounds of a client. Each may be set; the defaults suit work of seconds to an hour."""

    deadline_seconds: float = 3600.0
    """The deadline of a call or a wait that names none."""
    request_seconds: float = 30.0
    """How long a single short request is tried in all, repetitions included."""
    attempt_seconds: float = 10.0
    """How long one attempt of a short request may take, after which it is repeated."""
    least_poll_ms: int = 100
    most_poll_ms: int = 3_600_000
    """The server's `pollIntervalMs` is taken between these two. A deadline that is nearer makes it shorter."""
    default_poll_ms: int = 1_000
    """The time between two looks where the server names none."""
    least_backoff_seconds: float = 0.1
    most_backoff_seconds: float = 5.0
    """Repetitions are this far apart, doubling, unless the server sends `Retry-After`."""
    quiet_seconds: float = 60.0
    """How long an event stream may say nothing at all, keep-alive included, before it counts as lost."""
    rounds: int = 16
    """How often a held call may ask, or ask to be called again."""
    answer_bytes: int = 16 * 1024 * 1024
    """The largest answer, and the largest event of a stream, that is read."""
    tools_seconds: float = 60.0
    """The least time for which the listed tools are kept; the server's `ttlMs` may make it longer. A server that finds
    headers and body to differ makes them be read anew at once."""
    pages: int = 100
    """The most pages of tools that are read."""

    def poll_pause(self, snapshot: TaskSnapshot, *, left_seconds: float, spread: Callable[[], float] = random.random) -> float:
        """Seconds until the next look at a task: what the server asks for, and up to a tenth more.

        When the deadline or the handle's end is near, it is half of what is left, so that the last look comes close
        before it; but never less than the policy's least.
        """
        asked_ms = snapshot.poll_interval_ms or self.default_poll_ms
        pause = max(self.least_poll_ms, min(asked_ms, self.most_poll_ms)) / 1000 * (1 + spread() / 10)
        ends = snapshot.expires_at
        usable_seconds = (ends - datetime.now(UTC)).total_seconds() if ends is not None else 0.0
        if usable_seconds > 0:  # clocks differ: a handle that has ended here is still asked for at the usual pace
            pause = min(pause, usable_seconds / 2)
        return max(self.least_poll_ms / 1000, min(pause, left_seconds / 2))

    def backoff(self, attempt: int, *, spread: Callable[[], float] = random.random) -> float:
        """Seconds until a request is repeated for the `attempt`-th time, counted from 1: half of it by chance."""
        whole = min(self.most_backoff_seconds, self.least_backoff_seconds * 2.0 ** min(attempt - 1, 16))
        return whole * (0.5 + spread() / 2)
