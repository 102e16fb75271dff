"""How many tasks a worker takes at once: fewer while it loses their leases, as many as it may while it keeps them."""

import math
import time


class Allowance:
    """Halves when leases are lost, at most once in the length of a lease; grows by one with each run that told its end.

    A worker that takes more than it, or its store, can serve within a lease would lose them all, take as many again, and get
    nothing done for as long as there is work.
    """

    def __init__(self, most: int, *, lease_seconds: float) -> None:
        self._most = most
        self._lease_seconds = lease_seconds
        self._cut_at = -math.inf
        self.count = most
        """How many tasks may run now; at least 1."""

    def lost(self) -> None:
        """A lease was lost."""
        now = time.monotonic()
        if now - self._cut_at >= self._lease_seconds:
            self._cut_at = now
            self.count = max(1, self.count // 2)

    def kept(self) -> None:
        """A run told the store its end."""
        self.count = min(self._most, self.count + 1)
