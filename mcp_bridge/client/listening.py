"""Snapshots of many tasks as they change: told by the server where it tells, looked for where it does not."""

import asyncio
import heapq
import itertools
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

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


class _Agreement(msgspec.Struct):
    notifications: dict[str, Any]


class _NotServed(Exception):  # noqa: N818 (it says what the server does not do)
    """The server does not tell how tasks go."""


class Listening:
    """The tasks that are listened to, and what was last said of each."""

    def __init__(self, handles: Sequence[TaskHandle], look: Look, policy: Policy) -> None:
        self._live = {handle.task_id: handle for handle in handles}
        self._last: dict[str, TaskSnapshot] = {}
        self._expired: list[HandleExpired] = []
        self._look = look
        self._policy = policy
        self._is_heard = False
        """Whether the server was ever there. One that was is waited for, for as long as the caller listens."""

    async def run(self, transport: Transport) -> AsyncGenerator[TaskSnapshot, None]:
        """Each task's state at first, then whenever it changes, until all have ended.

        A task that is not found ends like any other; it is raised as HandleExpired when all have ended.
        """
        attempt = 0
        while self._live:
            try:
                async with aclosing(self._told(transport)) as told:
                    async for snapshot in told:
                        attempt = 0
                        yield snapshot
            except _NotServed:
                async with aclosing(self._poll()) as polled:
                    async for snapshot in polled:
                        yield snapshot
                break
            except TransportError:
                pass
            attempt += 1
            # The stream has ended. What it did not tell is looked for before the next one: its server was stopped or
            # lost, or a task is not found, of which a stream says nothing.
            for handle in list(self._live.values()):
                if (seen := await self._seen(handle)) is not None:
                    yield seen
            if self._live:
                await asyncio.sleep(self._policy.backoff(attempt))
        if self._expired:
            raise self._expired[0]

    async def _told(self, transport: Transport) -> AsyncGenerator[TaskSnapshot, None]:
        try:
            wanted = {"notifications": {"taskIds": list(self._live)}}
            async with aclosing(transport.stream("subscriptions/listen", wanted)) as messages:
                async for message in messages:
                    self._is_heard = True
                    if message.method == _ACKNOWLEDGED:
                        if "taskIds" not in msgspec.json.decode(message.params, type=_Agreement).notifications:
                            raise _NotServed
                    elif message.method == _TASKS:
                        snapshot = msgspec.json.decode(message.params, type=TaskSnapshot)
                        if snapshot.task_id in self._live and self._note(snapshot):
                            yield snapshot
                            if not self._live:
                                return
        except ProtocolFailure as failure:
            if failure.code in _FOR_GOOD:
                raise _NotServed from None
            if failure.code not in _FOR_NOW:
                raise
            self._is_heard = True
        except msgspec.DecodeError as error:
            raise TransportError(f"a notification cannot be read: {error}") from None

    async def _poll(self) -> AsyncGenerator[TaskSnapshot, None]:
        clock, order = asyncio.get_running_loop().time, itertools.count()
        due = [(clock(), next(order), handle) for handle in self._live.values()]
        while due:
            at, _, handle = heapq.heappop(due)
            await asyncio.sleep(max(0.0, at - clock()))
            if (seen := await self._seen(handle)) is not None:
                yield seen
            if handle.task_id in self._live:
                last = self._last.get(handle.task_id)
                pause = self._policy.poll_pause(last, left_seconds=math.inf) if last else self._policy.most_backoff_seconds
                heapq.heappush(due, (clock() + pause, next(order), handle))

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
            del self._live[handle.task_id]
            return None
        return snapshot if self._note(snapshot) else None

    def _note(self, snapshot: TaskSnapshot) -> bool:
        """Whether it says something new. One that is older than what was said is not."""
        last = self._last.get(snapshot.task_id)
        if last is not None and (snapshot.last_updated_at < last.last_updated_at or _face(snapshot) == _face(last)):
            return False
        self._last[snapshot.task_id] = snapshot
        if snapshot.is_terminal:
            self._live.pop(snapshot.task_id, None)
        return True


def _face(snapshot: TaskSnapshot) -> TaskSnapshot:
    """What of a snapshot is news: not how long its handle lives, or when to look again."""
    return msgspec.structs.replace(snapshot, ttl_ms=None, poll_interval_ms=None)
