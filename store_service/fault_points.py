"""Points in our own code at which a test lets something go wrong: after a commit and before its reply, and the like.

A point is armed by a file in the folder `armed` that has its name and says what is to happen; reaching it moves the file to
`fired`, so that it happens once, in one of all the processes that look there. Where no folder is set, nothing looks.
"""

import asyncio
import itertools
import os
from pathlib import Path
from typing import Final

EXIT_CODE: Final = 137
"""How a process ends that a point let end."""
DROP_SECONDS: Final = 8.0
"""How long a dropped reply keeps its caller waiting, unless it leaves; longer than callers of a run wait."""


class FaultError(ConnectionResetError):
    """What a point raises: a connection that broke."""


class FaultPoints:
    """The points of one process."""

    def __init__(self, folder: Path) -> None:
        self._armed = folder / "armed"
        self._fired = folder / "fired"
        self._numbers = itertools.count()

    async def reach(self, point: str) -> None:
        """Does what was armed for this point, if anything was: `raise` FaultError, `sleep` so many seconds, `exit` at once, or
        `drop` the reply, which keeps whoever waits for it waiting, then raises."""
        match self._take(point):
            case None:
                return
            case ["raise"]:
                raise FaultError(point)
            case ["sleep", seconds]:
                await asyncio.sleep(float(seconds))
            case ["exit"]:
                os._exit(EXIT_CODE)
            case ["drop"]:
                await asyncio.sleep(DROP_SECONDS)
                raise FaultError(point)
            case other:
                raise ValueError(f"{point} is armed with {other}, which is nothing that a point does")

    def _take(self, point: str) -> list[str] | None:
        fired = self._fired / f"{point}.{os.getpid()}-{next(self._numbers)}"
        try:
            (self._armed / point).rename(fired)
        except FileNotFoundError:
            return None
        return fired.read_text().split()
