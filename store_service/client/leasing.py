"""How a worker asks for work."""

import asyncio
import random
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from taskstore.v1 import leases_pb2, leases_pb2_grpc

from store_service.client.batches import MOST_ITEMS
from store_service.client.calls import call, call_once
from store_service.client.completions import Completion, Completions
from store_service.client.errors import StoreError
from store_service.client.held import HeldLease, StopReason
from store_service.client.lease_calls import LeaseCalls
from store_service.client.metrics import WorkerMetrics

_MOST_WAIT_SECONDS: Final = 20.0
_ANSWER_SECONDS: Final = 5.0  # beyond the wait, before an answer counts as lost
_FIRST_PAUSE_SECONDS: Final = 0.01
_MOST_PAUSE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Taken:
    """One task that this worker holds."""

    leased: leases_pb2.LeasedTask
    held: HeldLease


class Leasing:
    """Takes tasks, and takes completions along. A request whose answer was lost is sent again under its id, so that what it
    took is not lost."""

    def __init__(
        self,
        stub: "leases_pb2_grpc.LeaseServiceAsyncStub",
        *,
        worker_id: str,
        workflows: Sequence[leases_pb2.WorkflowVersion],
        tenants: Sequence[str],
        lease_seconds: float,
        metrics: WorkerMetrics,
        completions: Completions,
    ) -> None:
        self._stub = stub
        self._completions = completions
        self._lease_seconds = lease_seconds
        self._shortest_seconds = min(lease_seconds, *(one.lease_ms / 1000 or lease_seconds for one in workflows))
        # A lease counts from before its request was sent, so no request waits for longer than a third of a lease.
        self._wait_seconds = min(_MOST_WAIT_SECONDS, self._shortest_seconds / 3)
        self._template = leases_pb2.LeaseTasksRequest(
            worker_id=worker_id,
            workflows=workflows,
            tenant_ids=tenants,
            lease_ms=round(lease_seconds * 1000),
        )
        self._metrics = metrics
        self._pause_seconds = 0.0
        self._open: leases_pb2.LeaseTasksRequest | None = None
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("tenure.worker")
        self.problem: str | None = "no call for work was answered yet"
        """Why no work comes, or None."""

    async def take(self, free: int, *, most_along: int) -> list[Taken]:
        """Up to `free` tasks and no more than one call gives, once the store has answered; none when none became ready in time.

        Completions that wait are taken along, at most `most_along`, and as many tasks more are taken, as far as one call gives
        them. Such a call does not wait for work. While a call waits for work, or is repeated, no completion waits for it.
        """
        free = min(free, MOST_ITEMS)
        along = self._completions.take(most_along)
        if not along and free <= 0:
            return []
        if not along:
            self._completions.close()
            if self._pause_seconds:
                await asyncio.sleep(self._pause_seconds)
        limit = min(MOST_ITEMS, max(1, free + len(along)))
        request = self._new_request(limit, wait_seconds=0.0 if along else self._wait_seconds)
        first_sent_at = time.monotonic()
        is_repeated = False
        while True:
            sent_at = time.monotonic()
            try:
                response = await self._ask(request, along)
                break
            except StoreError as error:
                along = []
                self._completions.close()
                self._failed(error)
                request.is_new = False
                await asyncio.sleep(max(self._grow_pause(), (error.retry_after_ms or 0) / 1000))
                is_repeated = True
                if not error.is_transient:  # it was looked at and refused: nothing was taken
                    if free <= 0:
                        self._open = None
                        return []
                    request = self._new_request(free, wait_seconds=self._wait_seconds)
                    first_sent_at, is_repeated = time.monotonic(), False
                request.limit = max(1, free)  # those that were to come along may still be held
        taken = [Taken(task, self._hold(task, first_sent_at)) for task in response.tasks]
        # It is not known which of several requests took them; and an event loop that was blocked hears late.
        is_old = time.monotonic() - first_sent_at > self._shortest_seconds / 2
        if taken and (is_repeated or is_old):
            taken = await self._confirm(taken)
        self._open = None
        self._answered(taken, seconds=time.monotonic() - sent_at, waited=request.wait_ms > 0)
        self._completions.open()
        return taken

    async def give_back(self) -> None:
        """After `take` was cancelled: gives back at once what it may have taken without being told."""
        if self._open is None:
            return
        request, self._open = self._open, None
        request.wait_ms, request.is_new = 0, False
        sent_at = time.monotonic()
        try:
            response = await call_once(self._stub.LeaseTasks, request, timeout_seconds=2)
            given_back = await asyncio.gather(*(self._release(self._hold(task, sent_at)) for task in response.tasks))
            refusals = [each for each in given_back if each is not None]
        except StoreError as error:
            refusals = [error]
        if refusals:
            first = refusals[0]
            self._log.info("tasks may be left until their lease expires", code=first.code.name, reason=first.reason)

    async def _release(self, held: HeldLease) -> StoreError | None:
        try:
            await LeaseCalls(self._stub, held).release_task(delay_ms=0)
        except StoreError as error:
            return error
        return None

    async def _ask(
        self, request: leases_pb2.LeaseTasksRequest, along: Sequence[Completion]
    ) -> leases_pb2.LeaseTasksResponse | leases_pb2.CompleteAndLeaseTasksResponse:
        if not along:
            return await call_once(self._stub.LeaseTasks, request, timeout_seconds=self._wait_seconds + _ANSWER_SECONDS)
        message = leases_pb2.CompleteAndLeaseTasksRequest(items=[one.request for one in along], lease=request)
        return await self._completions.write("CompleteAndLeaseTasks", self._stub.CompleteAndLeaseTasks, message, along)

    def _new_request(self, limit: int, *, wait_seconds: float) -> leases_pb2.LeaseTasksRequest:
        request = leases_pb2.LeaseTasksRequest(
            request_id=uuid.uuid4().hex, limit=limit, wait_ms=round(wait_seconds * 1000), is_new=True
        )
        request.MergeFrom(self._template)
        self._open = request
        return request

    def _hold(self, task: leases_pb2.LeasedTask, sent_at: float) -> HeldLease:
        seconds = task.lease_ms / 1000 or self._lease_seconds
        return HeldLease(task.lease, lease_seconds=seconds, sent_at=sent_at)

    async def _confirm(self, taken: list[Taken]) -> list[Taken]:
        """Those that are still held, by the word of the store."""
        items = [leases_pb2.HeartbeatTaskRequest(lease=each.held.lease, lease_ms=each.held.lease_ms) for each in taken]
        sent_at = time.monotonic()
        try:
            response = await call(
                self._stub.HeartbeatTasks,
                leases_pb2.HeartbeatTasksRequest(items=items),
                timeout_seconds=self._shortest_seconds / 2,
            )
        except StoreError as error:
            self._failed(error)
            return []
        for each, item in zip(taken, response.items, strict=False):
            if item.HasField("extended"):
                each.held.extend(sent_at=sent_at)
                if item.extended.cancel_requested:
                    each.held.stop(StopReason.CANCEL_REQUESTED)
            else:
                each.held.stop(StopReason.LEASE_LOST)
        return [each for each in taken if each.held.remaining_seconds() > 0]

    def _answered(self, taken: list[Taken], *, seconds: float, waited: bool) -> None:
        if self.problem is not None:
            self._log.info("the store answers")
        self.problem = None
        self._metrics.lease_calls.labels("work" if taken else "idle").inc()
        if taken or seconds > self._wait_seconds / 2:
            self._pause_seconds = 0.0
        elif waited:
            self._grow_pause()  # nothing, and the store did not wait: do not ask in a loop

    def _failed(self, error: StoreError) -> None:
        if self.problem is None or self._pause_seconds == 0:
            self._log.warning("no work can be taken", code=error.code.name, reason=error.reason, detail=error.message)
        self.problem = f"the store does not give work: {error.reason or error.code.name}"
        self._metrics.lease_calls.labels("error").inc()

    def _grow_pause(self) -> float:
        longest = min(_MOST_PAUSE_SECONDS, max(_FIRST_PAUSE_SECONDS, self._pause_seconds * 2))
        self._pause_seconds = longest
        return longest * random.uniform(0.5, 1.0)  # noqa: S311 (spreads workers out; nothing secret)
