"""Calls that are held: the ordinary request and answer, over work that is durable all the same.

Source: contract, sections 4, 10.1, 10.3 and 10.7.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

import structlog
from taskstore.v1 import tasks_pb2, types_pb2

from mcp_bridge.access.callers import Caller
from mcp_bridge.access.routes import Route
from mcp_bridge.cells import Cells
from mcp_bridge.methods.calls import Call
from mcp_bridge.methods.progress import ProgressRelay
from mcp_bridge.metrics import Metrics
from mcp_bridge.translate import is_terminal, open_questions
from mcp_bridge.wire.failures import unavailable
from mcp_bridge.wire.state import RequestState
from store_service.client import StoreError

RENEW_SECONDS: Final = 10.0
"""How often the store is told that somebody still waits. Two of these may be lost before it acts."""
_FAREWELL_SECONDS: Final = 2.0


class HeldCalls:
    """Waits for work on behalf of connected clients, and lets go of it when they leave."""

    def __init__(self, store: Cells, metrics: Metrics, *, renew_seconds: float = RENEW_SECONDS) -> None:
        self._store = store
        self._metrics = metrics
        self._renew_seconds = renew_seconds
        self._waits: set[asyncio.Timeout] = set()
        self._is_draining = False

    def drain(self) -> None:
        """Ends every wait now, and those to come at once. The work goes on, and is cancelled when nobody comes back for it
        in time."""
        self._is_draining = True
        for wait in self._waits:
            wait.reschedule(0)

    def abandon_after_ms(self, route: Route, *, has_key: bool) -> int:
        """How long the store keeps a task going that nobody is attached to; 0 means to its end.

        A call with an idempotency key may be come back to for as long as its route's ttl, and as long as it may be answered.
        """
        if route.continues_on_disconnect:
            return 0
        if has_key:
            return max(route.ttl_ms, route.answer_within_ms, route.call_timeout_ms + route.disconnect_grace_ms)
        return _grace_ms(route) + int(2 * self._renew_seconds * 1000)

    async def hold(
        self,
        call: Call,
        route: Route,
        task: types_pb2.Task,
        *,
        state: RequestState,
        relay: ProgressRelay,
        is_resumed: bool,
        known_change: int = 0,
    ) -> types_pb2.Task | None:
        """Waits until the task has ended or asks its caller, within the route's call_timeout. Returns it as it stands.

        When neither comes in time, or the bridge stops, the task is returned as it is if the call may be detached from it:
        then, as when it asks, the store keeps it for the route's answer_within. If it may not, its work is ended and None
        returned; raises Failure if it is the bridge that stops. When the client leaves, this is cancelled, and the task is
        let go.
        """
        caller = call.caller
        # With a key the store waits long enough by itself, and the task may be one whose handle was given out.
        keeps = not route.continues_on_disconnect and not state.has_key
        abandon_after_ms = self.abandon_after_ms(route, has_key=state.has_key) if keeps else 0
        if call.outbox is not None:
            call.outbox.hold()
        self._metrics.held_calls.inc()
        try:
            if is_resumed and keeps:
                await self.attach(caller, task, abandon_after_ms=abandon_after_ms)
            async with self._renewing(caller, task, abandon_after_ms):
                news = await self.news_of(
                    caller, route, task, within_ms=route.call_timeout_ms, relay=relay, known_change=known_change
                )
            if news is not None and is_terminal(news):
                return news
            if news is None and state.rounds >= route.max_detaches:
                if self._is_draining:
                    raise unavailable()
                return await self.end(caller, route, task)
            if keeps:
                await self.attach(caller, task, abandon_after_ms=route.answer_within_ms)
            return news or await self._read(caller, task)
        except asyncio.CancelledError:
            if keeps:
                await self._let_go(caller, task, _grace_ms(route))
            raise
        finally:
            self._metrics.held_calls.dec()

    async def news_of(
        self,
        caller: Caller,
        route: Route,
        task: types_pb2.Task,
        *,
        within_ms: int,
        relay: ProgressRelay | None = None,
        known_change: int = 0,
    ) -> types_pb2.Task | None:
        """The task once it has ended, with its outcome, or once it asks the caller; None when neither comes in time, or the
        bridge is stopping. What it is at the change that is known is neither."""
        wanted = tasks_pb2.WatchedTask(
            tenant_id=caller.tenant,
            task_id=task.task_id,
            owner=caller.owner,
            view=types_pb2.TASK_VIEW_OUTCOME,
            skip_leases=True,
        )
        try:
            async with asyncio.timeout(within_ms / 1000) as wait:
                self._waits.add(wait)
                if self._is_draining:
                    wait.reschedule(0)
                async with contextlib.aclosing(self._store.watch_task(wanted, known_change=known_change)) as snapshots:
                    async for news in snapshots:
                        if relay is not None:
                            relay.relay(news.reports)
                        if is_terminal(news.task) or route.grants.asked(caller, open_questions(news.task), is_own=True):
                            return news.task
            raise AssertionError("a watch ends with its task")
        except TimeoutError:
            return None
        except StoreError as error:  # the store no longer knows what it created a moment ago
            raise unavailable() from error
        finally:
            self._waits.discard(wait)

    @contextlib.asynccontextmanager
    async def _renewing(self, caller: Caller, task: types_pb2.Task, abandon_after_ms: int) -> AsyncIterator[None]:
        """Tells the store from time to time that somebody still waits; never if `abandon_after_ms` is 0."""
        if not abandon_after_ms:
            yield
            return
        stop = asyncio.Event()
        renewal = asyncio.create_task(self._renew(caller, task, abandon_after_ms, stop))
        try:
            yield
        finally:  # a renewal under way is waited for, so that it does not undo what the store is told next
            stop.set()
            await renewal

    async def _renew(self, caller: Caller, task: types_pb2.Task, abandon_after_ms: int, stop: asyncio.Event) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._renew_seconds):
                    await stop.wait()
                return
            try:
                await self.attach(caller, task, abandon_after_ms=abandon_after_ms)
            except StoreError as error:
                structlog.get_logger().warning("renewal_failed", task_id=task.task_id, reason=error.reason)

    async def attach(self, caller: Caller, task: types_pb2.Task, *, abandon_after_ms: int) -> None:
        """Tells the store how long to wait for somebody; 0 says that the task's handle was given out."""
        await self._store.attach_task(
            tasks_pb2.AttachTaskRequest(
                tenant_id=caller.tenant, task_id=task.task_id, owner=caller.owner, abandon_after_ms=abandon_after_ms
            )
        )

    async def _let_go(self, caller: Caller, task: types_pb2.Task, grace_ms: int) -> None:
        """The client has left: its grace begins now. If the store does not hear of it, it acts two renewals later."""
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(_FAREWELL_SECONDS):
                await self.attach(caller, task, abandon_after_ms=grace_ms)

    async def end(self, caller: Caller, route: Route, task: types_pb2.Task) -> types_pb2.Task | None:
        """Ends the work, unless its route lets it go on. Returns work that has ended meanwhile."""
        if not route.continues_on_disconnect:
            with contextlib.suppress(StoreError):  # nobody renews any more, so the store ends it by itself
                if await wish_end(self._store, caller, task) == tasks_pb2.CANCEL_OUTCOME_ALREADY_TERMINAL:
                    return await self._read(caller, task)
        return None

    async def _read(self, caller: Caller, task: types_pb2.Task) -> types_pb2.Task:
        return await self._store.get_task(
            tasks_pb2.GetTaskRequest(
                tenant_id=caller.tenant, task_id=task.task_id, owner=caller.owner, view=types_pb2.TASK_VIEW_OUTCOME
            )
        )


async def wish_end(store: Cells, caller: Caller, task: types_pb2.Task) -> tasks_pb2.CancelOutcome.ValueType:
    """Tells the store that the caller wants its task to end."""
    request = tasks_pb2.CancelTaskRequest(
        tenant_id=caller.tenant, task_id=task.task_id, owner=caller.owner, mode=tasks_pb2.CANCEL_MODE_REQUEST
    )
    return (await store.cancel_task(request)).outcome


def _grace_ms(route: Route) -> int:
    return max(1, route.disconnect_grace_ms)
