"""`subscriptions/listen`: what happens to tasks, and to the list of tools, told as it happens.

Source: contract, sections 6 and 10.20; MCP, basic/patterns/subscriptions.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from taskstore.v1 import tasks_pb2, types_pb2

from mcp_bridge.access.callers import Caller
from mcp_bridge.access.grants import Action
from mcp_bridge.access.limits import Limiter
from mcp_bridge.access.routes import CurrentRoutes, Routes
from mcp_bridge.cells import Cells, FollowedTask
from mcp_bridge.methods.calls import Call, Outbox
from mcp_bridge.methods.tasks import readable_id
from mcp_bridge.metrics import Metrics
from mcp_bridge.translate import detailed_task_members, is_expired, is_terminal, open_questions, poll_interval_ms
from mcp_bridge.wire.failures import refused, too_many, unavailable
from mcp_bridge.wire.headers import EVENT_STREAM
from mcp_bridge.wire.questions import Question, missing_capabilities
from mcp_bridge.wire.results import Results
from mcp_bridge.wire.subscriptions import Filter, Subscription, read_filter
from store_service.client import StoreError
from store_service.client.task_watch import Snapshot

_RETRY_SECONDS: Final = 10.0
_ACKNOWLEDGED: Final = object()
_TOOLS: Final = object()
"""The keys of what is told beside tasks, whose keys are their ids."""


class Subscriptions:
    """Every stream of this process. All of them together look at each cell through one watch."""

    def __init__(
        self,
        store: Cells,
        routes: CurrentRoutes,
        results: Results,
        metrics: Metrics,
        *,
        limiter: Limiter,
        per_principal: int,
        most: int,
    ) -> None:
        self._store = store
        self._routes = routes
        self._results = results
        self._metrics = metrics
        self._limiter = limiter
        self._per_principal = per_principal
        self._most = most
        self._streams: set[_Stream] = set()
        self._principals: Counter[tuple[str, str, str]] = Counter()
        self._shown = _Shown()
        self._is_draining = False

    async def listen(self, call: Call) -> bytes:
        """Tells the caller what it asked for until nothing of it is left, its token ends, or the bridge stops.

        Raises Failure before the stream begins: -32602, -32021, 429 when the caller has too many streams.
        """
        wanted = read_filter(call.params)
        if wanted.task_ids is not None:
            call.meta.require_tasks()
        if call.outbox is None:
            raise refused(406, f"Accept must admit {EVENT_STREAM}: what is listened to is told as a stream")
        with self._room(call.caller), self._limiter.stream(call.caller):
            stream = _Stream(
                call,
                call.outbox,
                wanted,
                store=self._store,
                routes=self._routes,
                shown=self._shown,
                metrics=self._metrics,
            )
            self._streams.add(stream)
            try:
                stream.begin()
                await stream.ended.wait()
            finally:
                self._streams.remove(stream)
                stream.close()
        return self._results.write_end(call.request_id)

    def drain(self) -> None:
        """Ends every stream, and takes no new one."""
        self._is_draining = True
        for stream in self._streams:
            stream.end()

    def routes_changed(self, before: Routes, after: Routes) -> None:
        """Tells those who asked for it, and whose list of tools is another now."""
        changed: dict[Caller, bool] = {}
        for stream in self._streams:
            caller = stream.caller
            if caller not in changed:
                changed[caller] = _listed(before, caller) != _listed(after, caller)
            if changed[caller]:
                stream.tools_changed()

    @contextmanager
    def _room(self, caller: Caller) -> Iterator[None]:
        """Room for one more stream. Raises Failure where there is none."""
        principal = (caller.tenant, caller.issuer, caller.subject)
        if self._is_draining:
            raise unavailable()
        if self._principals[principal] >= self._per_principal or self._principals.total() >= self._most:
            raise too_many("Too many subscriptions at the same time", _RETRY_SECONDS)
        self._principals[principal] += 1
        self._metrics.subscriptions.inc()
        try:
            yield
        finally:
            self._metrics.subscriptions.dec()
            self._principals[principal] -= 1
            if not self._principals[principal]:
                del self._principals[principal]


class _Stream:
    """What one request is told."""

    __slots__ = (
        "_capabilities", "_expiry", "_followings", "_metrics", "_outbox", "_routes", "_shown", "_store", "_subscription",
        "_wanted", "caller", "ended",
    )  # fmt: skip

    def __init__(
        self,
        call: Call,
        outbox: Outbox,
        wanted: Filter,
        *,
        store: Cells,
        routes: CurrentRoutes,
        shown: "_Shown",
        metrics: Metrics,
    ) -> None:
        self.caller = call.caller
        self.ended = asyncio.Event()
        """Set once there is nothing more to tell."""
        self._capabilities = call.meta.capabilities
        self._outbox = outbox
        self._wanted = wanted
        self._store = store
        self._routes = routes
        self._shown = shown
        self._metrics = metrics
        self._subscription = Subscription(call.request_id)
        self._followings: dict[str, FollowedTask] = {}
        self._expiry: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Looks at the tasks, and acknowledges. Raises StoreError when that cannot be.

        Who may see tasks of others looks at one without what comes of it first, so that how long it takes tells nothing of
        a task that it may not see.
        """
        reads_others = self._routes.now.reads_others(self.caller)
        for task_id in self._wanted.task_ids or ():
            if reads_others:
                self._follow(task_id, None, types_pb2.TASK_VIEW_BASIC, self._admit)
            else:
                self._follow(task_id, self.caller.owner, types_pb2.TASK_VIEW_OUTCOME, self._told)
        self._outbox.put(_ACKNOWLEDGED, (self._subscription.acknowledged(self._wanted),))
        if self.caller.expires_at is not None:
            self._expiry = asyncio.get_running_loop().call_later(self.caller.expires_at - time.time(), self.end)
        self._end_if_empty()

    def tools_changed(self) -> None:
        """Tells it that its list of tools is another, if it asked for that."""
        if self._wanted.tools_list_changed:
            self._outbox.put(_TOOLS, (self._subscription.tools_list_changed(),))

    def end(self) -> None:
        """Tells nothing more but that it was acknowledged, if that was not sent yet."""
        self._outbox.drop_all_but(_ACKNOWLEDGED)
        self.ended.set()

    def close(self) -> None:
        """Looks at nothing any more."""
        if self._expiry is not None:
            self._expiry.cancel()
        for following in self._followings.values():
            following.close()
        self._followings.clear()

    def _follow(
        self,
        task_id: str,
        owner: types_pb2.Owner | None,
        view: types_pb2.TaskView.ValueType,
        told: Callable[[str, Snapshot | StoreError], None],
    ) -> None:
        wanted = tasks_pb2.WatchedTask(tenant_id=self.caller.tenant, task_id=readable_id(task_id), owner=owner, view=view)
        self._followings[task_id] = self._store.follow_task(wanted, partial(told, task_id))

    def _admit(self, task_id: str, news: Snapshot | StoreError) -> None:
        """A task as it stands, perhaps of another owner: it is looked at in full if the caller may."""
        if isinstance(news, StoreError) or not self._may_read(news.task):
            self._leave(task_id)
            return
        self._followings[task_id].close()
        self._follow(task_id, news.task.contract.owner, types_pb2.TASK_VIEW_OUTCOME, self._told)

    def _told(self, task_id: str, news: Snapshot | StoreError) -> None:
        """A task as it stands, or that there is none that the caller may read, of which nothing is said."""
        if self.ended.is_set():
            return
        if self.caller.is_expired(time.time()):
            self.end()
            return
        if isinstance(news, StoreError) or not self._may_read(news.task):
            self._leave(task_id)
            return
        questions = self._routes.now.asked(self.caller, news.task, open_questions(news.task))
        # What tasks/get would refuse, as it asks what the client did not say that it can answer, is not told either.
        if not missing_capabilities(questions, self._capabilities):
            note = self._subscription.task(
                self._shown.members(news.task, questions, self._routes.now.longest_poll_ms(news.task))
            )
            is_replaced = self._outbox.put(task_id, note)
            (self._metrics.snapshots_coalesced if is_replaced else self._metrics.snapshots_sent).inc()
        if is_terminal(news.task):
            self._leave(task_id)

    def _may_read(self, task: types_pb2.Task) -> bool:
        return not is_expired(task) and self._routes.now.may(self.caller, Action.READ, task)

    def _leave(self, task_id: str) -> None:
        self._followings.pop(task_id).close()
        self._end_if_empty()

    def _end_if_empty(self) -> None:
        """Ends once nothing of what was asked for can be told any more. What waits to be sent still is."""
        if not self._followings and not self._wanted.tools_list_changed:
            self.ended.set()


class _Shown:
    """The members of the task that was shown last, as all who look at it are shown it one after the other."""

    def __init__(self) -> None:
        self._task: types_pb2.Task | None = None
        self._questions: tuple[Question, ...] = ()
        self._members = b""

    def members(self, task: types_pb2.Task, questions: tuple[Question, ...], longest_poll_ms: int) -> bytes:
        """What `tasks/get` would show of it to one who is asked these questions."""
        if task is not self._task or questions != self._questions:
            self._task, self._questions = task, questions
            pieces = detailed_task_members(task, questions, poll_interval_ms(task, longest_poll_ms))
            self._members = b"".join(pieces)
        return self._members


def _listed(routes: Routes, caller: Caller) -> list[bytes]:
    """What `tools/list` shows the caller."""
    return [route.description for route in routes.granted(caller)]
