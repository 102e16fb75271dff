"""A lease as its worker sees it: how long it may still be trusted, and whether the work shall stop."""

import enum
import threading
import time
from collections.abc import Callable
from typing import Final

from taskstore.v1 import types_pb2

_MOST_MARGIN_SECONDS: Final = 3.0


class StopReason(enum.Enum):
    """Why a run shall stop."""

    CANCEL_REQUESTED = "its end was wished for"
    DRAINING = "the worker is shutting down"
    LEASE_LOST = "its lease was lost"


class HeldLease:
    """One lease, shared by the event loop, the heartbeat thread and the threads of user code.

    It is trusted for `lease_seconds` of this machine's monotonic clock, counted from before the request that granted
    or extended it was sent, less a margin of a tenth (at most 3 s) in which the work can stop. Once lost, it stays
    lost.
    """

    def __init__(self, lease: types_pb2.Lease, *, lease_seconds: float, sent_at: float) -> None:
        self.lease = lease
        self.lease_seconds = lease_seconds
        self._lock = threading.Lock()
        self._trusted_seconds = lease_seconds - min(lease_seconds / 10, _MOST_MARGIN_SECONDS)
        self._sent_at = sent_at
        self._reasons: frozenset[StopReason] = frozenset()
        self._stop_wished: threading.Event | None = None  # made for whoever waits: it costs as much as a whole lease
        self._is_ending = False
        self._listener: Callable[[], None] | None = None

    @property
    def lease_ms(self) -> int:
        """How long each heartbeat extends it."""
        return round(self.lease_seconds * 1000)

    @property
    def sent_at(self) -> float:
        """When the last request was sent that granted or extended it."""
        return self._sent_at

    @property
    def trusted_until(self) -> float:
        """When it is no longer trusted, unless it is extended."""
        return self._sent_at + self._trusted_seconds

    @property
    def is_lost(self) -> bool:
        """Whether nothing more may be written under it."""
        return StopReason.LEASE_LOST in self._reasons

    @property
    def is_ending(self) -> bool:
        """Whether the task's end is being written, after which the store knows the lease no more."""
        return self._is_ending

    @property
    def is_cancel_requested(self) -> bool:
        """Whether the task's caller wishes its end."""
        return StopReason.CANCEL_REQUESTED in self._reasons

    @property
    def is_draining(self) -> bool:
        """Whether the worker gives the task back."""
        return StopReason.DRAINING in self._reasons

    @property
    def is_stop_wished(self) -> bool:
        """Whether there is any reason to stop."""
        return bool(self._reasons)

    @property
    def must_stop(self) -> bool:
        """Whether the run is to be interrupted, not only asked."""
        return self.is_lost or self.is_draining

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Calls `listener`, from whatever thread, at each reason to stop; None ends that."""
        self._listener = listener

    def wait_stop_wished(self, seconds: float | None) -> bool:
        """Blocks until there is a reason to stop, at most so long; says whether there is."""
        with self._lock:
            if self._reasons:
                return True
            if self._stop_wished is None:
                self._stop_wished = threading.Event()
        return self._stop_wished.wait(seconds)

    def remaining_seconds(self) -> float:
        """How long writes are allowed; 0 when it is lost, which an overdue lease is from then on."""
        remaining = self.trusted_until - time.monotonic()
        if remaining <= 0:
            self.stop(StopReason.LEASE_LOST)
        return 0.0 if self.is_lost else remaining

    def extend(self, *, sent_at: float) -> None:
        """The store extended it by a request sent at `sent_at`."""
        with self._lock:
            self._sent_at = max(self._sent_at, sent_at)

    def begin_ending(self) -> None:
        """From now on only the answer to the task's end tells whether the lease was still good."""
        self._is_ending = True

    def stop(self, reason: StopReason) -> None:
        """Wishes the run's end. Idempotent."""
        with self._lock:
            if reason in self._reasons:
                return
            self._reasons |= {reason}
            if self._stop_wished is not None:
                self._stop_wished.set()
            listener = self._listener
        if listener is not None:
            listener()
