"""From when on to look for what fell due.

While some transaction keeps an old snapshot, no vacuum removes what was due once from the index of what is, and a look at
all of it passes all that. So looks at all are a twentieth of the time, but one each minute; those between them begin where the
last one saw the first that was due.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

SHARE: Final = 0.05
"""The part of the time that looks at all take."""
MOST_SECONDS: Final = 60.0
"""The longest time between them."""
AGAIN: Final = timedelta(seconds=2)
"""How much earlier the next look begins: what fell due then may not have been committed."""


@dataclass(slots=True)
class DueMark:
    """What is known of the looks so far. Moments are the database's; seconds are of any clock that never goes back."""

    _due_from: datetime | None = None
    _look_at_all_from: float = 0.0

    def since(self, now: float) -> datetime | None:
        """Where a look that begins now begins; None = it looks at all."""
        if self._due_from is None or now >= self._look_at_all_from:
            return None
        return self._due_from - AGAIN

    def looked(self, since: datetime | None, due_from: datetime | None, *, began: float, ended: float) -> None:
        """A look that began where it was told found that nothing is due before this moment, or failed, where there is none."""
        if since is None:
            self._look_at_all_from = min(began + (ended - began) / SHARE, ended + MOST_SECONDS)
        if due_from is not None:
            self._due_from = due_from
