"""Who waits for changes of which tasks. Hints reach them through `wakeups.py`."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final

from store_service.model.tasks import TaskRef

_MOST_EXPECTED: Final = 1_000


class Follower:
    """Someone who waits for changes of tasks, which come and go while it waits. A topic is a task's, see `task_topic`."""

    def __init__(self, followers: "Followers") -> None:
        self._followers = followers
        self._event = asyncio.Event()
        self._topics: set[str] = set()
        self._woken: set[str] = set()
        self._is_unsure = False

    @property
    def topics(self) -> frozenset[str]:
        """What it follows."""
        return frozenset(self._topics)

    def follow(self, topic: str) -> None:
        """Waits for this one too. Call it before the state is read, so that no hint falls in between."""
        self._topics.add(topic)
        self._followers.add(topic, self)

    def has_heard_nothing(self, topic: str, ref: TaskRef) -> bool:
        """Whether the task was created here and nothing was heard of it since. It is not told twice."""
        return self._followers.has_heard_nothing(topic, ref)

    def unfollow(self, topic: str) -> None:
        """Waits for it no longer."""
        self._topics.discard(topic)
        self._woken.discard(topic)
        self._followers.remove(topic, self)

    async def wait(self, seconds: float) -> None:
        """Waits until it is woken, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0)):
                await self._event.wait()

    def take(self) -> tuple[set[str], bool]:
        """The topics that it was woken for, and whether hints may have been lost, of whatever topic. Forgets both."""
        self._event.clear()
        woken, self._woken = self._woken, set()
        is_unsure, self._is_unsure = self._is_unsure, False
        return woken, is_unsure

    def nudge(self) -> None:
        """Wakes it for no topic at all."""
        self._event.set()

    def wake(self, topic: str) -> None:
        """Wakes it for a topic."""
        self._woken.add(topic)
        self._event.set()

    def wake_unsure(self) -> None:
        """Wakes it because hints may have been lost."""
        self._is_unsure = True
        self._event.set()


class Followers:
    """All who follow tasks in this process."""

    def __init__(self) -> None:
        self._all: set[Follower] = set()
        self._topics: dict[str, set[Follower]] = {}
        self._expected: dict[str, TaskRef] = {}
        """Tasks that were created here a moment ago, of which nothing was heard since."""

    @contextlib.contextmanager
    def following(self) -> Iterator[Follower]:
        """A follower, of nothing yet; afterwards, of nothing any more."""
        follower = Follower(self)
        self._all.add(follower)
        try:
            yield follower
        finally:
            self._all.remove(follower)
            for topic in follower.topics:
                follower.unfollow(topic)

    def add(self, topic: str, follower: Follower) -> None:
        """The follower is woken for the topic from now on."""
        self._topics.setdefault(topic, set()).add(follower)

    def remove(self, topic: str, follower: Follower) -> None:
        """It is not any more."""
        if (followers := self._topics.get(topic)) is not None:
            followers.discard(follower)
            if not followers:
                del self._topics[topic]

    @property
    def follow_nothing(self) -> bool:
        """Whether nobody follows any topic, or is about to."""
        return not self._topics and not self._expected

    def expect(self, topic: str, ref: TaskRef) -> None:
        """Remembers until something is heard of a topic that nothing was. Call it before the task is created."""
        while len(self._expected) >= _MOST_EXPECTED:
            del self._expected[next(iter(self._expected))]
        self._expected[topic] = ref

    def has_heard_nothing(self, topic: str, ref: TaskRef) -> bool:
        """See `Follower.has_heard_nothing`."""
        return self._expected.pop(topic, None) == ref

    def wake(self, topic: str) -> None:
        """Wakes all who follow a topic."""
        self._expected.pop(topic, None)
        for follower in self._topics.get(topic, ()):
            follower.wake(topic)

    def wake_everyone(self) -> None:
        """Tells all that hints may have been lost."""
        self._expected.clear()
        for follower in self._all:
            follower.wake_unsure()
