"""The store's word that something happened to the leases of this worker, so that it need not wait for a heartbeat."""

import random
import threading
from collections.abc import Callable
from typing import Final

import grpc
import structlog
from taskstore.v1 import leases_pb2, leases_pb2_grpc

from store_service.client.errors import from_rpc_error

_LONGEST_SECONDS: Final = 600.0  # after so long a stream is opened anew
_FIRST_PAUSE_SECONDS: Final = 0.1
_MOST_PAUSE_SECONDS: Final = 5.0


class LeaseWatch:
    """Calls `told`, from a thread of its own, at each message of WatchLeases, and opens the stream again when it ends.

    A store that does not know the method is left in peace: heartbeats tell the same a little later.
    """

    def __init__(self, *, worker_id: str, told: Callable[[], None]) -> None:
        self._worker_id = worker_id
        self._told = told
        self._stopping = threading.Event()
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("tenure.worker")

    def start(self, channel: grpc.Channel) -> None:
        """Begins to watch. The thread ends once `stop` was called and the channel is closed."""
        stub = leases_pb2_grpc.LeaseServiceStub(channel)
        self._thread = threading.Thread(target=self._run, args=(stub,), name="lease-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Watches no longer."""
        self._stopping.set()

    def join(self) -> None:
        """Waits for the thread's end."""
        self._thread.join(timeout=5)

    def _run(self, stub: leases_pb2_grpc.LeaseServiceStub) -> None:
        while not self._stopping.is_set() and self._watch(stub):
            self._stopping.wait(self._pause_seconds * random.uniform(0.5, 1.0))  # noqa: S311 (spreads workers out; nothing secret)
            self._pause_seconds = min(_MOST_PAUSE_SECONDS, self._pause_seconds * 2)

    def _watch(self, stub: leases_pb2_grpc.LeaseServiceStub) -> bool:
        """Until the stream ends; says whether it may be opened again."""
        request = leases_pb2.WatchLeasesRequest(worker_id=self._worker_id)
        try:
            for _ in stub.WatchLeases(request, timeout=_LONGEST_SECONDS):
                self._pause_seconds = _FIRST_PAUSE_SECONDS
                self._told()
        except grpc.RpcError as error:
            code = from_rpc_error(error).code
            if code is grpc.StatusCode.UNIMPLEMENTED:
                return False
            if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                self._pause_seconds = _FIRST_PAUSE_SECONDS
            elif not self._stopping.is_set():
                self._log.debug("the watch of leases ended", code=code.name)
        except ValueError:  # the channel was closed
            return False
        return True
