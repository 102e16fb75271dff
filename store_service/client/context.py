"""What an async workflow function is given: its steps, its waits, its questions."""

# ruff: noqa: ASYNC109 (the timeouts are counted by the store; the code is not cut off by them)

import asyncio
import inspect
import itertools
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from taskstore.v1 import leases_pb2

from store_service.client import waits
from store_service.client.effects import Effect, Lookup
from store_service.client.errors import LeaseLost, StoreError
from store_service.client.facts import TaskFacts
from store_service.client.failures import FINAL, step_failed
from store_service.client.held import HeldLease
from store_service.client.lease_calls import LeaseCalls
from store_service.client.outcomes import Cancelled, InputTimeout, NotDone
from store_service.client.questions import (
    Answer,
    Form,
    Question,
    Root,
    Roots,
    Sample,
    Sampling,
    SamplingOptions,
    Url,
    check_declared,
)
from store_service.client.side_by_side import side_by_side
from store_service.client.steps import Owner, Steps
from store_service.client.threads import Threads
from store_service.client.usage import Usage
from store_service.client.workflows import Retrying, RetryPolicy

P = ParamSpec("P")
T = TypeVar("T")


class Context(TaskFacts):
    """What an async workflow function is given.

    A step, a sleep, a wait and a question are each saved under their name, and remembered by a resumed run. `timeout` is
    in seconds and counted by the store.
    """

    def __init__(
        self,
        leased: leases_pb2.LeasedTask,
        held: HeldLease,
        *,
        usage: Usage,
        calls: LeaseCalls,
        steps: Steps,
        threads: Threads,
    ) -> None:
        super().__init__(leased, held, usage)
        self._calls = calls
        self._steps = steps
        self._threads = threads
        self._stop_wished: asyncio.Event | None = None  # made for whoever waits

    @overload
    async def step(self, name: str, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def step(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def step(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Runs `fn`, saves what it returned, and returns it; a step that is done is not done again.

        A sync `fn` runs in a thread. The value must be JSON; what comes back is its JSON form on the first run too
        (a tuple is a list), so that a resumed run sees the same. The same name used again is a step of its own.
        When the worker dies between the work and the saving, the step runs again: see `idempotency_key`.

        A ToolError or ProtocolError that `fn` raises is the step's outcome: saved, and raised again by a resumed run.
        Any other exception is not saved and ends the run, which is tried again as a whole. See `with_retry`.
        """
        return await self._step(name, fn, lambda: self.call(fn, *args, **kwargs), None)

    def with_retry(self, policy: RetryPolicy, *, on: tuple[type[Exception], ...] = (Exception,)) -> "RetriedSteps":
        """Steps that are tried again while they raise one of `on`: `ctx.with_retry(RetryPolicy()).step(name, fn)`.

        The tries are made within one run and not counted across runs. When they are used up, StepFailed is the step's
        outcome, which the code may catch.
        """
        return RetriedSteps(self, Retrying(policy, on))

    def once(self, *, lookup: Lookup | None = None) -> "OnceSteps":
        """Steps that are never begun again blindly: `ctx.once(lookup=find).step("charge", charge, card)`.

        For what must not happen twice and has no key that makes it safe to repeat. Where it is not known whether it happened,
        as its worker was lost or its code raised, `lookup` is asked, by the step's `idempotency_key`; otherwise the task waits
        for a signal `effect.<key>` of `{"done": true, "value": ...}` or `{"done": false}`. See `NotDone`.
        """
        return OnceSteps(self, lookup)

    async def parallel(self, *branches: Awaitable[T], limit: int = 8) -> list[T]:
        """Runs several steps, or coroutines made of steps, side by side: at most `limit` at once, results in order.

        The first failure stops the others, waits until they have stopped, and is raised. Steps of the same name are
        numbered in the order in which they are asked for: where branches have several steps, give each its own names.
        """
        return await side_by_side(branches, limit=limit)

    async def sleep(self, seconds: float, *, name: str = "sleep") -> None:
        """Waits for the time, at most 366 days, without a lease and without a slot of this worker."""
        await self._wait(name, waits.new_timer_wait(seconds))

    async def wait_signal(self, signal_name: str, *, timeout: float | None = None, name: str | None = None) -> Any:
        """Waits for a signal to this task, and returns its message; one that came before is taken at once.

        Raises SignalTimeout past `timeout`. The step is named after the signal unless `name` is given.
        """
        wake = await self._wait(name or signal_name, waits.new_signal_wait(signal_name, timeout))
        return waits.read_signal(signal_name, wake)

    async def ask(
        self, name: str, message: str, schema: Mapping[str, Any], *, timeout: float | None = None, approval: bool = False
    ) -> Answer:
        """Asks a person by a form, whose answer's content keeps to `schema`; see Form, also for approvals. Raises InputTimeout.

        As every question, it fails the task with -32021 when the client did not declare its kind: see `client.can`.
        """
        return await self._ask_one(name, Form(message, schema, approval), timeout)

    async def ask_url(self, name: str, message: str, url: str, *, timeout: float | None = None) -> Answer:
        """Asks a person to open a page. Raises InputTimeout."""
        return await self._ask_one(name, Url(message, url), timeout)

    async def sample(
        self,
        name: str,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        max_tokens: int,
        timeout: float | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Sample:
        """Asks the client's model; see Sampling for `messages` and `options`. Raises InputTimeout."""
        return await self._ask_one(name, Sampling(messages=messages, max_tokens=max_tokens, **options), timeout)

    async def roots(self, name: str = "roots", *, timeout: float | None = None) -> list[Root]:
        """Asks which folders and files the client lets its servers work on. Raises InputTimeout."""
        return await self._ask_one(name, Roots(), timeout)

    async def ask_all(
        self, questions: Mapping[str, Question[Any]], *, timeout: float | None = None, name: str = "ask_all"
    ) -> dict[str, Any]:
        """Asks up to 16 questions at once: the answers under the same names, None for what was not answered in time."""
        check_declared(self.client, questions.values())
        wake = await self._wait(name, waits.new_input_wait(questions, timeout))
        return waits.read_answers(questions, wake)

    async def progress(self, value: float, total: float | None = None, message: str = "") -> None:
        """Tells the caller how far the work is. A report that the store cannot take now is left out."""
        self.check_cancelled()
        if not (math.isfinite(value) and (total is None or math.isfinite(total))):
            raise ValueError("progress must be finite")
        try:
            await self._calls.report_progress(value, total, message)
        except LeaseLost:
            raise Cancelled from None
        except StoreError as error:
            self.log.warning("progress was not reported", code=error.code.name, reason=error.reason)

    async def wait_cancelled(self, timeout: float | None = None) -> bool:
        """Waits until the run shall stop, at most `timeout` seconds; says whether it shall."""
        if self._held.is_stop_wished:
            return True
        self._stop_wished = self._stop_wished or asyncio.Event()
        try:
            await asyncio.wait_for(self._stop_wished.wait(), timeout)
        except TimeoutError:
            return False
        return True

    def wish_stop(self) -> None:
        """Wakes `wait_cancelled`. For the library."""
        if self._stop_wished is not None:
            self._stop_wished.set()

    async def _step(
        self, name: str, fn: Callable[..., Any], work: Callable[[], Awaitable[Any]], retrying: Retrying | None
    ) -> Any:
        opened = await self._steps.open(self._steps.key(name), _owner())
        if opened.is_done:
            return opened.value
        try:
            with self._usage.counting(), self._steps.follow(fn):
                value = await self._try(opened.key, work, retrying)
        except BaseException as error:  # noqa: BLE001 (raised again)
            await self._steps.fail(opened.key, error)
        return await self._steps.save(opened.key, value)

    async def _once(self, name: str, fn: Callable[..., Any], work: Callable[[], Awaitable[Any]], lookup: Lookup | None) -> Any:
        effect = Effect(self._steps, name, _owner(), key_of=self.idempotency_key, lookup=lookup, call=self.call, log=self.log)
        opened = await effect.begin()
        if opened.is_done:
            return opened.value
        try:
            with self._usage.counting(), self._steps.follow(fn):
                value = await work()
        except NotDone as error:
            await effect.did_not_happen(error)
        except FINAL as error:
            await self._steps.fail(opened.key, error)
        except Exception as error:  # noqa: BLE001 (whatever it is, it does not tell)
            return await effect.doubt(error)
        except BaseException as error:  # noqa: BLE001 (raised again)
            await self._steps.fail(opened.key, error)
        return await self._steps.save(opened.key, value)

    async def _try(self, key: str, work: Callable[[], Awaitable[Any]], retrying: Retrying | None) -> Any:
        for retries in itertools.count():
            try:
                return await work()
            except FINAL:
                raise
            except Exception as error:
                if retrying is None or not isinstance(error, retrying.on):
                    raise
                if retries + 1 >= retrying.policy.max_attempts:
                    raise step_failed(key, error) from error
                self.log.info("step failed, trying again", step=key, retries=retries, error=type(error).__name__)
            if await self.wait_cancelled(retrying.policy.backoff_seconds(retries)):
                raise Cancelled
        raise AssertionError("the last try returns or raises")

    async def call(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What `fn` returns; a sync one runs in a thread. For the library."""
        if inspect.iscoroutinefunction(fn):
            return await fn(*args, **kwargs)
        value = await self._threads.call(fn, *args, **kwargs)
        return await value if inspect.isawaitable(value) else value

    async def _wait(self, name: str, wait: waits.Wait) -> leases_pb2.Wake:
        return await self._steps.wait(self._steps.key(name), _owner(), wait)

    async def _ask_one(self, name: str, question: Question[T], timeout: float | None) -> T:
        answer: T | None = (await self.ask_all({name: question}, timeout=timeout, name=name))[name]
        if answer is None:
            raise InputTimeout(name)
        return answer


class RetriedSteps:
    """Steps of a context that are tried again when they fail."""

    def __init__(self, context: Context, retrying: Retrying) -> None:
        self._context = context
        self._retrying = retrying

    @overload
    async def step(self, name: str, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def step(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def step(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """As `Context.step`, tried again as `Context.with_retry` says. Raises StepFailed after the last try."""
        context = self._context
        return await context._step(name, fn, lambda: context.call(fn, *args, **kwargs), self._retrying)  # noqa: SLF001 (its own)


class OnceSteps:
    """Steps of a context that are never begun again blindly."""

    def __init__(self, context: Context, lookup: Lookup | None) -> None:
        self._context = context
        self._lookup = lookup

    @overload
    async def step(self, name: str, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def step(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def step(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """As `Context.step`, begun once, as `Context.once` says."""
        context = self._context
        return await context._once(name, fn, lambda: context.call(fn, *args, **kwargs), self._lookup)  # noqa: SLF001 (its own)


def _owner() -> Owner:
    task = asyncio.current_task()
    assert task is not None
    return task
