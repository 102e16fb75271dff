"""Where nothing was left when somebody looked. It holds until a hint says that there may be something again."""

import math
from collections.abc import Callable, Sequence
from typing import Final

_MOST_TOPICS: Final = 10_000
_MOST_LOOKS: Final = 100
"""Of one topic. Past these, what was remembered is forgotten: then claims look."""

_Question = tuple[tuple[str, ...], tuple[str, ...]]
"""The topics and the tenants of a claim."""


class Look:
    """What is known of the answer to one question; nothing, until somebody who looks finds that nothing is left."""

    __slots__ = ("_seconds_now", "is_over", "left_nothing_at")

    def __init__(self, seconds_now: Callable[[], float]) -> None:
        self._seconds_now = seconds_now
        self.left_nothing_at = -math.inf
        self.is_over = False
        """There was a hint since, and nobody asks it any more."""

    def leaves_nothing(self) -> None:
        """Nothing was left that could be taken, nor of what others hold for a moment, by a look that began with this one."""
        self.left_nothing_at = self._seconds_now()


class EmptyLanes:
    """What this process knows of lanes in which there is nothing.

    A hint ends whatever is known of its lane, and what looks that are under way will find: they may have looked before what
    it tells of was there. So what is known is as true as that no hint was lost.
    """

    def __init__(self, seconds_now: Callable[[], float]) -> None:
        self._seconds_now = seconds_now
        self._looks: dict[str, dict[_Question, Look]] = {}

    def look(self, topics: Sequence[str], tenant_ids: Sequence[str]) -> Look:
        """For a look that begins now."""
        question = (tuple(topics), tuple(tenant_ids))
        look = self._find(question)
        if look is None:
            look = Look(self._seconds_now)
            if len(self._looks) > _MOST_TOPICS:
                self.forget_all()
            for topic in topics:
                if len(self._looks.setdefault(topic, {})) > _MOST_LOOKS:
                    self.forget(topic)
                self._looks.setdefault(topic, {})[question] = look
        return look

    def seconds_since(self, topics: Sequence[str], tenant_ids: Sequence[str]) -> float:
        """How long it has been known that there is nothing in any of them; infinite where it is not."""
        look = self._find((tuple(topics), tuple(tenant_ids)))
        return math.inf if look is None else self._seconds_now() - look.left_nothing_at

    def forget(self, topic: str) -> None:
        """There may be something in a lane again."""
        for look in self._looks.pop(topic, {}).values():
            look.is_over = True

    def forget_all(self) -> None:
        """There may be something anywhere."""
        for topic in list(self._looks):
            self.forget(topic)

    def _find(self, question: _Question) -> Look | None:
        look = self._looks.get(question[0][0], {}).get(question)
        return None if look is None or look.is_over else look
