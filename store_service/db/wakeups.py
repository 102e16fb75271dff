"""Hints that something changed, within this process at once and between processes by NOTIFY.

A hint is never the truth: whoever is woken reads the state, and whoever waits also looks by itself now and then, so that a
lost hint costs time and nothing else. Hints travel outside of the writes they tell of: a connection of their own sends at
most one NOTIFY per 5 ms, since each one takes a lock that all commits share. They carry digests, never names; where there are
many of one kind, only that it may be any of that kind.

A store that is alone sends none. Each says every few seconds that it is there, and answers the first word of another at once:
a word that is lost costs hints until the next one.
"""

import asyncio
import contextlib
import functools
import math
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Final, ParamSpec, TypeVar

import asyncpg
import structlog
from prometheus_client import CollectorRegistry, Gauge

from store_service.db.empty_lanes import EmptyLanes
from store_service.db.fault_points import reaching_statement
from store_service.db.followers import Follower, Followers
from store_service.db.leaving import to_its_end
from store_service.db.queries import Queries
from store_service.db.topics import ANY, LANE, LEASE, TASK, lane_topic, lease_topic, task_topic, text_of, worker_topic
from store_service.fault_points import FaultPoints
from store_service.model.tasks import TaskRef

P = ParamSpec("P")
R = TypeVar("R")

CHANNEL: Final = "tenure_wakeup"
_HERE: Final = "+"
_PAUSE_SECONDS: Final = 0.005
_RECONNECT_SECONDS: Final = (0.1, 5.0)
_PING_SECONDS: Final = 3.0  # also how often a store says that it is there
_ALONE_SECONDS: Final = 10.0  # without a word of another
_ANSWER_SECONDS: Final = 5.0


def tells(operation: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
    """An operation that writes and then tells of it. It runs to its end although its caller leaves, as its statement does:
    otherwise what was written would be heard of by nobody."""

    @functools.wraps(operation)
    async def told(*args: P.args, **kwargs: P.kwargs) -> R:
        return await to_its_end(operation(*args, **kwargs))

    return told


class Waiter:
    """Someone who waits for any of some topics. A choosy one may have no use for a hint that was meant for one waiter."""

    def __init__(self, *, choosy: bool = False) -> None:
        self.choosy = choosy
        self.is_idle = False
        """Whether it waits just now, and does not look."""
        self._event = asyncio.Event()

    @property
    def is_woken(self) -> bool:
        """Whether there was a hint that it has not yet looked at."""
        return self._event.is_set()

    async def wait(self, seconds: float) -> bool:
        """Waits for a hint, at most so long. Tells whether there was one; forgets it."""
        self.is_idle = True
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(seconds, 0)):
                    await self._event.wait()
        finally:
            self.is_idle = False
        woken = self._event.is_set()
        self._event.clear()
        return woken

    def wake(self) -> bool:
        """Wakes it. Tells whether that was news to it."""
        news = not self._event.is_set()
        self._event.set()
        return news


class Wakeups:
    """Who waits for what, in this process, and the one connection that hints travel by."""

    def __init__(
        self,
        dsn: str,
        *,
        registry: CollectorRegistry,
        seconds_now: Callable[[], float] = time.monotonic,
        points: FaultPoints | None = None,
    ) -> None:
        self._dsn = dsn
        self._run_one = reaching_statement(points, _run_one)
        self._seconds_now = seconds_now
        queries = Queries("chores.sql")
        self._notify = queries["notify"]
        self._waiters: dict[str, list[Waiter]] = {}
        self._followers = Followers()
        self.empty_lanes = EmptyLanes(seconds_now)
        self._unsent: set[str] = set()
        self._unsent_event = asyncio.Event()
        self._connected = Gauge("tenure_store_listen_connected", "Whether hints of other stores arrive.", registry=registry)
        self._pid: int | None = None
        self._heard_at = self._seconds_now()  # of others: until it is known better, there are some
        self._connected_at = math.inf
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def waiting(self, topics: Iterable[str], *, choosy: bool = False) -> Iterator[Waiter]:
        """A waiter for these topics. Take it before the state is read, so that no hint falls in between. A hint that it did
        not look at before it went is passed on."""
        waiter = Waiter(choosy=choosy)
        topics = set(topics)
        for topic in topics:
            self._waiters.setdefault(topic, []).append(waiter)
        try:
            yield waiter
        finally:
            for topic in topics:
                self._waiters[topic].remove(waiter)
                if not self._waiters[topic]:
                    del self._waiters[topic]
                if waiter.is_woken:
                    self.pass_on(topic)

    def following(self) -> contextlib.AbstractContextManager[Follower]:
        """Someone who waits for changes of tasks, of none yet."""
        return self._followers.following()

    def wake_lanes(self, lanes: Iterable[str]) -> None:
        """Tells one waiting worker of each lane that there is work: one of this process, or where none idles here, one of each
        other. One that leaves some, or cannot look, passes it on."""
        for lane in lanes:
            topic = lane_topic(lane)
            self.empty_lanes.forget(topic)
            woken = self._wake_next(topic)
            if woken is None or not woken.is_idle:
                self._send(topic)

    def pass_on(self, topic: str) -> None:
        """Wakes the next waiter of a lane, here and in each other process."""
        self._wake_next(topic)
        self._send(topic)

    def wake_tasks(self, task_ids: Iterable[str]) -> None:
        """Tells all who watch these tasks that they changed."""
        self._wake_followers(map(task_topic, task_ids))

    def wake_leased(self, task_ids: Iterable[str]) -> None:
        """Tells those who want to know it that workers took these tasks."""
        self._wake_followers(map(lease_topic, task_ids))

    def expect_task(self, ref: TaskRef) -> None:
        """The task is about to be created, and somebody is about to follow it."""
        self._followers.expect(task_topic(ref.task_id), ref)

    def wake_workers(self, worker_ids: Iterable[str | None]) -> None:
        """Tells these workers, where there are any, that they should look after their leases."""
        for worker_id in set(worker_ids) - {None}:
            topic = worker_topic(str(worker_id))
            self._wake_all(topic)
            self._send(topic)

    def wake_everyone(self) -> None:
        """Wakes whoever waits in this process, for whatever."""
        self.empty_lanes.forget_all()
        for topic in list(self._waiters):
            self._wake_all(topic)
        self._followers.wake_everyone()

    def start(self) -> None:
        """Starts to send and to receive."""
        self._task = asyncio.create_task(self._run(), name="wakeups")

    async def stop(self) -> None:
        """Sends nothing more and hangs up."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def _wake_followers(self, topics: Iterable[str]) -> None:
        if self._followers.follow_nothing and self._is_alone():
            return
        for topic in topics:
            self._followers.wake(topic)
            self._send(topic)

    def _wake_next(self, topic: str) -> Waiter | None:
        """Wakes the next waiter in this process, and the choosy ones before it."""
        waiters = self._waiters.get(topic, ())
        return next((waiter for waiter in waiters if waiter.wake() and not waiter.choosy), None)

    def _wake_all(self, topic: str) -> None:
        for waiter in self._waiters.get(topic, ()):
            waiter.wake()

    def _is_alone(self) -> bool:
        return self._seconds_now() - self._heard_at > _ALONE_SECONDS

    def _send(self, topic: str) -> None:
        if self._is_alone():
            return
        self._unsent.add(topic)
        self._unsent_event.set()

    def _receive(self, _connection: asyncpg.Connection, pid: int, _channel: str, payload: object) -> None:
        if pid == self._pid:
            return
        if self._is_alone():
            self._unsent_event.set()  # says that this one is here
        self._heard_at = self._seconds_now()
        for topic in str(payload).split():
            self._hear(topic)

    def _hear(self, topic: str) -> None:
        if topic == ANY:
            self.wake_everyone()
        elif topic == TASK + ANY:
            self._followers.wake_everyone()
        elif topic[0] in TASK + LEASE:
            self._followers.wake(topic)
        elif topic.endswith(ANY):
            if topic.startswith(LANE):
                self.empty_lanes.forget_all()
            for known in [known for known in self._waiters if known[0] == topic[0]]:
                self._wake_some(known)
        else:
            self._wake_some(topic)

    def _wake_some(self, topic: str) -> None:
        if topic.startswith(LANE):
            self.empty_lanes.forget(topic)
            self._wake_next(topic)
        else:
            self._wake_all(topic)

    async def _run(self) -> None:
        first, longest = _RECONNECT_SECONDS
        pause = first
        while True:
            self._connected_at = math.inf
            try:
                await self._listen()
            except Exception as error:  # noqa: BLE001 (whatever it is, hints are waited for again)
                if self._connected_at < math.inf:
                    structlog.get_logger().warning("listen_lost", error=type(error).__name__)
            self._connected.set(0)
            # One that lets itself be connected to and no more, as a standby does, is not asked without a pause either.
            pause = first if self._seconds_now() - self._connected_at > longest else pause
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    async def _listen(self) -> None:
        connection = await asyncpg.connect(
            self._dsn,
            timeout=10,
            command_timeout=_ANSWER_SECONDS,
            server_settings={"application_name": "tenure-wakeups"},
        )
        try:
            await self._talk(connection)
        finally:
            connection.terminate()

    async def _talk(self, connection: asyncpg.Connection) -> None:
        lost = asyncio.Event()

        def hang_up(_: asyncpg.Connection) -> None:
            lost.set()
            self._unsent_event.set()

        self._pid = connection.get_server_pid()
        connection.add_termination_listener(hang_up)
        await connection.add_listener(CHANNEL, self._receive)
        self._connected.set(1)
        self._connected_at = self._seconds_now()
        self.wake_everyone()  # hints may have passed while nobody listened
        self._heard_at = self._seconds_now()
        text = ANY  # nor could anybody hear of what happened here
        while True:
            await self._run_one(connection, self._notify, (CHANNEL, text))  # a peer that went without a word is found out, too
            await asyncio.sleep(_PAUSE_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PING_SECONDS):
                    await self._unsent_event.wait()
            if lost.is_set():
                return
            self._unsent_event.clear()
            topics, self._unsent = self._unsent, set()
            text = text_of(topics) or _HERE


async def _run_one(connection: asyncpg.Connection, query: str, arguments: Sequence[Any]) -> None:
    await connection.fetchval(query, *arguments)
