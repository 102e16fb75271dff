"""What a task did under earlier leases, so that it is not done again."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Final

from taskstore.v1 import types_pb2

from store_service.client.outcomes import INTERNAL_ERROR, ProtocolError

_GRACE_SECONDS: Final = 1.0
_MOST_STEP_BYTES: Final = 256


class History:
    """The steps of one task: those recorded, which are asked for again in the same order, and those to come.

    Steps may run side by side (`asyncio.gather`); they were recorded in the order in which they ended. So a step that
    is asked for before its turn waits for the others. When its turn does not come within a second, nobody is there to
    ask for the step that is next, and the code is not the code that wrote the history.
    """

    def __init__(self, recorded: Sequence[types_pb2.Checkpoint], *, workflow: str, version: int) -> None:
        self._recorded = list(recorded)
        self._position = 0
        self._definition = f"workflow {workflow} version {version}"
        self._asked: Counter[str] = Counter()
        self._keys: set[str] = set()
        self._moved = asyncio.Condition()
        self.failure: Exception | None = None
        """What makes it impossible to go on, whatever the code makes of it."""

    def key(self, name: str) -> str:
        """The key of the next step of this name: `name`, then `name#2` and so on. Raises ValueError."""
        self._asked[name] += 1
        while True:
            times = self._asked[name]
            key = name if times == 1 else f"{name}#{times}"
            if key not in self._keys:
                break
            self._asked[name] += 1
        if not 1 <= len(key.encode()) <= _MOST_STEP_BYTES or "\0" in key:
            raise ValueError(f"the name of a step must be 1 to {_MOST_STEP_BYTES} bytes: {name!r}")
        self._keys.add(key)
        return key

    async def recall(self, key: str) -> types_pb2.Checkpoint | None:
        """What was recorded for this step; None when it is new. Raises ProtocolError when it contradicts."""
        async with self._moved:
            if not self._is_turn(key):
                try:
                    await asyncio.wait_for(self._moved.wait_for(lambda: self._is_turn(key)), _GRACE_SECONDS)
                except TimeoutError:
                    raise self.contradiction() from None
            if self._position == len(self._recorded):
                return None
            found = self._recorded[self._position]
            self._position += 1
            self._moved.notify_all()
            return found

    def check_finished(self) -> None:
        """Raises ProtocolError when the code ended before it asked for every step that was recorded."""
        if self._position < len(self._recorded):
            raise self.contradiction()

    def contradiction(self) -> ProtocolError:
        """The error of a task whose history its code did not write."""
        error = ProtocolError(INTERNAL_ERROR, f"the code of {self._definition} changed under a running task")
        self.failure = error
        return error

    def _is_turn(self, key: str) -> bool:
        return self._position == len(self._recorded) or self._recorded[self._position].step == key
