"""One run of one task: from its lease to the word that ends it."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog
from taskstore.v1 import leases_pb2, leases_pb2_grpc, types_pb2

from store_service.client.completions import Completion, Completions
from store_service.client.context import Context
from store_service.client.endings import Complete, Confirm, Ending, Fail, Release
from store_service.client.errors import LeaseLost, StoreError
from store_service.client.held import HeldLease, StopReason
from store_service.client.history import History
from store_service.client.lease_calls import LeaseCalls
from store_service.client.metrics import Outcome, WorkerMetrics
from store_service.client.outcomes import ProtocolError
from store_service.client.payloads import JSON, from_json
from store_service.client.reservations import Reservation
from store_service.client.results import OutputSchemas
from store_service.client.run_end import RunEnd
from store_service.client.run_span import RunSpan
from store_service.client.steps import Steps
from store_service.client.sync_context import SyncContext
from store_service.client.threads import Threads
from store_service.client.usage import Usage, read_saved, without_usage
from store_service.client.workflows import Workflow

if TYPE_CHECKING:
    from store_service.telemetry.traces import Traces

_STOP_GRACE_SECONDS: Final = 1.0  # what a run has to stop in when its worker shuts down
_REST_MS: Final = 1_000  # how long a task rests that this worker could not begin


@dataclass(frozen=True, slots=True, eq=False)
class _Begun:
    """The code of a run, and what it goes by."""

    body: "asyncio.Task[Any]"
    steps: Steps
    history: History


class Run:
    """One run of one leased task. `finish` does it all; everything else serves it.

    `begin` does the same without a task of its own for what most runs are: a first run of an async function that ends by itself
    with a result. As soon as anything else comes up, `finish` goes on with it.
    """

    def __init__(
        self,
        leased: leases_pb2.LeasedTask,
        held: HeldLease,
        *,
        workflow: Workflow,
        stub: "leases_pb2_grpc.LeaseServiceAsyncStub",
        schemas: OutputSchemas,
        metrics: WorkerMetrics,
        log: structlog.typing.FilteringBoundLogger | None = None,
        traces: "Traces | None" = None,
    ) -> None:
        self.held = held
        self._worker_log = log or structlog.get_logger("tenure.worker").bind()
        self._leased = leased
        self._workflow = workflow
        self._metrics = metrics
        self._calls = LeaseCalls(stub, held)
        self._threads = Threads(lambda: held.must_stop)
        self._context: Context | None = None
        self._end = RunEnd(leased, held, workflow=workflow, calls=self._calls, schemas=schemas, log=self._worker_log)
        self._span = RunSpan(traces, leased, workflow) if traces is not None else None
        self._reservation: Reservation | None = None
        self._stirred = asyncio.Event()  # it must stop, or be suspended
        self._started_at = 0.0
        self.is_lost = False
        """Whether it ended because its lease was lost."""
        self._begun: _Begun | None = None
        self._completions: Completions | None = None
        self._ended: Callable[[Run], None] | None = None
        self._finishing: asyncio.Task[None] | None = None

    @property
    def _log(self) -> structlog.typing.FilteringBoundLogger:
        return self._end.log

    def begin(self, ended: Callable[["Run"], None], completions: Completions | None) -> None:
        """Begins the run. `ended` is called once the store knows its end, or will find out."""
        self._ended = ended
        arguments = None
        leased = self._leased
        is_plain = completions is not None and self._workflow.is_async and self._workflow.limits is None and not (
            leased.attempts > 1 or leased.cancel_requested or leased.input_left_out or leased.checkpoints
            or leased.HasField("wake")  # of a task that an operator sent back: its attempts count anew
        )  # fmt: skip
        if is_plain:
            try:
                arguments = _arguments(leased.input)
            except ProtocolError:
                is_plain = False
        if not is_plain:
            self._go_on()
            return
        self._completions = completions
        self._listen()
        history = self._history((), None)
        with self._within():
            self._begun = self._open(arguments, history, Usage(None, {}, fail=history.fail))
        self._begun.body.add_done_callback(self._body_ended)

    def _body_ended(self, _: "asyncio.Task[Any]") -> None:
        """Has the completion taken along, if it ended by itself with a result; else goes on with it."""
        begun, completions = self._begun, self._completions
        if begun is None or completions is None:
            return
        try:
            ending = self._ending_if_plain(begun)
        except Exception:  # noqa: BLE001 (met again there, and logged)
            ending = None
        if not isinstance(ending, Complete):
            self._go_on()
            return
        self.held.begin_ending()
        result = types_pb2.Payload(media_type=JSON, data=ending.result)
        request = leases_pb2.CompleteTaskRequest(lease=self.held.lease, result=result)
        asker = self._span.span if self._span is not None else None
        completions.add(Completion(self.held, request, self._answered, asker))

    def _ending_if_plain(self, begun: _Begun) -> Ending | None:
        body, steps, history = begun.body, begun.steps, begun.history
        if body.cancelled() or body.exception() is not None or steps.suspension is not None or history.failure is not None:
            return None
        if not steps.close_if_idle() or self.held.remaining_seconds() <= 0:
            return None
        return self._end.find(body, steps, history)

    def _answered(self, error: StoreError | None) -> None:
        if isinstance(error, LeaseLost):
            self.held.stop(StopReason.LEASE_LOST)
        elif error is not None:
            self._go_on()
            return
        self._tell("completed" if error is None else "lease_lost")
        assert self._ended is not None
        self._ended(self)

    def _go_on(self) -> None:
        """Does the rest by `finish`."""
        self._completions = None
        self._finishing = asyncio.create_task(self._finish())

    async def _finish(self) -> None:
        try:
            with self._within():
                await self.finish()
        except Exception:  # noqa: BLE001 (one run's failure is not the worker's)
            # A defect of this library: the lease expires, and the task runs again.
            self._log.exception("a run ended unexpectedly")
        finally:
            assert self._ended is not None
            self._ended(self)

    async def finish(self) -> Outcome:
        """Runs the task, or goes on with what was begun, and tells the store how it ended."""
        self._listen()
        self._heed()
        try:
            ending = await self._work()
            if self._reservation is not None:
                ending = await self._reservation.settle(ending)
            self.held.begin_ending()
            outcome = await self._end.tell(ending)
        except LeaseLost:
            outcome = "lease_lost"
        except StoreError as error:
            # The store knows best: it takes the lease back when it expires.
            self._log.error("the end of the task was refused", code=error.code.name, reason=error.reason)
            outcome = "lease_lost"
        self._tell(outcome)
        return outcome

    def _tell(self, outcome: Outcome) -> None:
        self.is_lost = outcome == "lease_lost"
        self.held.listen(None)  # nothing refers to itself any more, or each run would be left to the garbage collector
        self._begun = self._context = None
        seconds = time.monotonic() - self._started_at
        self._metrics.ended[outcome].inc()
        self._metrics.task_seconds.observe(seconds)
        if self._worker_log.is_enabled_for(logging.INFO):
            with self._within():
                self._log.info("task run ended", outcome=outcome, seconds=round(seconds, 3), attempt=self._leased.attempts)
        if self._span is not None:
            self._span.end(outcome)

    def _within(self) -> AbstractContextManager[None]:
        """What is begun within is of the run, in its traces."""
        return nullcontext() if self._span is None else self._span.current()

    def _listen(self) -> None:
        self._started_at = self._started_at or time.monotonic()
        loop = asyncio.get_running_loop()
        self.held.listen(lambda: _call_soon(loop, self._heed))

    def _heed(self) -> None:
        """Tells the code of the run, in the event loop, that it shall stop."""
        if self._context is not None and self.held.is_stop_wished:
            self._context.wish_stop()
        if self.held.must_stop:
            self._stir()

    def _stir(self) -> None:
        self._stirred.set()
        if self._completions is not None and self._begun is not None and not self._begun.body.done():
            self._go_on()

    async def _work(self) -> Ending:
        if self._begun is None:
            if (ending := await self._prepare()) is not None:
                return ending
            assert self._begun is not None
        begun: _Begun = self._begun
        self._heed()
        await self._wait_for(begun)
        await begun.steps.close(grace_seconds=_STOP_GRACE_SECONDS)
        if self.held.is_lost or self.held.remaining_seconds() <= 0:
            raise LeaseLost("the lease was lost while the task ran", reason="LEASE_LOST")
        return self._end.find(begun.body, begun.steps, begun.history) if begun.body.done() else Release()

    async def _prepare(self) -> Ending | None:
        """Begins the code; returns how the run ends where it shall not begin."""
        if self._leased.cancel_requested and self._workflow.limits is None:
            return Confirm()
        try:
            if self._leased.attempts > 1:
                # The store counts the loss of a worker as a crash of the task only where its lease showed life. This
                # shows it before code begins that may have killed the worker before.
                await self._calls.heartbeat_task()
                if self.held.is_cancel_requested and self._workflow.limits is None:
                    return Confirm()
            arguments, recorded, wake = await self._load()
        except ProtocolError as error:
            return Fail(error)
        except LeaseLost:
            raise
        except StoreError as error:
            self._log.warning("the task could not be loaded", code=error.code.name, reason=error.reason)
            return Release(delay_ms=_REST_MS)
        saved = read_saved(recorded)
        for checkpoint in recorded:
            checkpoint.payload.CopyFrom(without_usage(checkpoint.payload))
        history = self._history(recorded, wake)
        usage = Usage(self._workflow.limits, saved, fail=history.fail)
        if (ending := await self._reserve(usage)) is not None:
            return ending
        self._begun = self._open(arguments, history, usage)
        return None

    async def _reserve(self, usage: Usage) -> Ending | None:
        """Holds what the task may use, where its workflow says so; returns how the run ends where it shall not begin."""
        if self._workflow.limits is None:
            return None
        is_first_run = self._leased.attempts == 1
        self._reservation = Reservation(self._calls, self._workflow.limits, usage, is_first_run=is_first_run, log=self._log)
        if self._leased.cancel_requested or self.held.is_cancel_requested:
            return Confirm()  # once what an earlier run may have left is settled
        return await self._reservation.reserve()

    async def _load(self) -> tuple[Any, Sequence[types_pb2.Checkpoint], leases_pb2.Wake | None]:
        brought = await self._calls.load_input() if self._leased.input_left_out else self._leased
        arguments = _arguments(brought.input)
        recorded = await self._calls.load_checkpoints(self._leased.checkpoints) if self._leased.checkpoints else []
        return arguments, recorded, brought.wake if brought.HasField("wake") else None

    def _history(self, recorded: Sequence[types_pb2.Checkpoint], wake: leases_pb2.Wake | None) -> History:
        return History(recorded, wake=wake, workflow=self._workflow.name, version=self._workflow.version)

    def _open(self, arguments: Any, history: History, usage: Usage) -> _Begun:
        steps = Steps(
            calls=self._calls,
            history=history,
            usage=usage,
            held=self.held,
            metrics=self._metrics,
            revision=self._leased.checkpoints,
            suspended=self._stir,
            span=self._span,
        )
        self._context = Context(self._leased, self.held, usage=usage, calls=self._calls, steps=steps, threads=self._threads)
        body = asyncio.create_task(self._call_function(self._context, steps, usage, arguments))
        return _Begun(body, steps, history)

    async def _call_function(self, context: Context, steps: Steps, usage: Usage, arguments: Any) -> Any:
        structlog.contextvars.bind_contextvars(task_id=context.task_id, tenant_id=context.tenant_id)
        try:
            if self._workflow.is_async:
                return await self._workflow.function(context, arguments)
            loop = asyncio.get_running_loop()
            sync_context = SyncContext(
                context, self._leased, self.held, usage=usage, steps=steps, threads=self._threads, loop=loop
            )
            return await self._threads.call(self._workflow.function, sync_context, arguments)
        except (SystemExit, KeyboardInterrupt) as error:
            raise RuntimeError(f"the code raised {type(error).__name__}") from error  # it would end the worker
        finally:
            steps.returned()

    async def _wait_for(self, begun: _Begun) -> None:
        """Until the function has ended; when it must stop, until it has stopped, its threads too."""
        body = begun.body
        await self._wait_until_stirred(body)
        if begun.steps.suspension is not None and not self.held.must_stop:
            # It was told where it asked for something; what waits for anything else is cancelled.
            self._stirred.clear()
            await self._wait_until_stirred(body, timeout=_STOP_GRACE_SECONDS)
            if self._workflow.is_async:
                body.cancel()
            await self._wait_until_stirred(body)
        if body.done() and not self.held.must_stop:
            return
        if self.held.is_lost:
            self._log.info("lease lost, stopping the work")
        body.cancel()
        # Without a lease, another worker may have begun: this one waits as long as it takes, and holds its slot.
        grace = None if self.held.is_lost else _STOP_GRACE_SECONDS
        await asyncio.wait({body}, timeout=grace)
        await self._threads.idle(timeout_seconds=grace)

    async def _wait_until_stirred(self, body: "asyncio.Task[Any]", *, timeout: float | None = None) -> None:  # noqa: ASYNC109
        if body.done():
            return
        stirred = asyncio.create_task(self._stirred.wait())
        await asyncio.wait({body, stirred}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        stirred.cancel()


def _arguments(message: types_pb2.Payload) -> Any:
    return from_json("the input", message) if message.data else {}


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        return  # the loop was closed: nobody is there to stop
