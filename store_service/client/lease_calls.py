"""The calls that a worker makes under one lease: none is begun once the lease is lost."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

import grpc.aio
from google.protobuf.message import Message
from taskstore.v1 import leases_pb2, leases_pb2_grpc, types_pb2

from store_service.client.calls import call
from store_service.client.errors import LeaseLost, StoreError
from store_service.client.held import HeldLease, StopReason
from store_service.client.payloads import JSON, safe_text
from store_service.client.usage import BudgetAmounts
from store_service.client.waits import Wait, to_request

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response")

_PAGE_SIZE: Final = 256
_PROGRESS_SECONDS: Final = 5.0
_MOST_TEXT_BYTES: Final = 1024


class LeaseCalls:
    """LeaseService for one lease.

    Each call is repeated after transient failures for as long as the lease is trusted, at most one lease long, as
    every one of them may be repeated. Each raises LeaseLost when the lease is lost, and StoreError otherwise.
    """

    def __init__(self, stub: "leases_pb2_grpc.LeaseServiceAsyncStub", held: HeldLease) -> None:
        self._stub = stub
        self._held = held

    async def load_input(self) -> leases_pb2.LoadInputResponse:
        """The input and the wake that were left out for their size."""
        return await self._call(self._stub.LoadInput, leases_pb2.LoadInputRequest(lease=self._held.lease))

    async def load_checkpoints(self, count: int) -> list[types_pb2.Checkpoint]:
        """All `count` checkpoints, oldest first."""
        found: list[types_pb2.Checkpoint] = []
        while len(found) < count:
            page = await self._load_page(from_revision=len(found), page_size=_PAGE_SIZE)
            if not page:
                raise StoreError(f"the store has {len(found)} of the task's {count} checkpoints")
            found.extend(page)
        return found

    async def load_early_answers(self) -> list[types_pb2.InputAnswer]:
        """The answers that were given at the task's creation and have not met their questions yet."""
        request = leases_pb2.LoadEarlyAnswersRequest(lease=self._held.lease)
        return list((await self._call(self._stub.LoadEarlyAnswers, request)).answers)

    async def heartbeat_task(self) -> None:
        """Extends the lease, and takes notice when the task's end is wished for."""
        sent_at = time.monotonic()
        request = leases_pb2.HeartbeatTaskRequest(lease=self._held.lease, lease_ms=self._held.lease_ms)
        response = await self._call(self._stub.HeartbeatTask, request)
        self._held.extend(sent_at=sent_at)
        if response.cancel_requested:
            self._held.stop(StopReason.CANCEL_REQUESTED)

    async def append_checkpoint(self, *, revision: int, step: str, payload: types_pb2.Payload) -> None:
        """Saves what came of a step. A conflict with an earlier try of the same write is no error."""
        request = leases_pb2.AppendCheckpointRequest(lease=self._held.lease, revision=revision, step=step, payload=payload)
        try:
            await self._call(self._stub.AppendCheckpoint, request)
        except StoreError as error:
            if error.reason != "REVISION_CONFLICT":
                raise
            page = await self._load_page(from_revision=revision, page_size=1)
            mine = types_pb2.Checkpoint(revision=revision, step=step, payload=payload, token=self._held.lease.token)
            if not page or not _is_same(page[0], mine):
                raise self._lost("another worker saved this revision") from error

    async def report_progress(self, value: float, total: float | None, message: str) -> None:
        """Reports how far the work is. Tried for 5 s only."""
        text = safe_text(message, most_bytes=_MOST_TEXT_BYTES)
        request = leases_pb2.ReportProgressRequest(lease=self._held.lease, value=value, total=total, message=text)
        await self._call(self._stub.ReportProgress, request, timeout_seconds=_PROGRESS_SECONDS)

    async def complete_task(self, result: bytes) -> None:
        """Ends the task with its result."""
        payload = types_pb2.Payload(media_type=JSON, data=result)
        await self._call(self._stub.CompleteTask, leases_pb2.CompleteTaskRequest(lease=self._held.lease, result=payload))

    async def fail_task(self, *, code: int, message: str, data: bytes | None, retry: leases_pb2.RetryPolicy | None) -> bool:
        """Ends the task with an error, or lets it rest; says whether it will be tried again."""
        text = safe_text(message, most_bytes=_MOST_TEXT_BYTES)
        error = types_pb2.TaskError(code=code, message=text if text.strip() else "the work failed")
        if data is not None:
            error.data.CopyFrom(types_pb2.Payload(media_type=JSON, data=data))
        request = leases_pb2.FailTaskRequest(lease=self._held.lease, error=error, retry=retry)
        response = await self._call(self._stub.FailTask, request)
        return response.HasField("retry_at")

    async def release_task(self, *, delay_ms: int) -> None:
        """Gives the task back."""
        await self._call(self._stub.ReleaseTask, leases_pb2.ReleaseTaskRequest(lease=self._held.lease, delay_ms=delay_ms))

    async def suspend_task(self, step: str, wait: Wait) -> None:
        """Gives the task back until what it waits for has come."""
        await self._call(self._stub.SuspendTask, to_request(self._held.lease, step, wait))

    async def reserve_budget(self, limits: BudgetAmounts, used: BudgetAmounts) -> bool:
        """Holds of the tenant's budget what lies between; says whether the task held a reservation already."""
        request = leases_pb2.ReserveBudgetRequest(
            lease=self._held.lease,
            limits=types_pb2.BudgetAmounts(**limits.given()),
            usage=types_pb2.BudgetAmounts(**used.given()),
        )
        response = await self._call(self._stub.ReserveBudget, request)
        return response.adopted

    async def settle_budget(self, used: BudgetAmounts) -> None:
        """Has what the task used charged, and the rest of its reservation given back."""
        usage = types_pb2.BudgetAmounts(**used.given())
        await self._call(self._stub.SettleBudget, leases_pb2.SettleBudgetRequest(lease=self._held.lease, usage=usage))

    async def confirm_cancel(self) -> None:
        """Ends the task as its caller wished."""
        await self._call(self._stub.ConfirmCancel, leases_pb2.ConfirmCancelRequest(lease=self._held.lease))

    async def _load_page(self, *, from_revision: int, page_size: int) -> list[types_pb2.Checkpoint]:
        request = leases_pb2.LoadCheckpointsRequest(lease=self._held.lease, from_revision=from_revision, page_size=page_size)
        response = await self._call(self._stub.LoadCheckpoints, request)
        return list(response.checkpoints)

    async def _call(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[Request, Response],
        request: Request,
        *,
        timeout_seconds: float | None = None,
    ) -> Response:
        held = self._held
        if held.remaining_seconds() <= 0:
            raise self._lost("the lease was lost before this call")
        allowed: Callable[[], float] = held.remaining_seconds
        try:
            return await call(method, request, timeout_seconds=timeout_seconds or held.lease_seconds, allowed_seconds=allowed)
        except LeaseLost:
            held.stop(StopReason.LEASE_LOST)
            raise
        except StoreError as error:
            if error.is_transient and held.remaining_seconds() <= 0:
                raise self._lost("the lease ran out while the store could not be reached") from error
            raise

    def _lost(self, message: str) -> LeaseLost:
        self._held.stop(StopReason.LEASE_LOST)
        return LeaseLost(message, reason="LEASE_LOST")


def _is_same(found: types_pb2.Checkpoint, mine: types_pb2.Checkpoint) -> bool:
    return (found.revision, found.step, found.payload.data, found.token) == (
        mine.revision,
        mine.step,
        mine.payload.data,
        mine.token,
    )
