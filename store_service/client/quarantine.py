"""Tasks that lost their workers again and again: one of them may be why, and shall take none of the others with it."""

import time
from collections.abc import Callable
from typing import Final

from store_service.client.held import HeldLease

SUSPECT_CRASHES: Final = 3
"""From so many lost workers on a task is looked upon as one that may have ended them."""
WATCHED_SECONDS: Final = 10.0
"""How long one of them is watched; whoever has run for so long is begun beside others as any task is."""


class Quarantine:
    """Lets one of them begin at a time in this process.

    A task that kills its workers is given out together with others, who lose their worker too, come back with it, and would be
    given up with it in the end.
    """

    def __init__(self, *, seconds_now: Callable[[], float] = time.monotonic) -> None:
        self._seconds_now = seconds_now
        self._watched: HeldLease | None = None
        self._until = 0.0

    def admits(self, held: HeldLease, *, crashes: int) -> bool:
        """Whether a task may begin now."""
        if crashes < SUSPECT_CRASHES:
            return True
        if self._watched is not None and self._seconds_now() < self._until:
            return False
        self._watched, self._until = held, self._seconds_now() + WATCHED_SECONDS
        return True

    def ended(self, held: HeldLease) -> None:
        """A run has ended."""
        if self._watched is held:
            self._watched = None
