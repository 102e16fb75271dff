"""What the code of a workflow is given: its steps, its progress, its task."""

import asyncio
import inspect
import math
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar, cast, overload

import msgspec
import structlog
from taskstore.v1 import leases_pb2, types_pb2

from store_service.client.errors import LeaseLost, StoreError
from store_service.client.held import HeldLease
from store_service.client.history import History
from store_service.client.lease_calls import LeaseCalls
from store_service.client.metrics import WorkerMetrics
from store_service.client.outcomes import INTERNAL_ERROR, Cancelled, ProtocolError
from store_service.client.payloads import from_json, to_json
from store_service.client.threads import Threads

P = ParamSpec("P")
T = TypeVar("T")


class ClientCapabilities:
    """What the MCP client that called the tool declared it can do."""

    def __init__(self, declared: bytes) -> None:
        self._declared = msgspec.json.decode(declared) if declared else {}

    def can(self, *path: str) -> bool:
        """Whether the client declared a capability: `can("sampling")`, `can("elicitation", "url")`."""
        found = self._declared
        for name in path:
            if not isinstance(found, dict) or found.get(name) in (None, False):
                # An elicitation without modes means forms.
                return path == ("elicitation", "form") and found == {}
            found = found[name]
        return True


class TaskFacts:
    """What is known of the task being run, in an async function as in a sync one."""

    def __init__(self, leased: leases_pb2.LeasedTask, held: HeldLease) -> None:
        self._leased = leased
        self._held = held
        self.client = ClientCapabilities(leased.contract.client_capabilities)
        self.log: structlog.typing.FilteringBoundLogger = structlog.get_logger("tenure.workflow")

    @property
    def task_id(self) -> str:
        """The task, unique within its tenant."""
        return self._leased.lease.task_id

    @property
    def tenant_id(self) -> str:
        """The tenant that the task belongs to."""
        return self._leased.lease.tenant_id

    @property
    def fencing_token(self) -> int:
        """Grows with each lease of the task: what is guarded by it refuses the late writes of an earlier run."""
        return self._leased.lease.token

    @property
    def attempt(self) -> int:
        """How many leases the task was given, this one included."""
        return self._leased.attempts

    @property
    def contract(self) -> types_pb2.TaskContract:
        """What was agreed when the task was created: tool, owner, deadline, trace context."""
        return self._leased.contract

    @property
    def cancelled(self) -> bool:
        """Whether the run shall stop: its caller wished it, its lease was lost, or the worker shuts down."""
        return self._held.stop_wished.is_set()

    def check_cancelled(self) -> None:
        """Raises Cancelled when the run shall stop."""
        if self.cancelled or self._held.remaining_seconds() <= 0:
            raise Cancelled

    def idempotency_key(self, step: str) -> str:
        """A UUID that is the same at every attempt of this step of this task, and nowhere else."""
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"tenure:{self.tenant_id}:{self.task_id}:{step}"))


class Context(TaskFacts):
    """What an async workflow function is given."""

    def __init__(
        self,
        leased: leases_pb2.LeasedTask,
        held: HeldLease,
        *,
        calls: LeaseCalls,
        history: History,
        threads: Threads,
        metrics: WorkerMetrics,
    ) -> None:
        super().__init__(leased, held)
        self._calls = calls
        self._history = history
        self._threads = threads
        self._metrics = metrics
        self._saving = asyncio.Lock()
        self._revision = leased.checkpoints
        self._stop_wished = asyncio.Event()
        self._stepping: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    @overload
    async def step(self, name: str, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def step(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def step(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Runs `fn`, saves what it returned, and returns it; a step that is done is not done again.

        A sync `fn` runs in a thread. The value must be JSON; what comes back is its JSON form on the first run too
        (a tuple is a list), so that a resumed run sees the same. The same name used again is a step of its own.
        When the worker dies between the work and the saving, the step runs again: see `idempotency_key`.
        """
        key, done, value = await self.open_step(name)
        if done:
            return value
        with self._noted():
            if inspect.iscoroutinefunction(fn):
                value = await fn(*args, **kwargs)
            else:
                value = await self._threads.call(fn, *args, **kwargs)
                if inspect.isawaitable(value):
                    value = await value
            return await self.save_step(key, value)

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

    async def wait_cancelled(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 (reads as Event.wait does)
        """Waits until the run shall stop, at most `timeout` seconds; says whether it shall."""
        try:
            await asyncio.wait_for(self._stop_wished.wait(), timeout)
        except TimeoutError:
            return False
        return True

    def wish_stop(self) -> None:
        """Wakes `wait_cancelled`. For the library."""
        self._stop_wished.set()

    async def close(self, *, grace_seconds: float) -> None:
        """Stops steps that the function left behind when it ended, as `asyncio.gather` does. For the library."""
        self._is_closed = True
        left = {task for task in self._stepping if not task.done()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=grace_seconds)

    async def open_step(self, name: str) -> tuple[str, bool, Any]:
        """A step's key, whether it is done, and what it returned if so. For the library."""
        self._check_usable()
        key = self._history.key(name)
        found = await self._history.recall(key)
        if found is None:
            self._check_usable()
            return key, False, None
        self._metrics.steps.labels("remembered").inc()
        return key, True, from_json(f"what step {key!r} returned", found.payload)

    async def save_step(self, key: str, value: Any) -> Any:
        """Saves what a step returned, and returns it in its JSON form. For the library."""
        data = to_json(f"what step {key!r} returned", value)
        async with self._saving:
            if self._is_closed:
                raise Cancelled
            if self._history.failure is not None:
                raise self._history.failure
            try:
                await self._calls.append_checkpoint(revision=self._revision, step=key, data=data)
            except LeaseLost:
                raise Cancelled from None
            except StoreError as error:
                # It is not known whether it was saved, or it cannot be: no later step may be saved over it.
                self._history.failure = error if error.is_transient else _unsavable(key, error)
                raise self._history.failure from error
            self._revision += 1
        self._metrics.steps.labels("ran").inc()
        return msgspec.json.decode(data)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Keeps in mind which asyncio task is within a step."""
        task = asyncio.current_task()
        assert task is not None
        self._stepping.add(task)
        try:
            yield
        finally:
            self._stepping.discard(task)

    def _check_usable(self) -> None:
        if self._is_closed:
            raise Cancelled
        self.check_cancelled()
        if self._history.failure is not None:
            raise self._history.failure


class SyncContext(TaskFacts):
    """What a sync workflow function is given, which runs in a thread: the same, blocking."""

    def __init__(
        self, context: Context, leased: leases_pb2.LeasedTask, held: HeldLease, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(leased, held)
        self._context = context
        self._loop = loop

    def step(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `fn` in this thread, saves what it returned, and returns it. See `Context.step`."""
        key, done, value = self._wait(self._context.open_step(name))
        if not done:
            value = fn(*args, **kwargs)
            if inspect.isawaitable(value):
                value = self._wait(_await(value))
            value = self._wait(self._context.save_step(key, value))
        return cast("T", value)

    def progress(self, value: float, total: float | None = None, message: str = "") -> None:
        """Tells the caller how far the work is. See `Context.progress`."""
        self._wait(self._context.progress(value, total, message))

    def wait_cancelled(self, timeout: float | None = None) -> bool:
        """Waits until the run shall stop, at most `timeout` seconds; says whether it shall."""
        return self._held.stop_wished.wait(timeout)

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _await(value: Awaitable[T]) -> T:
    return await value


def _unsavable(key: str, error: StoreError) -> ProtocolError:
    return ProtocolError(INTERNAL_ERROR, f"what step {key!r} returned cannot be saved: {error.message}")
