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
from mcp_bridge.metrics import Metrics
from mcp_bridge.translate import failure_of, is_terminal, tool_result
from mcp_bridge.wire.failures import unavailable
from mcp_bridge.wire.results import tool_error
from store_service.client import StoreError, TaskStore

RENEW_SECONDS: Final = 10.0
"""How often the store is told that somebody still waits. Two of these may be lost before it acts."""
_FAREWELL_SECONDS: Final = 2.0


class HeldCalls:
    """Waits for work on behalf of connected clients, and lets go of it when they leave."""

    def __init__(self, store: TaskStore, metrics: Metrics, *, renew_seconds: float = RENEW_SECONDS) -> None:
        self._store = store
        self._metrics = metrics
        self._renew_seconds = renew_seconds
        self._waits: set[asyncio.Timeout] = set()
        self._is_draining = False

    def drain(self) -> None:
        """Ends every wait now, and those to come at once: each call is answered that it should try again. Its work goes
        on, and is cancelled when nobody comes back for it in time."""
        self._is_draining = True
        for wait in self._waits:
            wait.reschedule(0)

    def abandon_after_ms(self, route: Route, *, has_key: bool) -> int:
        """How long the store keeps a task going that nobody is attached to; 0 means to its end.

        A call with an idempotency key may be come back to for as long as its route's ttl.
        """
        if route.continues_on_disconnect:
            return 0
        if has_key:
            return max(route.ttl_ms, route.call_timeout_ms + route.disconnect_grace_ms)
        return _grace_ms(route) + int(2 * self._renew_seconds * 1000)

    async def hold(self, caller: Caller, route: Route, task: types_pb2.Task, *, has_key: bool) -> bytes:
        """Waits for the task's end within the route's call_timeout, and returns the `CallToolResult`.

        Raises Failure for work that failed. When the client leaves, this is cancelled, and the task is let go.
        """
        # With a key the store waits long enough by itself, and the task may be one whose handle was given out.
        keeps = not route.continues_on_disconnect and not has_key
        self._metrics.held_calls.inc()
        try:
            async with self._renewing(caller, task, self.abandon_after_ms(route, has_key=has_key) if keeps else 0):
                ended = await self.end_of(caller, task, within_ms=route.call_timeout_ms)
            if ended is None and self._is_draining:
                raise unavailable()
        except asyncio.CancelledError:
            if keeps:
                await self._let_go(caller, task, _grace_ms(route))
            raise
        finally:
            self._metrics.held_calls.dec()
        return _result(ended) if ended is not None else await self._time_out(caller, route, task)

    async def end_of(self, caller: Caller, task: types_pb2.Task, *, within_ms: int) -> types_pb2.Task | None:
        """The task once it has ended, with its outcome; None when it has not in time, or the bridge is stopping."""
        request = tasks_pb2.WatchTasksRequest(
            tenant_id=caller.tenant, task_ids=[task.task_id], owner=caller.owner, view=types_pb2.TASK_VIEW_OUTCOME
        )
        try:
            async with asyncio.timeout(within_ms / 1000) as wait:
                self._waits.add(wait)
                if self._is_draining:
                    wait.reschedule(0)
                async with contextlib.aclosing(self._store.watch_tasks(request)) as answers:
                    async for answer in answers:
                        if answer.WhichOneof("outcome") == "task" and is_terminal(answer.task):
                            return answer.task
                raise unavailable()  # the store no longer knows what it created a moment ago
        except TimeoutError:
            return None
        finally:
            self._waits.discard(wait)

    @contextlib.asynccontextmanager
    async def _renewing(self, caller: Caller, task: types_pb2.Task, abandon_after_ms: int) -> AsyncIterator[None]:
        """Tells the store from time to time that somebody still waits; never if `abandon_after_ms` is 0."""
        if not abandon_after_ms:
            yield
            return
        renewal = asyncio.create_task(self._renew(caller, task, abandon_after_ms))
        try:
            yield
        finally:
            renewal.cancel()

    async def _renew(self, caller: Caller, task: types_pb2.Task, abandon_after_ms: int) -> None:
        while True:
            await asyncio.sleep(self._renew_seconds)
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

    async def _time_out(self, caller: Caller, route: Route, task: types_pb2.Task) -> bytes:
        """Ends the work, unless its route lets it go on, and says so; work that ended meanwhile is answered with."""
        if not route.continues_on_disconnect:
            with contextlib.suppress(StoreError):  # nobody renews any more, so the store ends it by itself
                request = tasks_pb2.CancelTaskRequest(
                    tenant_id=caller.tenant, task_id=task.task_id, owner=caller.owner, mode=tasks_pb2.CANCEL_MODE_REQUEST
                )
                response = await self._store.cancel_task(request)
                if response.outcome == tasks_pb2.CANCEL_OUTCOME_ALREADY_TERMINAL:
                    read = tasks_pb2.GetTaskRequest(
                        tenant_id=caller.tenant, task_id=task.task_id, owner=caller.owner, view=types_pb2.TASK_VIEW_OUTCOME
                    )
                    return _result(await self._store.get_task(read))
        return tool_error(f"timed out after {route.call_timeout_ms / 1000:g} s")


def _grace_ms(route: Route) -> int:
    return max(1, route.disconnect_grace_ms)


def _result(task: types_pb2.Task) -> bytes:
    """The `CallToolResult` of a task that has ended. Raises Failure for one that failed."""
    match task.state:
        case types_pb2.TASK_STATE_COMPLETED:
            return tool_result(task)
        case types_pb2.TASK_STATE_FAILED:
            raise failure_of(task)
        case _:
            return tool_error("cancelled")
