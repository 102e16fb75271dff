"""What a sync workflow function is given, which runs in a thread."""

import asyncio
import concurrent.futures
import inspect
import itertools
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, Unpack, cast

from taskstore.v1 import leases_pb2

from store_service.client import waits
from store_service.client.context import Context
from store_service.client.effects import Effect, Lookup
from store_service.client.facts import TaskFacts
from store_service.client.failures import FINAL, step_failed
from store_service.client.held import HeldLease
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
from store_service.client.steps import Steps
from store_service.client.threads import Threads
from store_service.client.usage import Usage
from store_service.client.workflows import Retrying, RetryPolicy

P = ParamSpec("P")
T = TypeVar("T")


class SyncContext(TaskFacts):
    """What a sync workflow function is given: the same as Context, blocking."""

    def __init__(
        self,
        context: Context,
        leased: leases_pb2.LeasedTask,
        held: HeldLease,
        *,
        usage: Usage,
        steps: Steps,
        threads: Threads,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(leased, held, usage)
        self._context = context
        self._steps = steps
        self._threads = threads
        self._loop = loop

    def step(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `fn` in this thread, saves what it returned, and returns it. See `Context.step`."""
        return cast("T", self._step(name, fn, lambda: fn(*args, **kwargs), None))

    def with_retry(self, policy: RetryPolicy, *, on: tuple[type[Exception], ...] = (Exception,)) -> "SyncRetriedSteps":
        """Steps that are tried again while they raise one of `on`. See `Context.with_retry`."""
        return SyncRetriedSteps(self, Retrying(policy, on))

    def once(self, *, lookup: Lookup | None = None) -> "SyncOnceSteps":
        """Steps that are never begun again blindly. See `Context.once`."""
        return SyncOnceSteps(self, lookup)

    def parallel(self, *branches: Callable[[], T], limit: int = 8) -> list[T]:
        """Calls several functions side by side, each in a thread of its own, at most `limit` at once; results in order.

        The first failure lets those that have begun end, and is raised. See `Context.parallel`.
        """
        return self._run(side_by_side([self._threads.call(branch) for branch in branches], limit=limit))

    def sleep(self, seconds: float, *, name: str = "sleep") -> None:
        """Waits for the time, at most 366 days. See `Context.sleep`."""
        self._wait(name, waits.new_timer_wait(seconds))

    def wait_signal(self, signal_name: str, *, timeout: float | None = None, name: str | None = None) -> Any:
        """Waits for a signal to this task, and returns its message. See `Context.wait_signal`."""
        wake = self._wait(name or signal_name, waits.new_signal_wait(signal_name, timeout))
        return waits.read_signal(signal_name, wake)

    def ask(
        self, name: str, message: str, schema: Mapping[str, Any], *, timeout: float | None = None, approval: bool = False
    ) -> Answer:
        """Asks a person by a form. See `Context.ask`."""
        return self._ask_one(name, Form(message, schema, approval), timeout)

    def ask_url(self, name: str, message: str, url: str, *, timeout: float | None = None) -> Answer:
        """Asks a person to open a page. See `Context.ask_url`."""
        return self._ask_one(name, Url(message, url), timeout)

    def sample(
        self,
        name: str,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        max_tokens: int,
        timeout: float | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Sample:
        """Asks the client's model. See `Context.sample`."""
        return self._ask_one(name, Sampling(messages=messages, max_tokens=max_tokens, **options), timeout)

    def roots(self, name: str = "roots", *, timeout: float | None = None) -> list[Root]:
        """Asks which folders and files the client lets its servers work on. See `Context.roots`."""
        return self._ask_one(name, Roots(), timeout)

    def ask_all(
        self, questions: Mapping[str, Question[Any]], *, timeout: float | None = None, name: str = "ask_all"
    ) -> dict[str, Any]:
        """Asks several questions at once. See `Context.ask_all`."""
        check_declared(self.client, questions.values())
        return waits.read_answers(questions, self._wait(name, waits.new_input_wait(questions, timeout)))

    def progress(self, value: float, total: float | None = None, message: str = "") -> None:
        """Tells the caller how far the work is. See `Context.progress`."""
        self._run(self._context.progress(value, total, message))

    def wait_cancelled(self, timeout: float | None = None) -> bool:
        """Waits until the run shall stop, at most `timeout` seconds; says whether it shall."""
        return self._held.wait_stop_wished(timeout)

    def _step(self, name: str, fn: Callable[..., Any], work: Callable[[], Any], retrying: Retrying | None) -> Any:
        opened = self._run(self._steps.open(self._steps.key(name), threading.current_thread()))
        if opened.is_done:
            return opened.value
        try:
            with self._usage.counting(), self._steps.follow(fn):
                value = self._try(opened.key, work, retrying)
        except BaseException as error:  # noqa: BLE001 (raised again)
            self._run(self._steps.fail(opened.key, error))
        return self._run(self._steps.save(opened.key, value))

    def _once(self, name: str, fn: Callable[..., Any], work: Callable[[], Any], lookup: Lookup | None) -> Any:
        effect = Effect(
            self._steps,
            name,
            threading.current_thread(),
            key_of=self.idempotency_key,
            lookup=lookup,
            call=self._context.call,
            log=self.log,
        )
        opened = self._run(effect.begin())
        if opened.is_done:
            return opened.value
        try:
            with self._usage.counting(), self._steps.follow(fn):
                value = self._work(work)
        except NotDone as error:
            self._run(effect.did_not_happen(error))
        except FINAL as error:
            self._run(self._steps.fail(opened.key, error))
        except Exception as error:  # noqa: BLE001 (whatever it is, it does not tell)
            return self._run(effect.doubt(error))
        except BaseException as error:  # noqa: BLE001 (raised again)
            self._run(self._steps.fail(opened.key, error))
        return self._run(self._steps.save(opened.key, value))

    def _work(self, work: Callable[[], Any]) -> Any:
        value = work()
        return self._run(_await(value)) if inspect.isawaitable(value) else value

    def _try(self, key: str, work: Callable[[], Any], retrying: Retrying | None) -> Any:
        for retries in itertools.count():
            try:
                return self._work(work)
            except FINAL:
                raise
            except Exception as error:
                if retrying is None or not isinstance(error, retrying.on):
                    raise
                if retries + 1 >= retrying.policy.max_attempts:
                    raise step_failed(key, error) from error
                self.log.info("step failed, trying again", step=key, retries=retries, error=type(error).__name__)
            if self.wait_cancelled(retrying.policy.backoff_seconds(retries)):
                raise Cancelled
        raise AssertionError("the last try returns or raises")

    def _wait(self, name: str, wait: waits.Wait) -> leases_pb2.Wake:
        return self._run(self._steps.wait(self._steps.key(name), threading.current_thread(), wait))

    def _ask_one(self, name: str, question: Question[T], timeout: float | None) -> T:
        answer: T | None = self.ask_all({name: question}, timeout=timeout, name=name)[name]
        if answer is None:
            raise InputTimeout(name)
        return answer

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns or raises, run in the event loop."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except concurrent.futures.CancelledError:
            raise Cancelled from None


class SyncRetriedSteps:
    """Steps of a context that are tried again when they fail."""

    def __init__(self, context: SyncContext, retrying: Retrying) -> None:
        self._context = context
        self._retrying = retrying

    def step(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """As `SyncContext.step`, tried again as `Context.with_retry` says. Raises StepFailed after the last try."""
        return cast("T", self._context._step(name, fn, lambda: fn(*args, **kwargs), self._retrying))  # noqa: SLF001 (its own)


class SyncOnceSteps:
    """Steps of a context that are never begun again blindly."""

    def __init__(self, context: SyncContext, lookup: Lookup | None) -> None:
        self._context = context
        self._lookup = lookup

    def step(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """As `SyncContext.step`, begun once, as `Context.once` says."""
        return cast("T", self._context._once(name, fn, lambda: fn(*args, **kwargs), self._lookup))  # noqa: SLF001 (its own)


async def _await(value: Awaitable[T]) -> T:
    return await value
