"""The client: tools that are called, tasks that are looked at, answered, cancelled and waited for."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import timedelta
from importlib import metadata
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from msgspec import UNSET

from mcp_bridge.client.answers import Handlers, answer, capabilities_of
from mcp_bridge.client.endpoint import Endpoint, read, within
from mcp_bridge.client.errors import HandleExpired, ProtocolFailure, TaskCancelled, TaskFailed, ToolError, TransportError
from mcp_bridge.client.listening import Listening
from mcp_bridge.client.messages import (
    Discovery,
    Outcome,
    Progress,
    TaskHandle,
    TaskSnapshot,
    Tool,
    ToolResult,
)
from mcp_bridge.client.policy import Policy
from mcp_bridge.client.traced import Traces
from mcp_bridge.client.transport import Message, Request, Token, Transport
from mcp_bridge.wire.failures import HEADER_MISMATCH
from mcp_bridge.wire.mcp import IDEMPOTENCY_KEY

OnProgress = Callable[[Progress], None]
OnChange = Callable[[TaskSnapshot], None]

_MOST_REMEMBERED = 1_000
"""Tasks of which it is known which questions were answered; of the one that was asked about longest ago it is forgotten."""
_LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))


class TaskClient:
    """A client of one MCP server. Use it as a context; it may be used by many coroutines at once.

    `capabilities` are what every request declares; by default Tasks, and the kinds of questions that `handlers` answer.
    `token` is a bearer token, or what gives the current one. With `traces` each request has a span, of which the server is
    told, so that a trace begins here, or goes on through it. Every operation may raise ProtocolFailure and
    TransportError; those that wait have one deadline, `policy.deadline_seconds` unless they are given another.
    """

    def __init__(
        self,
        url: str,
        *,
        capabilities: Mapping[str, Any] | None = None,
        handlers: Handlers | None = None,
        token: Token | None = None,
        policy: Policy | None = None,
        client_info: Mapping[str, Any] | None = None,
        traces: Traces | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not the URL of an MCP endpoint")
        if token is not None and parts.scheme != "https" and parts.hostname not in _LOOPBACK:
            raise ValueError("a token is sent by https, or on loopback, only")
        self._handlers = dict(handlers or {})
        self._policy = policy or Policy()
        self._transport = Transport(
            url,
            capabilities=capabilities_of(self._handlers) if capabilities is None else capabilities,
            client_info=client_info or {"name": "tenure", "version": metadata.version("tenure")},
            token=token,
            policy=self._policy,
            traces=traces,
        )
        self._endpoint = Endpoint(self._transport, self._policy)
        self._answered: dict[str, set[str]] = {}

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.__aexit__()

    async def discover(self) -> Discovery:
        """What the server is and can do."""
        return read(await self._endpoint.ask("server/discover", {}), Discovery)

    async def list_tools(self) -> list[Tool]:
        """All tools that may be called, in the server's order. Those with a bad `x-mcp-header` are left out."""
        return [listed.tool for listed in (await self._endpoint.list_tools(None)).listed.values()]

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
        progress: OnProgress | None = None,
        deadline: timedelta | None = None,
    ) -> ToolResult:
        """Calls a tool and gives its result, whether the server holds the call or makes a task of it.

        Raises ToolError when the tool says that it went wrong, and all that `call_tool_outcome` and `wait_task` raise.
        """
        until = self._until(deadline)
        outcome = await self._call(name, arguments or {}, idempotency_key, progress, until)
        if isinstance(outcome, TaskHandle):
            outcome = await self._wait(outcome, until, _told(progress))
        if outcome.is_error:
            raise ToolError(outcome)
        return outcome

    async def call_tool_outcome(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
        progress: OnProgress | None = None,
        deadline: timedelta | None = None,
    ) -> ToolResult | TaskHandle:
        """Calls a tool: its result, `is_error` included, or the handle of the task that does the work.

        With an idempotency key the call is repeated whenever its answer was lost; without, only when it surely was not
        carried out. Questions of a held call are answered by the handlers. Raises InputNeeded, InvalidResult, ToolRefused
        and DeadlineExceeded.
        """
        return await self._call(name, arguments or {}, idempotency_key, progress, self._until(deadline))

    async def get_task(self, handle: TaskHandle) -> TaskSnapshot:
        """The task as it is now. Raises HandleExpired."""
        return await self._endpoint.look(handle, None)

    async def explain_task(self, handle: TaskHandle) -> str:
        """Why the task is where it is, as a sentence in English, where the server tells it. Raises HandleExpired."""
        return await self._endpoint.explain(handle)

    async def update_task(self, handle: TaskHandle, responses: Mapping[str, Mapping[str, Any]]) -> None:
        """Answers questions of a task, by key. Keys that are not open are ignored. Raises HandleExpired."""
        await self._endpoint.update(handle, responses, None)

    async def cancel_task(self, handle: TaskHandle) -> None:
        """Asks for the task's end. It may still end otherwise; `wait_task` tells. Raises HandleExpired."""
        await self._endpoint.about(handle, "tasks/cancel", {}, None)

    async def wait_task(
        self, handle: TaskHandle, *, deadline: timedelta | None = None, on_change: OnChange | None = None
    ) -> ToolResult:
        """Waits for the task's result, `is_error` included, through lost connections and servers that are away.

        Its questions are answered by the handlers, each key once. Raises TaskFailed, TaskCancelled, HandleExpired,
        InputNeeded for a question without a handler, InvalidResult, and DeadlineExceeded, after which the task goes on.
        """
        return await self._wait(handle, self._until(deadline), on_change)

    async def listen_tasks(self, handles: Sequence[TaskHandle]) -> AsyncGenerator[TaskSnapshot, None]:
        """Each task's state at first, then whenever it changes, until all have ended or the caller leaves.

        Told over `subscriptions/listen`, or looked for at the server's interval where that is not served. Raises
        HandleExpired when all others have ended.
        """
        listening = Listening(handles, self.get_task, self._policy)
        async with aclosing(listening.run(self._transport)) as snapshots:
            async for snapshot in snapshots:
                yield snapshot

    async def _call(
        self, name: str, arguments: Mapping[str, Any], key: str | None, progress: OnProgress | None, until: float
    ) -> ToolResult | TaskHandle:
        meta: dict[str, Any] = {} if key is None else {IDEMPOTENCY_KEY: key}
        if progress is not None:
            meta["progressToken"] = 0  # the transport puts in each request's own
        first: dict[str, Any] = {"name": name, "arguments": arguments, "_meta": meta}
        params = first
        async with within(until):
            for _ in range(self._policy.rounds):
                data = await self._send_call(params, key, progress, until)
                outcome = read(data, Outcome)
                match outcome.result_type:
                    case "task" if outcome.task_id is not None:
                        return TaskHandle(outcome.task_id, self._transport.url, name)
                    case "input_required" if outcome.input_requests or outcome.request_state is not UNSET:
                        params = dict(first)
                        if outcome.input_requests:
                            params["inputResponses"] = await answer(self._handlers, outcome.input_requests)
                        if outcome.request_state is not UNSET:
                            params["requestState"] = outcome.request_state
                    case "complete":
                        return await self._endpoint.checked(read(data, ToolResult), name, until)
                    case other:
                        raise TransportError(f"the answer is of no kind that is known: {other}", is_unknown=True)
            raise TransportError(f"the call asked more than {self._policy.rounds} times", is_unknown=True)

    async def _send_call(self, params: Mapping[str, Any], key: str | None, progress: OnProgress | None, until: float) -> bytes:
        """Sends a call. Where headers and body differ for the server, its tools have changed: they are read anew, once."""

        def tell(message: Message) -> None:
            if progress is not None and message.method == "notifications/progress":
                progress(read(bytes(message.params), Progress))

        for is_second in (False, True):
            tool = await self._endpoint.find_tool(params["name"], until)
            request = Request(
                method="tools/call",
                params=params,
                is_idempotent=key is not None,
                mirrored=tool.mirrored if tool is not None else None,
                on_notification=tell,
            )
            try:
                return await self._transport.request(request, until=until)
            except ProtocolFailure as failure:
                if failure.code != HEADER_MISMATCH or is_second:
                    raise
                self._endpoint.forget_tools()
        raise AssertionError("the second time returns or raises")

    async def _wait(self, handle: TaskHandle, until: float, on_change: OnChange | None) -> ToolResult:
        last = None
        async with within(until, handle):
            while True:
                try:
                    snapshot = await self._endpoint.look(handle, until)
                except HandleExpired:
                    self._answered.pop(handle.task_id, None)
                    raise
                if on_change is not None and snapshot != last:
                    on_change(snapshot)
                last = snapshot
                if snapshot.is_terminal:
                    self._answered.pop(handle.task_id, None)
                match snapshot.status:
                    case "completed" if snapshot.result is not None:
                        return await self._endpoint.checked(snapshot.result, handle.tool, until)
                    case "failed" if (fault := snapshot.error) is not None:
                        raise TaskFailed(handle, fault.code, fault.message, fault.data)
                    case "cancelled":
                        raise TaskCancelled(handle)
                    case "completed" | "failed":
                        raise TransportError(f"the task is {snapshot.status}, but its outcome is not there")
                    case "input_required":
                        if await self._answer(handle, snapshot, until):
                            continue
                await asyncio.sleep(self._policy.poll_pause(snapshot, left_seconds=until - time.monotonic()))

    async def _answer(self, handle: TaskHandle, snapshot: TaskSnapshot, until: float) -> bool:
        """Answers what this client has not answered yet. Returns whether there was something."""
        answered = self._answered[handle.task_id] = self._answered.pop(handle.task_id, set())
        if len(self._answered) > _MOST_REMEMBERED:
            del self._answered[next(iter(self._answered))]
        requests = {key: request for key, request in snapshot.input_requests.items() if key not in answered}
        if requests:
            answered.update(requests)
            try:
                await self._endpoint.update(handle, await answer(self._handlers, requests, handle=handle), until)
            except BaseException:
                answered.difference_update(requests)
                raise
        return bool(requests)

    def _until(self, deadline: timedelta | None) -> float:
        return time.monotonic() + (self._policy.deadline_seconds if deadline is None else deadline.total_seconds())


def _told(progress: OnProgress | None) -> OnChange | None:
    """Tells a task's status messages as progress."""
    return None if progress is None else lambda snapshot: progress(Progress(message=snapshot.status_message))
