"""Floor 4: an answer that begins before its outcome is known, as server-sent events. Source: contract, section 10.8."""

import asyncio
import socket
from collections.abc import Coroutine, Sequence
from typing import Final, Protocol

from aiohttp import web

from mcp_bridge.connections import PIECE_BYTES, WRITE_SECONDS
from mcp_bridge.methods.calls import Outbox
from mcp_bridge.wire.sse import KEEP_ALIVE, event_pieces

KEEP_ALIVE_SECONDS: Final = 15.0
BUFFER_BYTES: Final = 64 * 1024
"""What the kernel is asked to keep for a slow reader. Linux takes twice as much."""
WAITING_BYTES: Final = 16 * 1024
"""What is kept for it besides before it is waited for."""


class EventStream:
    """One answer as events. Nothing is sent until it begins. One that `lasts` costs little for as long as it does."""

    def __init__(self, request: web.BaseRequest, headers: dict[str, str], *, lasts: bool = False) -> None:
        self._request = request
        self._response = web.StreamResponse(headers=headers)
        self._lasts = lasts

    @property
    def is_begun(self) -> bool:
        """Whether the status went out, so that whatever follows must be an event."""
        return self._response.prepared

    async def send(self, *data: bytes) -> None:
        """Sends an event, its data in pieces, and begins with it."""
        await self._write(event_pieces(data))

    async def keep_alive(self) -> None:
        """Sends what no client sees, and begins with it."""
        await self._write([KEEP_ALIVE])

    async def end(self, *data: bytes) -> web.StreamResponse:
        """Sends the answer itself, in pieces, and ends."""
        await self.send(*data)
        await self._response.write_eof()
        return self._response

    async def _write(self, pieces: Sequence[bytes]) -> None:
        """Sends piece by piece, each when there is room for it: of what is large, a slow reader holds up no copy."""
        if sum(map(len, pieces)) <= PIECE_BYTES:
            pieces = [b"".join(pieces)]
        try:
            if not self.is_begun:
                self._begin()
                await self._response.prepare(self._request)
            for piece in pieces:
                for start in range(0, len(piece), PIECE_BYTES):
                    async with asyncio.timeout(WRITE_SECONDS):
                        await self._response.write(memoryview(piece)[start : start + PIECE_BYTES])
                        await self._request.writer.drain()
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionResetError("the client does not read") from None

    def _begin(self) -> None:
        """Sees to it that a client that vanished is noticed, and bounds what is kept for one that reads slowly; a connection
        with such bounds is not used again."""
        transport = self._request.transport
        connection: socket.socket | None = transport.get_extra_info("socket") if transport is not None else None
        if transport is None or connection is None:
            return
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # not on macOS
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(WRITE_SECONDS * 1000))
        if self._lasts:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            transport.set_write_buffer_limits(high=WAITING_BYTES)
            self._response.force_close()


class Stream(Protocol):
    """Where an answer goes that may begin before its outcome is known."""

    @property
    def is_begun(self) -> bool:
        """Whether something was sent."""

    async def send(self, *data: bytes) -> None:
        """Sends a message, in pieces."""

    async def keep_alive(self) -> None:
        """Shows that it lives, and begins with that."""


async def converse(work: Coroutine[object, object, bytes], outbox: Outbox, stream: Stream) -> bytes:
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


async def _send_until(task: asyncio.Future[bytes], outbox: Outbox, stream: Stream) -> None:
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
            await stream.send(*note)
        if is_done:
            return
        if outbox.is_late and not stream.is_begun:
            await stream.keep_alive()
