"""Snapshots of many tasks as they change: told by the server where it tells, looked for where it does not."""

import asyncio
import heapq
import itertools
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

import msgspec

from mcp_bridge.client.errors import HandleExpired, ProtocolFailure, TransportError
from mcp_bridge.client.messages import TaskHandle, TaskSnapshot
from mcp_bridge.client.policy import Policy
from mcp_bridge.client.transport import Transport
from mcp_bridge.wire.failures import INVALID_PARAMS, METHOD_NOT_FOUND, TOO_MANY, UNAVAILABLE

_ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
_TASKS = "notifications/tasks"
_FOR_GOOD = (METHOD_NOT_FOUND, INVALID_PARAMS)
"""The server does not tell of tasks, or not of so many."""
_FOR_NOW = (TOO_MANY, UNAVAILABLE)
"""It has no room for another stream, or stops, or its store is away."""

Look = Callable[[TaskHandle], Awaitable[TaskSnapshot]]


class _Agreed(msgspec.Struct, rename="camel"):
    task_ids: list[str] = []


class _Agreement(msgspec.Struct):
    notifications: _Agreed


class _NotServed(Exception):  # noqa: N818 (it says what the server does not do)
    """The server does not tell how tasks go, or not of all of them."""


class Listening:
    """The tasks that are listened to, and what was last said of those that live."""

    def __init__(self, handles: Sequence[TaskHandle], look: Look, policy: Policy) -> None:
        self._live = {handle.task_id: handle for handle in handles}
        self._last: dict[str, TaskSnapshot] = {}
        self._expired: list[HandleExpired] = []
        self._look = look
        self._policy = policy
        self._due: dict[str, float] = {}
        """From when on a task may be looked at again, by the loop's clock."""
        self._is_heard = False
        """Whether the server was ever there. One that was is waited for, for as long as the caller listens."""
        self._is_open = False
        """Whether the last stream was one."""
        self._is_behind = False
        """Whether something may have happened that neither a look nor a stream has told."""

    async def run(self, transport: Transport) -> AsyncGenerator[TaskSnapshot, None]:
        """Each task's state at first, then whenever it changes, until all have ended.

        A task that is not found ends like any other; it is raised as HandleExpired when all have ended.
        """
        clock, attempt = asyncio.get_running_loop().time, 0
        while self._live:
            pause, self._is_open = 0.0, False
            try:
                async with aclosing(self._told(transport)) as told:
                    async for snapshot in told:
                        attempt = 0
                        yield snapshot
            except _NotServed:
                async with aclosing(self._poll(math.inf)) as polled:
                    async for snapshot in polled:
                        yield snapshot
                break
            except (TransportError, ProtocolFailure) as trouble:
                if isinstance(trouble, ProtocolFailure) and trouble.code not in _FOR_NOW:
                    raise
                self._is_heard |= isinstance(trouble, ProtocolFailure)
                pause = trouble.retry_after_seconds or 0.0
            attempt += 1
            if self._is_open:
                # What the stream did not tell is looked for at once: its server was stopped or lost, or a task is not found,
                # of which a stream says nothing.
                self._due.clear()
            async with aclosing(self._poll(clock() + max(pause, self._policy.backoff(attempt)))) as polled:
                async for snapshot in polled:
                    yield snapshot
            self._is_behind = not self._is_open
        if self._expired:
            raise self._expired[0]

    async def _told(self, transport: Transport) -> AsyncGenerator[TaskSnapshot, None]:
        wanted = {"notifications": {"taskIds": list(self._live)}}
        try:
            async with aclosing(transport.stream("subscriptions/listen", wanted)) as messages:
                async for message in messages:
                    if message.method == _ACKNOWLEDGED:
                        agreed = msgspec.json.decode(message.params, type=_Agreement).notifications.task_ids
                        if not self._live.keys() <= set(agreed):
                            raise _NotServed
                        self._is_heard = self._is_open = True
                        for handle in list(self._live.values()) if self._is_behind else ():
                            if (seen := await self._seen(handle)) is not None:
                                yield seen
                    elif message.method == _TASKS:
                        snapshot = msgspec.json.decode(message.params, type=TaskSnapshot)
                        if snapshot.task_id in self._live and self._note(snapshot):
                            yield snapshot
                    if not self._live:
                        return
        except ProtocolFailure as failure:
            if failure.code in _FOR_GOOD:
                raise _NotServed from None
            raise
        except msgspec.DecodeError as error:
            raise TransportError(f"a notification cannot be read: {error}") from None

    async def _poll(self, until: float) -> AsyncGenerator[TaskSnapshot, None]:
        """Looks at each task as often as the server asks, until then by the loop's clock, or until all have ended."""
        clock, order = asyncio.get_running_loop().time, itertools.count()
        due = [(self._due.get(task_id, 0.0), next(order), handle) for task_id, handle in self._live.items()]
        heapq.heapify(due)
        while due and due[0][0] < until:
            at, _, handle = heapq.heappop(due)
            await asyncio.sleep(max(0.0, at - clock()))
            if (seen := await self._seen(handle)) is not None:
                yield seen
            if handle.task_id in self._live:
                last = self._last.get(handle.task_id)
                pause = self._policy.poll_pause(last, left_seconds=math.inf) if last else self._policy.most_backoff_seconds
                at = self._due[handle.task_id] = clock() + pause
                heapq.heappush(due, (at, next(order), handle))
        if self._live:
            await asyncio.sleep(until - clock())

    async def _seen(self, handle: TaskHandle) -> TaskSnapshot | None:
        """The task's state now, if it is news."""
        try:
            snapshot = await self._look(handle)
            self._is_heard = True
        except (TransportError, ProtocolFailure) as trouble:
            is_passing = isinstance(trouble, TransportError) or trouble.code in _FOR_NOW
            if not self._is_heard or not is_passing:
                raise
            return None
        except HandleExpired as expired:
            self._expired.append(expired)
            self._forget(handle.task_id)
            return None
        return snapshot if self._note(snapshot) else None

    def _note(self, snapshot: TaskSnapshot) -> bool:
        """Whether it says something new. One that is older than what was said is not."""
        last = self._last.get(snapshot.task_id)
        if last is not None and (snapshot.last_updated_at < last.last_updated_at or _face(snapshot) == _face(last)):
            return False
        if snapshot.is_terminal:
            self._forget(snapshot.task_id)
        else:
            self._last[snapshot.task_id] = snapshot
        return True

    def _forget(self, task_id: str) -> None:
        """It has ended: of its result, which may be large, nothing is kept."""
        for known in (self._live, self._last, self._due):
            known.pop(task_id, None)


def _face(snapshot: TaskSnapshot) -> TaskSnapshot:
    """What of a snapshot is news: not how long its handle lives, or when to look again."""
    return msgspec.structs.replace(snapshot, ttl_ms=None, poll_interval_ms=None)
