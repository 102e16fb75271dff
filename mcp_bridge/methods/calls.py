"""What a method is given, and what it gives back."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Hashable, Iterator
from typing import Any, Final

import msgspec

from mcp_bridge.access.callers import Caller
from mcp_bridge.wire.headers import Headers
from mcp_bridge.wire.jsonrpc import notification
from mcp_bridge.wire.mcp import Meta
from mcp_bridge.wire.trace import TraceContext

LATE_SECONDS: Final = 2.0
"""How long a held call may take and still be answered by JSON with its HTTP status. Source: contract, section 10.8."""
MOST_WAITING: Final = 16
"""Notifications kept for a client that reads slowly; the oldest are dropped, as in the store's own ring."""


Note = tuple[bytes, ...]
"""A notification in pieces, so that large ones may be shared. Together they are one JSON object."""


class Outbox:
    """What a call tells its client before the answer. Whoever sends the answer empties it."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        """Set when there is something to send, or the answer should begin to be a stream."""
        self.is_late = False
        self._waiting: dict[Hashable, Note] = {}
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    def hold(self) -> None:
        """The answer may take long from here on."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LATE_SECONDS, self._be_late)

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Tells the client something. It never waits: past 16 that were not sent yet, the oldest is dropped."""
        self.put(next(self._numbers), (notification(method, params),))
        if len(self._waiting) > MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]

    def put(self, key: Hashable, note: Note) -> bool:
        """Tells the client the latest of something, in the place of what was put under the same key and is not sent yet.
        Returns whether there was such."""
        is_replaced = key in self._waiting
        self._waiting[key] = note
        self.news.set()
        return is_replaced

    def take(self) -> Iterator[Note]:
        """What waits to be sent, oldest first, each as it stands when its turn comes."""
        while self._waiting:
            yield self._waiting.pop(next(iter(self._waiting)))

    def drop_all_but(self, key: Hashable) -> None:
        """Drops what waits to be sent, save what was put under one key."""
        self._waiting = {key: self._waiting[key]} if key in self._waiting else {}

    def close(self) -> None:
        """The answer is there."""
        if self._timer is not None:
            self._timer.cancel()

    def _be_late(self) -> None:
        self.is_late = True
        self.news.set()


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a caller that was let in, with its envelope, `_meta` and mirrored headers checked."""

    caller: Caller
    request_id: int | str
    params: dict[str, Any]
    body: bytes
    """The whole request, for members that are passed on as they were sent."""
    meta: Meta
    headers: Headers | None
    """None where the transport has none."""
    outbox: Outbox | None = None
    """Where notifications are told; None for a client that accepts no stream."""
    reference: str = ""
    """By which its work is found by whoever cancels it from elsewhere; empty where nobody can."""
    noted: dict[str, object] = msgspec.field(default_factory=dict)
    """What the log line of the call shows besides; never a payload."""
    trace: TraceContext | None = None
    """Where its span stands; None without one."""
    reply_headers: dict[str, str] = msgspec.field(default_factory=dict)
    """What the answer shall carry in its HTTP header besides."""


Method = Callable[[Call], Coroutine[object, object, bytes]]
"""Answers a call with its result, a JSON object. Raises Failure for any other answer, StoreError if the store did."""
