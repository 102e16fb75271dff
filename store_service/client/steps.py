"""The steps of one run: opened in their order, saved when they end; and the wait that ends the run."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import msgspec
from taskstore.v1 import leases_pb2, types_pb2

from store_service.client import failures, waits
from store_service.client.errors import LeaseLost, StoreError
from store_service.client.failures import FinalFailure
from store_service.client.held import HeldLease
from store_service.client.history import History, Remembered
from store_service.client.lease_calls import LeaseCalls
from store_service.client.metrics import WorkerMetrics
from store_service.client.outcomes import INTERNAL_ERROR, Cancelled, ProtocolError, Suspended
from store_service.client.payloads import JSON, from_json, to_json
from store_service.client.run_span import RunSpan
from store_service.client.usage import Usage
from store_service.client.waits import WAKE, Wait

Owner = asyncio.Task[Any] | threading.Thread
"""Whose code asks for a step."""

_TURNS: Final = 16  # of the event loop, in which a failure reaches the code that meets it


@dataclass(frozen=True, slots=True)
class Opened:
    """A step that was asked for."""

    key: str
    is_done: bool
    value: Any = None


@dataclass(frozen=True, slots=True)
class Suspension:
    """What the task waits for after this run."""

    step: str
    wait: Wait


class Steps:
    """Opens and saves the steps of one run.

    A wait that is new suspends the task: nothing more is begun, what is under way ends and is saved, then `suspended`
    is called and all code of the run that asks for anything is told by Suspended.
    """

    def __init__(
        self,
        *,
        calls: LeaseCalls,
        history: History,
        usage: Usage,
        held: HeldLease,
        metrics: WorkerMetrics,
        revision: int,
        suspended: Callable[[], None],
        span: RunSpan | None = None,
    ) -> None:
        self._calls = calls
        self._usage = usage
        self._history = history
        self._held = held
        self._metrics = metrics
        self._revision = revision
        self._saving = asyncio.Lock()
        self._under_way: dict[str, Owner] = {}
        self._one_ended = asyncio.Event()
        self._not_saved: dict[Owner, str] = {}
        self._waiting: set[asyncio.Task[Any]] = set()
        self._decided: asyncio.Event | None = None
        self._has_returned = False
        self._is_closed = False
        self.suspension: Suspension | None = None
        """What ends the run, as the task waits."""
        self._suspended = suspended
        self._span = span

    def key(self, name: str) -> str:
        """The key of the next step of this name."""
        return self._history.key(name)

    def is_recorded(self, key: str) -> bool:
        """Whether an earlier run saved this step, or what ended its wait."""
        return self._history.is_recorded(key)

    async def open(self, key: str, owner: Owner) -> Opened:
        """Asks for a step. Raises the failure that was its outcome. When it is not done, it is under way from here."""
        found = await self._ask(key, owner)
        if found is None:
            self._under_way[key] = owner
            return Opened(key, is_done=False)
        if isinstance(found, leases_pb2.Wake) or found.payload.media_type == WAKE:
            raise self._history.contradiction(f"step {key!r} was a wait")
        self._metrics.steps.labels("remembered").inc()
        failure = failures.from_payload(key, found.payload)
        if failure is not None:
            raise failure
        return Opened(key, is_done=True, value=from_json(f"what step {key!r} returned", found.payload))

    async def save(self, key: str, value: Any) -> Any:
        """Saves what a step returned, and returns it in its JSON form. The step is no longer under way."""
        try:
            data = to_json(f"what step {key!r} returned", value)
            await self._append(key, types_pb2.Payload(media_type=JSON, data=data))
        finally:
            self.leave(key)
        self._metrics.steps.labels("ran").inc()
        return msgspec.json.decode(data)

    async def fail(self, key: str, error: BaseException) -> NoReturn:
        """Raises `error`, once it is saved where it is the step's outcome. The step is no longer under way."""
        try:
            if isinstance(error, FinalFailure) and self._history.failure is None:
                payload = failures.to_payload(key, error)
                await self._append(key, payload)
                self._metrics.steps.labels("ran").inc()
                # As a resumed run will see it.
                raise failures.from_payload(key, payload) or error from error
            if isinstance(error, SystemExit | KeyboardInterrupt):  # in the event loop it would end the worker
                error = RuntimeError(f"the code raised {type(error).__name__}")
            self._not_saved[self._under_way[key]] = f"step {key!r} ended by {type(error).__name__}"
            raise error
        finally:
            self.leave(key)

    def follow(self, work: Callable[..., Any]) -> AbstractContextManager[Any]:
        """A step that is not done runs within, by this function."""
        return nullcontext() if self._span is None else self._span.step(work)

    def leave(self, key: str) -> None:
        """The step is no longer under way, and how it came out is not known."""
        del self._under_way[key]
        self._one_ended.set()

    async def wait(self, key: str, owner: Owner, wait: Wait) -> leases_pb2.Wake:
        """What ended this wait. When it has not ended, the run does: raises Suspended."""
        found = await self._ask(key, owner)
        if found is None:
            await self._suspend(key, wait)
        wake = found if isinstance(found, leases_pb2.Wake) else waits.from_payload(found.payload)
        detail = f"step {key!r} was no wait" if wake is None else waits.contradiction(wake, wait)
        if wake is None or detail is not None:
            raise self._history.contradiction(str(detail))
        if wake is not found:
            self._metrics.steps.labels("remembered").inc()
            return wake
        self._under_way[key] = owner
        try:
            await self._append(key, waits.to_payload(wake))
        finally:
            self.leave(key)
        self._metrics.steps.labels("waited").inc()
        return wake

    def returned(self) -> None:
        """The function has ended by itself: a wait that it left behind suspends nothing."""
        self._has_returned = True

    def close_if_idle(self) -> bool:
        """Takes no more steps, if the function left none and no wait behind; says whether that is so."""
        self._is_closed = not (self._under_way or self._waiting)
        return self._is_closed

    async def close(self, *, grace_seconds: float) -> None:
        """Stops steps and waits that the function left behind when it ended."""
        self._is_closed = True
        owners = {owner for owner in self._under_way.values() if isinstance(owner, asyncio.Task)}
        left = {task for task in owners | self._waiting if not task.done()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=grace_seconds)

    async def _ask(self, key: str, owner: Owner) -> Remembered | None:
        await self._check_usable()
        self._check_placed(key, owner)
        found = await self._history.recall(key)
        if found is None:
            await self._check_usable()
        return found

    async def _check_usable(self) -> None:
        while self._decided is not None:  # nothing is begun while the run is about to end
            await self._let_wait(self._decided)
        if self.suspension is not None:
            raise _suspended()
        if self._is_closed or self._held.is_stop_wished or self._held.remaining_seconds() <= 0:
            raise Cancelled
        if self._history.failure is not None:
            raise self._history.failure

    def _check_placed(self, key: str, owner: Owner) -> None:
        """Refuses at once what a resumed run could not do again in the same way."""
        outer = next((outer for outer, other in self._under_way.items() if other == owner), None)
        if outer is not None:
            raise self._history.fail(f"step {key!r} was asked for within step {outer!r}; ask for it beside it")
        for other, failure in self._not_saved.items():
            if other == owner or _ended_well(other):
                why = "which is not saved, and the code went on"
                raise self._history.fail(f"{failure}, {why} to {key!r}; let it pass, or use ctx.with_retry")

    async def _suspend(self, key: str, wait: Wait) -> NoReturn:
        self._decided = asyncio.Event()
        failed = len(self._not_saved)
        try:
            while self._under_way:
                self._one_ended.clear()
                await self._let_wait(self._one_ended)
            if len(self._not_saved) > failed:
                for _ in range(_TURNS):  # the failure speaks first, if the code lets it
                    await asyncio.sleep(0)
            if self._has_returned or self._held.is_stop_wished or self._held.remaining_seconds() <= 0:
                raise Cancelled
            if self._history.failure is not None:
                raise self._history.failure
            self.suspension = Suspension(key, wait)
            self._suspended()
        finally:
            self._decided.set()
            self._decided = None
        raise _suspended()

    async def _let_wait(self, event: asyncio.Event) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._waiting.add(task)
        try:
            await event.wait()
        finally:
            self._waiting.discard(task)

    async def _append(self, key: str, payload: types_pb2.Payload) -> None:
        async with self._saving:
            if self._is_closed:
                raise Cancelled
            if self._history.failure is not None:
                raise self._history.failure
            payload, used = self._usage.to_save(payload)
            try:
                await self._calls.append_checkpoint(revision=self._revision, step=key, payload=payload)
            except LeaseLost:
                raise Cancelled from None
            except StoreError as error:
                # It is not known whether it was saved, or it cannot be: no later step may be saved over it.
                self._history.failure = error if error.is_transient else _unsavable(key, error)
                raise self._history.failure from error
            self._revision += 1
            self._usage.saved(used)


def _suspended() -> Suspended:
    task = asyncio.current_task()
    if task is not None:
        task.add_done_callback(_see)
    return Suspended()


def _ended_well(owner: Owner) -> bool:
    return isinstance(owner, asyncio.Task) and owner.done() and not owner.cancelled() and owner.exception() is None


def _see(task: asyncio.Task[Any]) -> None:
    """Looks at how a task ended, as nobody else may."""
    if not task.cancelled():
        task.exception()


def _unsavable(key: str, error: StoreError) -> ProtocolError:
    return ProtocolError(INTERNAL_ERROR, f"what step {key!r} returned cannot be saved: {error.message}")
