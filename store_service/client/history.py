"""What a task did under earlier leases, so that it is not done again."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Final

from taskstore.v1 import leases_pb2, types_pb2

from store_service.client.outcomes import INTERNAL_ERROR, ProtocolError

Remembered = types_pb2.Checkpoint | leases_pb2.Wake
"""What is known of a step: what was saved, or for a wait that has just ended what ended it."""

_GRACE_SECONDS: Final = 1.0
_TURNS: Final = 16  # of the event loop
_MOST_STEP_BYTES: Final = 256


class History:
    """The steps of one task: those recorded, which are asked for again in the same order, and those to come.

    A wake that was not saved yet stands at the end of the record: the code had asked for all that was saved before its
    task was suspended, and asks next for the step that waited.

    Steps may run side by side (`ctx.parallel`); they were recorded in the order in which they ended. So a step that is
    asked for before its turn waits for the others. When nothing moves for a second, nobody is there to ask for the step
    that is next, and the code is not the code that wrote the history.
    """

    def __init__(
        self, recorded: Sequence[types_pb2.Checkpoint], *, wake: leases_pb2.Wake | None = None, workflow: str, version: int
    ) -> None:
        self._recorded: list[Remembered] = list(recorded)
        # The store keeps a wake until the next wait: one that was saved already is over.
        if wake is not None and all(checkpoint.step != wake.step for checkpoint in recorded):
            self._recorded.append(wake)
        self._position = 0
        self._is_live = not self._recorded
        self._definition = f"workflow {workflow} version {version}"
        self._asked: Counter[str] = Counter()
        self._keys: set[str] = set()
        self._waiting: dict[str, asyncio.Future[None]] = {}
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

    def is_recorded(self, key: str) -> bool:
        """Whether anything is known of this step."""
        return any(one.step == key for one in self._recorded)

    async def recall(self, key: str) -> Remembered | None:
        """What is known of this step; None when it is new. Raises ProtocolError when it contradicts."""
        if not self._is_turn(key):
            await self._wait_for_turn(key)
        if self._position == len(self._recorded):
            await self._let_failures_speak()
            return None
        found = self._recorded[self._position]
        self._position += 1
        self._call_next()
        return found

    def check_finished(self) -> None:
        """Raises ProtocolError when the code ended before it asked for every step that was recorded."""
        if self._position < len(self._recorded):
            raise self.contradiction(f"it ended without step {self._recorded[self._position].step!r}")

    def contradiction(self, detail: str) -> ProtocolError:
        """The error of a task whose history its code did not write."""
        return self.fail(f"the code of {self._definition} changed under a running task: {detail}")

    def fail(self, message: str) -> ProtocolError:
        """An error that ends the task, whatever the code makes of it."""
        error = ProtocolError(INTERNAL_ERROR, message)
        self.failure = error
        return error

    def _is_turn(self, key: str) -> bool:
        return self._position == len(self._recorded) or self._recorded[self._position].step == key

    async def _wait_for_turn(self, key: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[key] = turn
        try:
            while not turn.done():
                before = self._position
                await asyncio.wait({turn}, timeout=_GRACE_SECONDS)
                if not turn.done() and self._position == before:
                    expected = self._recorded[before].step
                    raise self.contradiction(f"it asks for step {key!r} where it asked for {expected!r}")
        finally:
            del self._waiting[key]

    async def _let_failures_speak(self) -> None:
        """Begins nothing before a failure that was recorded last has reached the code that stops what is beside it."""
        if not self._is_live:
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            self._is_live = True

    def _call_next(self) -> None:
        """Wakes the step whose turn it is now; all that wait, once everything recorded was asked for."""
        if self._position == len(self._recorded):
            turns = list(self._waiting.values())
        else:
            turn = self._waiting.get(self._recorded[self._position].step)
            turns = [turn] if turn is not None else []
        for each in turns:
            if not each.done():
                each.set_result(None)
