"""Floor 4: an answer that begins before its outcome is known, as server-sent events. Source: contract, section 10.8."""

import asyncio
from collections.abc import Coroutine
from typing import Final

from aiohttp import web

from mcp_bridge.methods.calls import Outbox
from mcp_bridge.wire.sse import KEEP_ALIVE, event

KEEP_ALIVE_SECONDS: Final = 15.0
WRITE_SECONDS: Final = 30.0
"""How long a client may not read at all before its connection is given up."""


class EventStream:
    """One answer as events. Nothing is sent until it begins."""

    def __init__(self, request: web.BaseRequest, headers: dict[str, str]) -> None:
        self._request = request
        self._response = web.StreamResponse(headers=headers)

    @property
    def is_begun(self) -> bool:
        """Whether the status went out, so that whatever follows must be an event."""
        return self._response.prepared

    async def send(self, data: bytes) -> None:
        """Sends an event, and begins with it."""
        await self._write(event(data))

    async def keep_alive(self) -> None:
        """Sends what no client sees, and begins with it."""
        await self._write(KEEP_ALIVE)

    async def end(self, data: bytes) -> web.StreamResponse:
        """Sends the answer itself, and ends."""
        await self.send(data)
        await self._response.write_eof()
        return self._response

    async def _write(self, data: bytes) -> None:
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                if not self.is_begun:
                    await self._response.prepare(self._request)
                await self._response.write(data)
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionResetError("the client does not read") from None


async def converse(work: Coroutine[object, object, bytes], outbox: Outbox, stream: EventStream) -> bytes:
    """Runs a call to its result, and sends meanwhile what it tells. The stream begins with the first notification, or when
    the call takes long; otherwise it does not. Whoever leaves, the call is told by its cancellation, and waited for."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda _: outbox.news.set())
    try:
        await _send_until(task, outbox, stream)
        return await task
    finally:
        outbox.close()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


async def _send_until(task: asyncio.Future[bytes], outbox: Outbox, stream: EventStream) -> None:
    while True:
        try:
            async with asyncio.timeout(KEEP_ALIVE_SECONDS if stream.is_begun else None):
                await outbox.news.wait()
        except TimeoutError:
            await stream.keep_alive()
            continue
        outbox.news.clear()
        is_done = task.done()
        for note in outbox.take():
            await stream.send(note)
        if is_done:
            return
        if outbox.is_late and not stream.is_begun:
            await stream.keep_alive()
