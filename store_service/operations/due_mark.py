"""From when on to look for what fell due.

While some transaction keeps an old snapshot, no vacuum removes what was due once from the index of what is, and a look at
all of it passes all that. So looks at all are a twentieth of the time at most, and those between them begin 2 s before the last
one ended: what others held meanwhile is found by one of these, or by the next look at all.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

SHARE: Final = 0.05
"""The part of the time that looks at all may take."""
AGAIN: Final = timedelta(seconds=2)
"""How long it is looked for what others held."""


@dataclass(slots=True)
class DueMark:
    """What is known of the looks so far. Moments are the database's; seconds are of any clock that never goes back."""

    _until: datetime | None = None
    _look_at_all_from: float = 0.0

    def since(self, now: float) -> datetime | None:
        """Where a look that begins now begins; None = it looks at all."""
        if self._until is None or now >= self._look_at_all_from:
            return None
        return self._until - AGAIN

    def looked(self, since: datetime | None, until: datetime | None, *, began: float, ended: float) -> None:
        """A look that began where it was told has come to this moment, or has left something, where there is none."""
        if since is None:
            self._look_at_all_from = began + (ended - began) / SHARE
        if until is not None:
            self._until = until
