"""One run of one task: from its lease to the word that ends it."""

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

import structlog
from taskstore.v1 import leases_pb2, leases_pb2_grpc

from store_service.client.context import Context
from store_service.client.early_answers import fitting_keys
from store_service.client.endings import Complete, Confirm, Ending, Fail, Release, Suspend, plain
from store_service.client.errors import LeaseLost, StoreError
from store_service.client.held import HeldLease
from store_service.client.history import History
from store_service.client.lease_calls import LeaseCalls
from store_service.client.metrics import Outcome, WorkerMetrics
from store_service.client.outcomes import INTERNAL_ERROR, Cancelled, ProtocolError, StepFailed, ToolError
from store_service.client.payloads import from_json, to_json
from store_service.client.reservations import Reservation
from store_service.client.results import OutputSchemas, to_error_result, to_result
from store_service.client.steps import Steps
from store_service.client.sync_context import SyncContext
from store_service.client.threads import Threads
from store_service.client.usage import BudgetAmounts, Usage, read_saved, without_usage
from store_service.client.workflows import Workflow

_STOP_GRACE_SECONDS: Final = 1.0  # what a run has to stop in when its worker shuts down
_REST_MS: Final = 1_000  # how long a task rests that this worker could not begin


class Run:
    """One run of one leased task. `finish` does it all; everything else serves it."""

    def __init__(
        self,
        leased: leases_pb2.LeasedTask,
        held: HeldLease,
        *,
        workflow: Workflow,
        stub: "leases_pb2_grpc.LeaseServiceAsyncStub",
        schemas: OutputSchemas,
        metrics: WorkerMetrics,
    ) -> None:
        self.held = held
        self._leased = leased
        self._workflow = workflow
        self._schemas = schemas
        self._metrics = metrics
        self._calls = LeaseCalls(stub, held)
        self._threads = Threads(lambda: held.must_stop)
        self._context: Context | None = None
        self._reservation: Reservation | None = None
        self._must_stop = asyncio.Event()
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("tenure.worker").bind(
            task_id=leased.lease.task_id,
            tenant_id=leased.lease.tenant_id,
            workflow=workflow.name,
            version=workflow.version,
            token=leased.lease.token,
        )

    async def finish(self) -> Outcome:
        """Runs the task and tells the store how it ended."""
        started = time.monotonic()
        loop = asyncio.get_running_loop()
        self.held.listen(lambda: _call_soon(loop, self._heed))
        self._heed()
        try:
            ending = await self._work()
            if self._reservation is not None:
                ending = await self._reservation.settle(ending)
            self.held.begin_ending()
            outcome = await self._end(ending)
        except LeaseLost:
            outcome = "lease_lost"
        except StoreError as error:
            # The store knows best: it takes the lease back when it expires.
            self._log.error("the end of the task was refused", code=error.code.name, reason=error.reason)
            outcome = "lease_lost"
        seconds = time.monotonic() - started
        self._metrics.tasks.labels(outcome).inc()
        self._metrics.task_seconds.observe(seconds)
        self._log.info("task run ended", outcome=outcome, seconds=round(seconds, 3), attempt=self._leased.attempts)
        return outcome

    def _heed(self) -> None:
        """Tells the code of the run, in the event loop, that it shall stop."""
        if self._context is not None and self.held.stop_wished.is_set():
            self._context.wish_stop()
        if self.held.must_stop:
            self._must_stop.set()

    async def _work(self) -> Ending:
        if self._leased.cancel_requested and self._workflow.limits is None:
            return Confirm()
        try:
            if self._leased.attempts > 1:
                # The store counts the loss of a worker as a crash of the task only where its lease showed life. This
                # shows it before code begins that may have killed the worker before.
                await self._calls.heartbeat_task()
                if self.held.is_cancel_requested and self._workflow.limits is None:
                    return Confirm()
            arguments, history, usage = await self._load()
        except ProtocolError as error:
            return Fail(error)
        except LeaseLost:
            raise
        except StoreError as error:
            self._log.warning("the task could not be loaded", code=error.code.name, reason=error.reason)
            return Release(delay_ms=_REST_MS)
        if (ending := await self._reserve(usage)) is not None:
            return ending
        steps = Steps(
            calls=self._calls,
            history=history,
            usage=usage,
            held=self.held,
            metrics=self._metrics,
            revision=self._leased.checkpoints,
        )
        self._context = Context(self._leased, self.held, usage=usage, calls=self._calls, steps=steps, threads=self._threads)
        self._heed()
        body = asyncio.create_task(self._call_function(self._context, steps, usage, arguments))
        await self._wait_for(body, steps)
        await steps.close(grace_seconds=_STOP_GRACE_SECONDS)
        if self.held.is_lost or self.held.remaining_seconds() <= 0:
            raise LeaseLost("the lease was lost while the task ran", reason="LEASE_LOST")
        if not body.done():
            return Release()
        return self._ending_of(body, steps, history)

    async def _reserve(self, usage: Usage) -> Ending | None:
        """Holds what the task may use, where its workflow says so; returns how the run ends where it shall not begin."""
        if self._workflow.limits is None:
            return None
        is_first_run = self._leased.attempts == 1
        self._reservation = Reservation(self._calls, self._workflow.limits, usage, is_first_run=is_first_run, log=self._log)
        if self._leased.cancel_requested or self.held.is_cancel_requested:
            return Confirm()  # once what an earlier run may have left is settled
        return await self._reservation.reserve()

    async def _load(self) -> tuple[Any, History, Usage]:
        brought = await self._calls.load_input() if self._leased.input_left_out else self._leased
        arguments = from_json("the input", brought.input) if brought.input.data else {}
        recorded = await self._calls.load_checkpoints(self._leased.checkpoints) if self._leased.checkpoints else []
        wake = brought.wake if brought.HasField("wake") else None
        saved = read_saved(recorded)
        for checkpoint in recorded:
            checkpoint.payload.CopyFrom(without_usage(checkpoint.payload))
        history = History(recorded, wake=wake, workflow=self._workflow.name, version=self._workflow.version)
        return arguments, history, Usage(self._workflow.limits or BudgetAmounts(), saved, fail=history.fail)

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

    async def _wait_for(self, body: asyncio.Task[Any], steps: Steps) -> None:
        """Until the function has ended; when it must stop, until it has stopped, its threads too."""
        must_stop = asyncio.create_task(self._must_stop.wait())
        suspended = asyncio.create_task(steps.suspended.wait())
        await asyncio.wait({body, must_stop, suspended}, return_when=asyncio.FIRST_COMPLETED)
        suspended.cancel()
        if steps.suspension is not None:
            # It was told where it asked for something; what waits for anything else is cancelled.
            await asyncio.wait({body, must_stop}, timeout=_STOP_GRACE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if self._workflow.is_async:
                body.cancel()
            await asyncio.wait({body, must_stop}, return_when=asyncio.FIRST_COMPLETED)
        must_stop.cancel()
        if body.done() and not self.held.must_stop:
            return
        if self.held.is_lost:
            self._log.info("lease lost, stopping the work")
        body.cancel()
        # Without a lease, another worker may have begun: this one waits as long as it takes, and holds its slot.
        grace = None if self.held.is_lost else _STOP_GRACE_SECONDS
        await asyncio.wait({body}, timeout=grace)
        await self._threads.idle(timeout_seconds=grace)

    def _ending_of(self, body: asyncio.Task[Any], steps: Steps, history: History) -> Ending:
        error = asyncio.CancelledError() if body.cancelled() else plain(body.exception())
        if history.failure is not None:
            error = history.failure
        elif steps.suspension is not None:  # whatever the code made of it
            if isinstance(error, Exception):
                self._log.warning("the code raised while its task was being suspended", exc_info=error)
            return Confirm() if self.held.is_cancel_requested else Suspend(steps.suspension)
        try:
            match error:
                case None:
                    history.check_finished()
                    schema = self._leased.contract.output_schema
                    result = to_result(body.result(), output_schema=schema, schemas=self._schemas)
                    return Complete(result, "completed")
                case ToolError():
                    return Complete(to_error_result(error.text), "tool_error")
                case ProtocolError():
                    return Fail(error)
                case Cancelled() | asyncio.CancelledError() if self.held.is_draining:
                    return Release()
                case Cancelled() if self.held.is_cancel_requested:
                    return Confirm()
                case _:
                    return self._after_exception(error)
        except ProtocolError as refused:
            return Fail(refused)

    def _after_exception(self, error: BaseException) -> Ending:
        correlation_id = uuid.uuid4().hex
        self._log.error("the workflow raised", correlation_id=correlation_id, attempt=self._leased.attempts, exc_info=error)
        if self.held.is_cancel_requested:
            return Confirm()
        text = f"The tool failed unexpectedly. Its operator finds the reason under {correlation_id}."
        is_final = isinstance(error, StepFailed)
        if not is_final and self._leased.retries + 1 < self._workflow.retry.max_attempts:
            return Fail(ProtocolError(INTERNAL_ERROR, text), retry=self._workflow.retry.to_message())
        return Complete(to_error_result(text), "tool_error")

    async def _end(self, ending: Ending) -> Outcome:
        match ending:
            case Complete():
                return await self._complete(ending)
            case Fail():
                return await self._fail(ending)
            case Suspend():
                return await self._suspend(ending)
            case Release():
                await self._calls.release_task(delay_ms=ending.delay_ms)
                return ending.outcome
            case Confirm():
                await self._calls.confirm_cancel()
                return "cancelled"

    async def _complete(self, ending: Complete) -> Outcome:
        try:
            await self._calls.complete_task(ending.result)
        except LeaseLost:
            raise
        except StoreError as error:
            if error.is_transient:
                raise
            return await self._fail(Fail(ProtocolError(INTERNAL_ERROR, f"the store refused the result: {error.message}")))
        return ending.outcome

    async def _suspend(self, ending: Suspend) -> Outcome:
        step, wait = ending.suspension.step, ending.suspension.wait
        try:
            if isinstance(wait, leases_pb2.NewInputWait) and self._leased.early_answers:
                wait.fitting[:] = fitting_keys(wait.requests, await self._calls.load_early_answers())
            await self._calls.suspend_task(step, wait)
        except LeaseLost:
            raise
        except StoreError as error:
            if error.is_transient:
                raise
            return await self._fail(
                Fail(ProtocolError(INTERNAL_ERROR, f"the store refused the wait of step {step!r}: {error.message}"))
            )
        return "suspended"

    async def _fail(self, ending: Fail) -> Outcome:
        error = ending.error
        data = None
        if error.data is not None:
            try:
                data = to_json("the error's data", error.data)
            except ProtocolError as refused:
                self._log.warning("the data of the error is left out", reason=refused.message)
        self._log.info("the task fails", code=error.code, message=error.message, is_final=ending.retry is None)
        retried = await self._calls.fail_task(code=error.code, message=error.message, data=data, retry=ending.retry)
        return "retried" if retried else "failed"


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        return  # the loop was closed: nobody is there to stop
