"""L: what processes hold open and how much memory they have returns, in each quiet, to what it was in the first."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

_TENTH: Final = 0.1
_ROOM: Final = {"fds": 20, "mib": 64}
"""So much more is nothing yet: a pool that has grown, a large message whose memory Python has kept."""


def check_footprint(quiets: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Compares each part with itself, also where another process has taken its place since."""
    for number, quiet in enumerate(quiets[1:], 2):
        for name, had in quiets[0].items():
            if not isinstance(had, Mapping) or name not in quiet:
                continue
            for unit, room in _ROOM.items():
                most = had[unit] + max(room, had[unit] * _TENTH)
                if quiet[name][unit] > most:
                    yield f"L {name} has {quiet[name][unit]} {unit} in quiet {number}, {had[unit]} in the first"
