"""What happens to tasks, told by the store over one stream, however many look at however many tasks."""

import asyncio
import contextlib
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import grpc
import grpc.aio
import structlog
from taskstore.v1 import tasks_pb2, tasks_pb2_grpc, types_pb2

from store_service.client.calls import is_cancelled
from store_service.client.errors import StoreError, from_rpc_error, from_status

MOST_TASKS: Final = 50_000
"""So many the store lets be watched on one stream."""
TERMINAL: Final = frozenset((types_pb2.TASK_STATE_COMPLETED, types_pb2.TASK_STATE_FAILED, types_pb2.TASK_STATE_CANCELLED))

_STREAM_SECONDS: Final = 600.0  # after so long the stream is opened anew, perhaps to another store; nobody sees it
_SETTLED_SECONDS: Final = 5.0
_LONGEST_BACKOFF_SECONDS: Final = 5.0
_MOST_IN_A_MESSAGE: Final = 500
_MOST_REPORTS: Final = 16
_HOPELESS: Final = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)

_Call = grpc.aio.StreamStreamCall[tasks_pb2.WatchTasksRequest, tasks_pb2.WatchTasksResponse]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A task as it stands, and what its worker reported since the last one, oldest first, the last 16 where there were more."""

    task: types_pb2.Task
    reports: Sequence[types_pb2.Progress]


Told = Callable[[Snapshot | StoreError], None]
"""Is called with the task as it stands, each time that it changed; or with why nothing follows about it. It must not wait.
Reports that came before are told to those who came later, so that others hear of some twice."""


class SnapshotReader:
    """What one hears of one task, for one who reads in its own time: the last snapshot, and each report once."""

    def __init__(self) -> None:
        self._news = asyncio.Event()
        self._latest: types_pb2.Task | StoreError = types_pb2.Task()
        self._reports: deque[types_pb2.Progress] = deque(maxlen=_MOST_REPORTS)
        self._last_report = 0

    def told(self, news: Snapshot | StoreError) -> None:
        """Takes in what is told."""
        if isinstance(news, StoreError):
            self._latest = news
        else:
            self._latest = news.task
            self._reports.extend(report for report in news.reports if report.sequence > self._last_report)
            self._last_report = max(self._last_report, news.task.progress.sequence)
        self._news.set()

    async def next(self) -> Snapshot:
        """Waits for the next snapshot. Raises StoreError when none follows."""
        await self._news.wait()
        self._news.clear()
        if isinstance(self._latest, StoreError):
            raise self._latest
        reports, self._reports = self._reports, deque(maxlen=_MOST_REPORTS)
        return Snapshot(self._latest, tuple(reports))


class Following:
    """One who looks at one task, until the task has ended or `close` is called."""

    __slots__ = ("_closed", "_told", "entry")

    def __init__(self, entry: "_Entry", told: Told, closed: "Callable[[Following], None]") -> None:
        self.entry = entry
        self._told = told
        self._closed = closed

    def tell(self, news: Snapshot | StoreError) -> None:
        """Tells it."""
        try:
            self._told(news)
        except Exception:  # noqa: BLE001 (whatever it did, the others are told)
            structlog.get_logger().exception("task_follower_failed")

    def close(self) -> None:
        """Looks at it no longer."""
        self._closed(self)


@dataclass(eq=False, slots=True)
class _Entry:
    """One task, for all who look at it."""

    key: bytes
    wanted: tasks_pb2.WatchedTask
    number: int
    """The one that the store knows it by, or is to know it by."""
    change: int = 0
    report: int = 0
    """What was told last."""
    told: set[Following] = field(default_factory=set)
    untold: set[Following] = field(default_factory=set)
    """Those who came since the store was asked last."""


class TaskWatch:
    """The stream of WatchTasks of this process. It is open while somebody looks, and opened again whenever it ends."""

    def __init__(self, stub: "tasks_pb2_grpc.TaskServiceAsyncStub") -> None:
        self._stub = stub
        self._entries: dict[bytes, _Entry] = {}
        self._numbered: dict[int, _Entry] = {}
        self._numbers = itertools.count(1)
        self._unsent: dict[int, None] = {}
        """Numbers that the store should know, or should forget."""
        self._known: set[int] = set()
        """Numbers that this stream was told of."""
        self._news = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._is_closed = False

    def follow(self, wanted: tasks_pb2.WatchedTask, told: Told, *, known_change: int = 0) -> Following:
        """Looks at a task: it is told as it stands, read after this call, then whenever it visibly changed, until it has
        ended. `number` and what is known are left empty in what is wanted. Of a task that has not ended, its `change` may be
        known: as it stood then it need not be told.

        Raises StoreError when as many are looked at as may be. While the store is away, nothing is told.
        """
        if self._is_closed:
            raise StoreError("the client is closed", code=grpc.StatusCode.CANCELLED)
        key = wanted.SerializeToString(deterministic=True)
        entry, has_part = self._entries.get(key), False
        if entry is None:
            if len(self._entries) >= MOST_TASKS:
                raise StoreError(
                    "as many tasks are watched as may be", reason="OVERLOADED", code=grpc.StatusCode.RESOURCE_EXHAUSTED
                )
            entry = self._entries[key] = _Entry(key, wanted, number=0, change=known_change)
            has_part = known_change > 0
        following = Following(entry, told, self._leave)
        (entry.told if has_part else entry.untold).add(following)
        self._ask(entry)
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="task-watch")
        return following

    async def close(self) -> None:
        """Hangs up. Whoever still looks is told so."""
        self._is_closed = True
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
        self._tell_all(StoreError("the client is closed", code=grpc.StatusCode.CANCELLED))

    def _ask(self, entry: _Entry) -> None:
        """Asks the store for the task as it stands, under a new number: an answer to the old one may be from before."""
        if entry.number in self._numbered:
            self._forget(entry.number)
        entry.number = next(self._numbers)
        self._numbered[entry.number] = entry
        self._unsent[entry.number] = None
        self._news.set()

    def _forget(self, number: int) -> None:
        del self._numbered[number]
        if number in self._known:
            self._unsent[number] = None
            self._news.set()
        else:
            self._unsent.pop(number, None)

    def _leave(self, following: Following) -> None:
        entry = following.entry
        entry.told.discard(following)
        entry.untold.discard(following)
        if not entry.told and not entry.untold and self._entries.get(entry.key) is entry:
            self._end(entry)
            self._forget(entry.number)

    def _end(self, entry: _Entry) -> None:
        del self._entries[entry.key]

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            self._known.clear()
            self._unsent = dict.fromkeys(self._numbered)
            self._news.set()
            opened_at = loop.time()
            call = self._stub.WatchTasks(timeout=_STREAM_SECONDS)
            writing = asyncio.create_task(self._write(call), name="task-watch-requests")
            try:
                async for answer in call:
                    for item in answer.items:
                        self._receive(item)
            except grpc.RpcError as error:
                refusal = from_rpc_error(error)
                if refusal.code in _HOPELESS or (refusal.reason and not refusal.is_transient):
                    self._tell_all(refusal)
            except asyncio.CancelledError:
                # Or the connection was closed, as there is a newer one: that is no end of the watch.
                if self._is_closed or is_cancelled():
                    raise
            except Exception:  # noqa: BLE001 (logged; nobody would watch any more)
                structlog.get_logger().exception("task_watch_failed")
            finally:
                writing.cancel()
                call.cancel()
            failures = 0 if loop.time() - opened_at > _SETTLED_SECONDS else failures + 1
            await asyncio.sleep(_jitter_seconds(failures))
            if not self._numbered:
                self._running = None
                return

    async def _write(
        self, call: "grpc.aio.StreamStreamCall[tasks_pb2.WatchTasksRequest, tasks_pb2.WatchTasksResponse]"
    ) -> None:
        """Tells the store what is looked at, as it changes. It ends with the stream."""
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            while True:
                await self._news.wait()
                self._news.clear()
                while self._unsent:
                    await call.write(self._next_message())

    def _next_message(self) -> tasks_pb2.WatchTasksRequest:
        message = tasks_pb2.WatchTasksRequest()
        for number in list(itertools.islice(self._unsent, _MOST_IN_A_MESSAGE)):
            del self._unsent[number]
            entry = self._numbered.get(number)
            if entry is None:
                self._known.discard(number)
                message.remove.append(number)
            else:
                self._known.add(number)
                wanted = message.add.add()
                wanted.CopyFrom(entry.wanted)
                wanted.number = number
                if not entry.untold:
                    wanted.known_change, wanted.known_report = entry.change, entry.report
        return message

    def _receive(self, item: tasks_pb2.WatchTasksResponse.Item) -> None:
        entry = self._numbered.get(item.number)
        if entry is None:  # nobody looks any more
            return
        if item.HasField("refused"):
            self._finish(entry, from_status(item.refused))
            return
        snapshot = Snapshot(item.task, item.reports)
        if item.task.state in TERMINAL:
            self._finish(entry, snapshot)
            return
        listeners = [*entry.untold] if item.task.change == entry.change else [*entry.told, *entry.untold]
        entry.change, entry.report = item.task.change, item.task.progress.sequence
        entry.told |= entry.untold
        entry.untold = set()
        for following in listeners:
            following.tell(snapshot)

    def _finish(self, entry: _Entry, last: Snapshot | StoreError) -> None:
        """Tells the last of a task: the store has forgotten its number."""
        self._end(entry)
        del self._numbered[entry.number]
        self._known.discard(entry.number)
        self._unsent.pop(entry.number, None)
        for following in (*entry.told, *entry.untold):
            following.tell(last)

    def _tell_all(self, refusal: StoreError) -> None:
        for entry in list(self._entries.values()):
            self._finish(entry, refusal)


def _jitter_seconds(failures: int) -> float:
    longest = min(_LONGEST_BACKOFF_SECONDS, 0.05 * 2 ** min(failures, 10))
    return random.uniform(0, longest)  # noqa: S311 (spreads clients out; nothing secret)
