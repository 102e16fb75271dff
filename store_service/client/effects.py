"""Effects on the outside that must not happen twice: written down before they begin, and never begun again blindly.

A step runs again when its worker died before it was saved. For an effect that nobody may repeat,

    written down before? ── no ──> written down, then its code runs, then its outcome is saved
      │ yes, by a run that was lost, or its code raised
    its outcome is saved? ── yes ──> it is that
      │ no: it may have happened
    `lookup` knows? ── it happened ──> its outcome is saved;  it did not ──> written down anew, and run
      │ no, or there is none
    the task waits for an operator's signal, which says the one or the other
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import structlog

from store_service.client import waits
from store_service.client.steps import Opened, Owner, Steps

SIGNAL_PREFIX: Final = "effect."
"""Of the signal that an operator sends, which ends with the effect's idempotency key."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a lookup found: the effect happened, and this came of it."""

    value: Any = None


Lookup = Callable[[str], Done | Awaitable[Done | None] | None]
"""Asks the outside, by the effect's idempotency key, what came of it: Done, or None where it did not happen."""


class Effect:
    """One effect of one run: `begin`, then its code where it is not done, then `Steps.save`, `Steps.fail` or `doubt`."""

    def __init__(
        self,
        steps: Steps,
        name: str,
        owner: Owner,
        *,
        key_of: Callable[[str], str],
        lookup: Lookup | None,
        call: Callable[..., Awaitable[Any]],
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self._steps = steps
        self._owner = owner
        self._lookup = lookup
        self._call = call
        self._log = log
        self.key = steps.key(name)
        """The step that its outcome is saved as."""
        self._idempotency_key = key_of(self.key)
        self._write_down()

    async def begin(self) -> Opened:
        """Its outcome, where it has one; raises the failure that was. Otherwise it is written down, and under way from here."""
        while True:
            begun = await self._steps.open(self._begun, self._owner)
            if not begun.is_done:
                await self._steps.save(self._begun, self._idempotency_key)
                return await self._steps.open(self.key, self._owner)
            if self._steps.is_recorded(self.key):
                return await self._steps.open(self.key, self._owner)
            if (found := await self._find_out()) is not None:
                return await self._save(found)
            self._write_down()

    async def doubt(self, error: Exception) -> Any:
        """Its code raised, which tells nothing: returns what came of it. Raises `error` where it did not happen."""
        self._steps.leave(self.key)
        self._log.warning("it is not known whether an effect happened", step=self.key, error=type(error).__name__)
        if (found := await self._find_out()) is None:
            await self._raise(error)
        return (await self._save(found)).value

    async def did_not_happen(self, error: Exception) -> NoReturn:
        """Its code knows that nothing happened: raises `error`, and a later run may begin anew."""
        self._steps.leave(self.key)
        await self._note_not_done()
        await self._raise(error)

    def _write_down(self) -> None:
        self._begun, self._not_done = (self._steps.key(f"{self.key} {what}") for what in ("begun", "not done"))
        self._asked = self._steps.key(f"{self.key} asked")

    async def _find_out(self) -> Done | None:
        if self._steps.is_recorded(self._not_done):
            await self._steps.open(self._not_done, self._owner)
            return None
        if self._lookup is not None and not self._steps.is_recorded(self._asked):
            try:
                found: Done | None = await self._call(self._lookup, self._idempotency_key)
            except Exception as error:  # noqa: BLE001 (whoever cannot say does not know)
                self._log.warning("the lookup of an effect failed", step=self.key, error=type(error).__name__)
            else:
                if found is None:
                    await self._note_not_done()
                return found
        return await self._ask()

    async def _ask(self) -> Done | None:
        name = f"{SIGNAL_PREFIX}{self._idempotency_key}"
        while True:
            wake = await self._steps.wait(self._asked, self._owner, waits.new_signal_wait(name, None))
            match waits.read_signal(name, wake):
                case {"done": True, **more}:
                    return Done(more.get("value"))
                case {"done": False}:
                    return None
            self._log.warning("a signal did not say whether an effect happened", step=self.key)
            self._asked = self._steps.key(f"{self.key} asked")

    async def _note_not_done(self) -> None:
        await self._steps.open(self._not_done, self._owner)
        await self._steps.save(self._not_done, value=True)

    async def _save(self, found: Done) -> Opened:
        await self._steps.open(self.key, self._owner)
        return Opened(self.key, is_done=True, value=await self._steps.save(self.key, found.value))

    async def _raise(self, error: Exception) -> NoReturn:
        await self._steps.open(self.key, self._owner)
        await self._steps.fail(self.key, error)
