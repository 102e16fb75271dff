"""What is watched, and what its watchers are told."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from store_service.db.followers import Follower
from store_service.db.pool import Moved
from store_service.db.tasks import TaskRows
from store_service.db.topics import lease_topic, task_topic
from store_service.db.wakeups import Wakeups
from store_service.model.limits import BATCH_ITEMS, WATCHED_TASKS
from store_service.model.refusals import Reason, Refusal, invalid
from store_service.model.states import TERMINAL
from store_service.model.tasks import CREATED_CHANGE, Progress, Task, TaskRead, TaskRef, TaskView

WATCH_POLL_SECONDS: Final = 5.0
"""How long a watch relies on hints before it looks by itself."""
_LOOK_PAUSE_SECONDS: Final = 0.1
"""How long it is at least between two looks at everything, however often hints may have been lost."""
_LOOK_ITEMS: Final = 2_000


@dataclass(frozen=True, slots=True)
class News:
    """What is told of one task, under its number, and the reports that are news."""

    number: int
    outcome: Task | Refusal
    reports: tuple[Progress, ...] = ()


@dataclass(slots=True)
class _Watched:
    """A task, and what its watcher knows of it: the change and the last report, 0 while it knows none."""

    ref: TaskRef
    view: TaskView
    change: int
    report: int
    topics: Sequence[str]

    def go_on(self, task: Task) -> tuple[Progress, ...]:
        """The reports that are news in what it is told now."""
        news = tuple(report for report in task.reports if report.sequence > self.report)
        self.change = task.change
        self.report = news[-1].sequence if news else self.report
        return news


class Watches:
    """Every watch of this process."""

    def __init__(self, rows: TaskRows, wakeups: Wakeups, registry: CollectorRegistry) -> None:
        self._rows = rows
        self._wakeups = wakeups
        self._open: set[Watch] = set()
        self._is_draining = False
        self._watched = Gauge("tenure_store_watched_tasks", "Tasks that are watched right now.", registry=registry)
        self._watched.set_function(lambda: sum(len(watch) for watch in self._open))

    @contextmanager
    def open(self) -> Iterator["Watch"]:
        """A watch of nothing yet."""
        with self._wakeups.following() as follower:
            watch = Watch(self._rows, follower)
            self._open.add(watch)
            if self._is_draining:
                watch.end(Refusal(Reason.DRAINING))
            try:
                yield watch
            finally:
                self._open.remove(watch)

    def drain(self) -> None:
        """Ends every watch with DRAINING, now and from now on."""
        self._is_draining = True
        for watch in self._open:
            watch.end(Refusal(Reason.DRAINING))


class Watch:
    """The tasks that one caller watches. One reads `news`, another adds and removes meanwhile."""

    def __init__(self, rows: TaskRows, follower: Follower) -> None:
        self._rows = rows
        self._follower = follower
        self._watched: dict[int, _Watched] = {}
        self._numbers: dict[str, set[int]] = {}
        self._due: dict[int, None] = {}
        """Those to be read, first come first."""
        self._refused: deque[News] = deque()
        self._end: Refusal | None = None
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._watched)

    def add(self, number: int, wanted: TaskRead, *, known_change: int, skip_leases: bool) -> None:
        """Watches a task from now on, under a number that is not in use. Raises Refusal for one too many.

        It is read at once, but for one that was created here, of which its watcher knows that, and nobody heard anything
        since."""
        if number in self._watched:
            self.refuse(number, invalid("number", "must not be in use on this stream"))
            return
        if len(self._watched) >= WATCHED_TASKS:
            raise Refusal(Reason.OVERLOADED, f"more than {WATCHED_TASKS} tasks are watched on one stream")
        ref, topic = wanted.ref, task_topic(wanted.ref.task_id)
        topics = (topic,) if skip_leases else (topic, lease_topic(ref.task_id))
        self._watched[number] = _Watched(ref, wanted.view, known_change, wanted.reports_after or 0, topics)
        for one in topics:
            self._numbers.setdefault(one, set()).add(number)
            self._follower.follow(one)
        if skip_leases and known_change == CREATED_CHANGE and self._follower.has_heard_nothing(topic, ref):
            return
        self._due[number] = None
        self._follower.nudge()

    def refuse(self, number: int, refusal: Refusal) -> None:
        """Tells that a task cannot be watched."""
        self._refused.append(News(number, refusal))
        self._follower.nudge()

    def remove(self, number: int) -> None:
        """Watches it no longer. One that is not watched may have ended a moment ago."""
        if (watched := self._watched.pop(number, None)) is None:
            return
        self._due.pop(number, None)
        for topic in watched.topics:
            self._numbers[topic].remove(number)
            if not self._numbers[topic]:
                del self._numbers[topic]
                self._follower.unfollow(topic)

    def close(self) -> None:
        """Nothing more is added: `news` ends when nothing is left."""
        self._is_closed = True
        self._follower.nudge()

    def end(self, refusal: Refusal) -> None:
        """Ends `news` with a refusal."""
        self._end = refusal
        self._follower.nudge()

    async def news(self) -> AsyncIterator[Sequence[News]]:
        """Each task as it stands, then whenever it visibly changed, until it has ended. What a slow reader missed is
        skipped, never the last. A store that cannot be read for a while means silence."""
        loop = asyncio.get_running_loop()
        looked_at = loop.time()
        is_unsure = False
        while True:
            if self._end is not None:
                raise self._end
            if self._refused:
                yield [self._refused.popleft() for _ in range(min(len(self._refused), BATCH_ITEMS))]
                continue
            if not self._watched and self._is_closed:
                return
            woken, lost = self._follower.take()
            is_unsure = is_unsure or lost
            self._due.update(dict.fromkeys(number for topic in woken for number in self._numbers.get(topic, ())))
            look_at = looked_at + (_LOOK_PAUSE_SECONDS if is_unsure else WATCH_POLL_SECONDS)
            try:
                if loop.time() >= look_at:
                    is_unsure, looked_at = False, loop.time()
                    await self._look()
                if self._due:
                    if news := await self._read():
                        yield news
                    continue
            except Moved as moved:
                self._refuse_moved(moved)
                continue
            except Refusal as refusal:
                if refusal.reason not in (Reason.STORAGE_UNAVAILABLE, Reason.OVERLOADED):
                    raise
                is_unsure, looked_at, look_at = True, loop.time(), loop.time() + WATCH_POLL_SECONDS
            await self._follower.wait(look_at - loop.time())

    def _refuse_moved(self, moved: Moved) -> None:
        """The tasks of these tenants are watched no longer."""
        for number in [number for number, watched in self._watched.items() if watched.ref.tenant_id in moved.tenants]:
            self.remove(number)
            self.refuse(number, Refusal(moved.reason))

    async def _look(self) -> None:
        """Finds out what changed without a hint."""
        numbers = list(self._watched)
        for start in range(0, len(numbers), _LOOK_ITEMS):
            known = [number for number in numbers[start : start + _LOOK_ITEMS] if number in self._watched]
            items = [(self._watched[number].ref, self._watched[number].change) for number in known]
            changed = [known[position] for position in await self._rows.changed_tasks(items)]
            self._due.update(dict.fromkeys(number for number in changed if number in self._watched))  # not removed meanwhile

    async def _read(self) -> list[News]:
        """Reads what is due, as far as it fits into one answer, and returns what is news."""
        numbers = list(islice(self._due, BATCH_ITEMS))
        asked = [self._watched[number] for number in numbers]
        for number in numbers:  # a hint that comes while they are read makes them due again
            del self._due[number]
        try:
            found = await self._rows.get_tasks([TaskRead(one.ref, one.view, one.report) for one in asked])
        except BaseException:
            self._due = {number: None for number in numbers if number in self._watched} | self._due
            raise
        news: list[News] = []
        left: dict[int, None] = {}
        for position, (number, watched) in enumerate(zip(numbers, asked, strict=True)):
            task, fits = found.get(position, (None, True))
            if self._watched.get(number) is not watched:  # removed meanwhile
                continue
            if task is None:
                news.append(News(number, Refusal(Reason.TASK_NOT_FOUND)))
                self.remove(number)
            elif not fits:
                left[number] = None
            else:
                if task.change != watched.change:
                    news.append(News(number, task, watched.go_on(task)))
                if task.state in TERMINAL:
                    self.remove(number)
        self._due = left | self._due
        return news
