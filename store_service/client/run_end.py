"""The end of a run: what it is, and how the store is told."""

import asyncio
import uuid
from functools import cached_property
from typing import Any

import structlog
from taskstore.v1 import leases_pb2

from store_service.client.early_answers import fitting_keys
from store_service.client.endings import Complete, Confirm, Ending, Fail, Release, Suspend, plain
from store_service.client.errors import LeaseLost, StoreError
from store_service.client.held import HeldLease
from store_service.client.history import History
from store_service.client.lease_calls import LeaseCalls
from store_service.client.metrics import Outcome
from store_service.client.outcomes import INTERNAL_ERROR, Cancelled, ProtocolError, StepFailed, ToolError
from store_service.client.payloads import to_json
from store_service.client.results import OutputSchemas, to_error_result, to_result
from store_service.client.steps import Steps
from store_service.client.workflows import Workflow


class RunEnd:
    """Finds out how a run ends, and writes it."""

    def __init__(
        self,
        leased: leases_pb2.LeasedTask,
        held: HeldLease,
        *,
        workflow: Workflow,
        calls: LeaseCalls,
        schemas: OutputSchemas,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self._leased = leased
        self._held = held
        self._workflow = workflow
        self._calls = calls
        self._schemas = schemas
        self._worker_log = log

    @cached_property
    def log(self) -> structlog.typing.FilteringBoundLogger:
        """Its lines name the run. Most runs have no line: it is made for the first."""
        lease, workflow = self._leased.lease, self._workflow
        return self._worker_log.bind(
            task_id=lease.task_id,
            tenant_id=lease.tenant_id,
            workflow=workflow.name,
            version=workflow.version,
            token=lease.token,
        )

    def find(self, body: "asyncio.Task[Any]", steps: Steps, history: History) -> Ending:
        """How the run ends whose code ended so."""
        error = asyncio.CancelledError() if body.cancelled() else plain(body.exception())
        if history.failure is not None:
            error = history.failure
        elif steps.suspension is not None:  # whatever the code made of it
            if isinstance(error, Exception):
                self.log.warning("the code raised while its task was being suspended", exc_info=error)
            return Confirm() if self._held.is_cancel_requested else Suspend(steps.suspension)
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
                case Cancelled() | asyncio.CancelledError() if self._held.is_draining:
                    return Release()
                case Cancelled() if self._held.is_cancel_requested:
                    return Confirm()
                case _:
                    return self._after_exception(error)
        except ProtocolError as refused:
            return Fail(refused)

    def _after_exception(self, error: BaseException) -> Ending:
        correlation_id = uuid.uuid4().hex
        self.log.error("the workflow raised", correlation_id=correlation_id, attempt=self._leased.attempts, exc_info=error)
        if self._held.is_cancel_requested:
            return Confirm()
        text = f"The tool failed unexpectedly. Its operator finds the reason under {correlation_id}."
        is_final = isinstance(error, StepFailed)
        if not is_final and self._leased.retries + 1 < self._workflow.retry.max_attempts:
            return Fail(ProtocolError(INTERNAL_ERROR, text), retry=self._workflow.retry.to_message())
        return Complete(to_error_result(text), "tool_error")

    async def tell(self, ending: Ending) -> Outcome:
        """Writes it. Raises LeaseLost, StoreError."""
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
                self.log.warning("the data of the error is left out", reason=refused.message)
        self.log.info("the task fails", code=error.code, is_final=ending.retry is None)
        retried = await self._calls.fail_task(code=error.code, message=error.message, data=data, retry=ending.retry)
        return "retried" if retried else "failed"
