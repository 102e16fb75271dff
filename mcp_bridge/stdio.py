"""Floor 4: MCP over standard input and output, for a host on this machine that starts the bridge itself.

Source: contract, section 10.24; MCP, basic/transports/stdio.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Final

from mcp_bridge.access.callers import Caller
from mcp_bridge.dispatch import Dispatcher, tell_reason
from mcp_bridge.journal import Entry, Journal, failure_for
from mcp_bridge.lines import LINE_BYTES, Lines, LineTooLong
from mcp_bridge.methods.calls import Outbox
from mcp_bridge.metrics import Metrics
from mcp_bridge.spans import Spans
from mcp_bridge.stream import converse
from mcp_bridge.wire.failures import Failure, invalid_request, parse_error, too_many
from mcp_bridge.wire.inbound import Era, era_of_line
from mcp_bridge.wire.jsonrpc import Notification, Request, is_request_id, notification, read_message, result_answer
from mcp_bridge.wire.mcp import CANCELLED, LISTEN

MOST_UNDER_WAY: Final = 1_000
FAREWELL_SECONDS: Final = 0.5
"""How long what was asked may still be answered once the input has ended, as by a script that pipes its requests in."""
DETACH_SECONDS: Final = 4.0
"""How long calls may take then to tell the store that nobody waits for them."""
_HEADERLESS: Final = {"transport": "stdio"}


class Stdio:
    """Serves the one client of a process. Its requests run side by side, and who it is was configured."""

    def __init__(
        self, dispatcher: Dispatcher, lines: Lines, *, caller: Caller, metrics: Metrics, spans: Spans | None = None
    ) -> None:
        self._dispatcher = dispatcher
        self._lines = lines
        self._caller = caller
        self._journal = Journal(metrics, spans)
        self._tasks: set[asyncio.Task[None]] = set()
        self._unanswered: dict[int | str, asyncio.Task[None]] = {}
        self._is_initialized = False
        self._lost = asyncio.Event()
        """Set when nobody reads what is written."""

    async def serve(self) -> None:
        """Answers until the input ends or nobody reads the output. It does not wait for what is still under way."""
        waits = [asyncio.create_task(work) for work in (self._take_all(), self._lost.wait())]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            done.pop().result()
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def idle(self, seconds: float) -> None:
        """Waits until nothing is under way, but no longer than that."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def detach(self) -> None:
        """The client has left: so it is for every call that is not answered soon."""
        await self.idle(FAREWELL_SECONDS)
        for task in self._tasks:
            task.cancel()
        await self.idle(DETACH_SECONDS)

    async def _take_all(self) -> None:
        while True:
            try:
                line = await self._lines.read()
            except LineTooLong:
                await self._refuse(Entry(), parse_error(f"a line is longer than {LINE_BYTES} bytes"))
                continue
            if line is None:
                return
            if line.strip():
                await self._take(line)

    async def _take(self, line: bytes) -> None:
        """Begins what a message asks for."""
        entry = Entry(caller=self._caller)
        try:
            message = read_message(line)
            entry.method = message.method
            if isinstance(message, Notification):
                self._hear(message)
                return
            entry.request_id = message.id
            if message.id in self._unanswered:
                raise invalid_request("a request with this id is under way")
            if len(self._tasks) >= MOST_UNDER_WAY:
                raise too_many("Too many requests are under way", 1.0)
        except Failure as failure:
            entry.request_id = failure.request_id if entry.request_id is None else entry.request_id
            await self._refuse(entry, failure)
            return
        task = asyncio.create_task(self._answer(message, entry))
        self._tasks.add(task)
        self._unanswered[message.id] = task
        task.add_done_callback(partial(self._forget, message.id))

    def _forget(self, request_id: int | str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._free(request_id, task)  # if it was cancelled before it began

    def _free(self, request_id: int | str, task: asyncio.Task[None] | None) -> None:
        """The id may be used again."""
        if self._unanswered.get(request_id) is task:
            self._unanswered.pop(request_id, None)

    def _hear(self, message: Notification) -> None:
        """A cancelled request is one whose client has left; every other notification is dropped."""
        request_id = message.params.get("requestId") if message.method == CANCELLED else None
        task = self._unanswered.pop(request_id, None) if is_request_id(request_id) else None
        if task is not None:
            tell_reason(message)
            task.cancel()

    async def _answer(self, message: Request, entry: Entry) -> None:
        """Answers a request, and tells before what is told before. Of one that is cancelled nothing more is said."""
        self._journal.hear(entry, message, None)
        try:
            try:
                answer = result_answer(message.id, await self._result(message, entry))
                entry.outcome = "OK"
            except Exception as error:  # noqa: BLE001 (the last resort: a caller is always answered)
                failure = failure_for(error)
                answer = (failure.body(message.id),)
                entry.outcome = str(failure.code)
            finally:
                self._free(message.id, asyncio.current_task())
            await self._write(*answer)
            if message.method == LISTEN and entry.outcome == "OK":
                await self._write(notification(CANCELLED, {"requestId": message.id}))
        finally:
            self._journal.tell(entry, _HEADERLESS)

    async def _result(self, message: Request, entry: Entry) -> bytes:
        era = era_of_line(message, is_initialized=self._is_initialized)
        self._is_initialized |= era is Era.LEGACY  # at once, for what follows before the answer
        outbox = Outbox()
        method, call = self._dispatcher.dispatch(
            era, message, headers=None, caller=self._caller, outbox=outbox, noted=entry.noted, trace=entry.trace
        )
        return await converse(method(call), outbox, _Line(self._write))

    async def _refuse(self, entry: Entry, failure: Failure) -> None:
        entry.outcome = str(failure.code)
        self._journal.tell(entry, _HEADERLESS)
        await self._write(failure.body(entry.request_id))

    async def _write(self, *data: bytes) -> None:
        try:
            await self._lines.write(*data)
        except OSError:
            self._lost.set()


class _Line:
    """Where a call tells what it tells before its answer: it has begun already, and nothing keeps it alive."""

    is_begun = True

    def __init__(self, write: Callable[..., Coroutine[object, object, None]]) -> None:
        self._write = write

    async def send(self, *data: bytes) -> None:
        await self._write(*data)

    async def keep_alive(self) -> None:
        return
