"""Heartbeats, from a thread and over a connection that user code cannot hold up."""

import threading
import time
from collections.abc import Iterable
from typing import Final

import grpc
import structlog
from taskstore.v1 import leases_pb2, leases_pb2_grpc

from store_service.client.batches import MOST_ITEMS
from store_service.client.channel import open_blocking_channel
from store_service.client.errors import StoreError, from_rpc_error, from_status
from store_service.client.held import HeldLease, StopReason
from store_service.client.lease_watch import LeaseWatch
from store_service.client.metrics import WorkerMetrics
from store_service.client.tls import Tls

_MOST_INTERVAL_SECONDS: Final = 2.0  # also how long a worker may not know that a task's end is wished for
_MOST_CALL_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 0.25
_IDLE_SECONDS: Final = 3600.0
_LEAST_INTERVAL_SECONDS: Final = 0.1  # however often the store asks for a heartbeat
_ASKED_PER_SECOND: Final = 5_000  # so many leases at the most: one that the store means has all of them extended


class Heartbeats:
    """Extends every lease it holds, each a third of its length (at most 2 s) after it was last extended.

    A beat that is not answered is tried again until the lease is no longer trusted; then the lease is lost. When the
    store says that something happened to a lease of this worker, all are extended at once, which tells what it was.
    """

    def __init__(self, *, address: str, tls: Tls | None, worker_id: str, metrics: WorkerMetrics) -> None:
        self._address = address
        self._tls = tls
        self._metrics = metrics
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("tenure.worker")
        self._changed = threading.Condition()
        self._beaten_at: dict[HeldLease, float] = {}
        self._asked_at = 0.0
        self._wakes_at = 0.0
        self._stopping = False
        self._is_failing = False
        self._channel: grpc.Channel | None = None
        self._watch = LeaseWatch(worker_id=worker_id, told=self.beat_soon)
        self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)

    def start(self) -> None:
        """Begins to beat."""
        self._channel = open_blocking_channel(self._address, self._tls)
        self._thread.start()
        self._watch.start(self._channel)

    def stop(self) -> None:
        """Ends; what is still held is no longer extended."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._watch.stop()
        if self._channel is not None:
            self._channel.close()
            self._thread.join(timeout=5)
            self._watch.join()

    def add(self, held: HeldLease) -> None:
        """Extends this lease from now on."""
        with self._changed:
            self._beaten_at[held] = held.sent_at
            if self._turn(held) < self._wakes_at:  # woken for each, the thread would look at all others each time
                self._changed.notify()

    def remove(self, held: HeldLease) -> None:
        """Extends this lease no longer."""
        with self._changed:
            self._beaten_at.pop(held, None)

    def beat_soon(self) -> None:
        """Extends all leases at once, also those that this worker was given and has not heard of yet."""
        with self._changed:
            self._asked_at = time.monotonic()
            self._changed.notify()

    def _run(self) -> None:
        assert self._channel is not None
        stub = leases_pb2_grpc.LeaseServiceStub(self._channel)
        not_before = 0.0
        while (due := self._wait_for_due(not_before)) is not None:
            batches = (due[first : first + MOST_ITEMS] for first in range(0, len(due), MOST_ITEMS))
            answered = [self._try_beat(stub, batch, due) for batch in batches]
            not_before = 0.0 if all(answered) else time.monotonic() + _RETRY_SECONDS

    def _wait_for_due(self, not_before: float) -> list[HeldLease] | None:
        """The leases whose turn it is, once there are any, those first that end first; None at the end. What is overdue
        meanwhile is lost."""
        with self._changed:
            while not self._stopping:
                trusted = [held for held in self._beaten_at if held.remaining_seconds() > 0]
                now = time.monotonic()
                turns = {held: self._turn(held) for held in trusted}
                next_at = max(not_before, min(turns.values(), default=now + _IDLE_SECONDS))
                if turns and next_at <= now:
                    # Those whose turn is near go with them, so that turns fall together and one call does for all.
                    due = [held for held, turn in turns.items() if turn <= now + _interval(held) / 2]
                    return sorted(due, key=lambda held: held.trusted_until)
                next_end = min((held.trusted_until for held in trusted), default=next_at)
                self._wakes_at = min(next_at, next_end)
                self._changed.wait(timeout=max(0.0, self._wakes_at - now))
            return None

    def _turn(self, held: HeldLease) -> float:
        beaten_at = self._beaten_at[held]
        if beaten_at > self._asked_at:
            return beaten_at + _interval(held)
        return beaten_at + min(_interval(held), max(_LEAST_INTERVAL_SECONDS, len(self._beaten_at) / _ASKED_PER_SECOND))

    def _try_beat(self, stub: leases_pb2_grpc.LeaseServiceStub, batch: list[HeldLease], due: list[HeldLease]) -> bool:
        try:
            return self._beat(stub, batch, due)
        except Exception:  # noqa: BLE001 (without this thread every lease would be lost, again and again)
            self._log.exception("heartbeats failed unexpectedly")
            return False

    def _beat(self, stub: leases_pb2_grpc.LeaseServiceStub, batch: list[HeldLease], due: list[HeldLease]) -> bool:
        """Extends a batch of those that are due. It waits no longer than any of them lasts: one that ends is told so then."""
        sent_at = time.monotonic()
        first_end = min(held.trusted_until for held in due)
        shortest = min(held.lease_seconds for held in due)
        longest = min(shortest / 2, _MOST_CALL_SECONDS, max(0.02, first_end - sent_at))
        items = [leases_pb2.HeartbeatTaskRequest(lease=held.lease, lease_ms=held.lease_ms) for held in batch]
        try:
            response = stub.HeartbeatTasks(leases_pb2.HeartbeatTasksRequest(items=items), timeout=longest)
        except grpc.RpcError as error:
            self._failed(from_rpc_error(error))
            return False
        except ValueError:  # the channel was closed
            return False
        self._is_failing = False
        with self._changed:
            self._beaten_at.update((held, sent_at) for held in batch if held in self._beaten_at)
        self._take(batch, response.items, sent_at)
        return True

    def _take(self, batch: list[HeldLease], items: Iterable[leases_pb2.HeartbeatTasksResponse.Item], sent_at: float) -> None:
        for held, item in zip(batch, items, strict=False):
            if item.HasField("extended"):
                self._metrics.heartbeat_gap_seconds.observe(sent_at - held.sent_at)
                held.extend(sent_at=sent_at)
                if item.extended.cancel_requested:
                    held.stop(StopReason.CANCEL_REQUESTED)
            elif not (held.is_ending or from_status(item.refused).is_transient):
                held.stop(StopReason.LEASE_LOST)

    def _failed(self, error: StoreError) -> None:
        if self._stopping:
            return
        self._metrics.heartbeat_failures.inc()
        if not self._is_failing:  # one line for each outage
            self._log.warning("heartbeat failed, trying again", code=error.code.name, reason=error.reason)
        self._is_failing = True


def _interval(held: HeldLease) -> float:
    return min(held.lease_seconds / 3, _MOST_INTERVAL_SECONDS)
