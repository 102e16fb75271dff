"""Floor 4: the connections of a bridge, and what every answer on them carries. Source: security checklist H18 and H19."""

import asyncio
import math
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from aiohttp import web
from aiohttp.http_parser import RawRequestMessage
from aiohttp.http_writer import StreamWriter
from aiohttp.web_protocol import _ErrInfo

from mcp_bridge.wire.failures import refused
from mcp_bridge.wire.headers import JSON

HEADERS_BYTES: Final = 16 * 1024
HEADER_SECONDS: Final = 15.0
TARGET_BYTES: Final = 2 * 1024
WRITE_SECONDS: Final = 20.0
"""How long a client may take over 64 KiB, or its machine not acknowledge what was sent to it, a keep-alive for one, before its
connection is given up."""
PIECE_BYTES: Final = 64 * 1024
_DROPPED: Final = struct.pack("ii", 1, 0)
HEADERS: Final = {"Server": "tenure", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
JSON_HEADERS: Final = {**HEADERS, "Content-Type": JSON}


Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Connection(web.RequestHandler):
    """One connection. What is not even HTTP is answered in JSON too, and leaves no trace of our insides."""

    __slots__ = ("_giving_up", "_is_unreadable", "_taking")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See the base class. Who takes too long over the first header is given up; later ones are the keep-alive's."""
        super().connection_made(transport)
        self._taking: asyncio.TimerHandle | None = None
        self._giving_up = asyncio.get_running_loop().call_later(HEADER_SECONDS, self._give_up)
        self._is_unreadable = False

    def data_received(self, data: bytes) -> None:
        """See the base class, which would go on reading, and keep all that is no HTTP either."""
        if self._is_unreadable:
            return
        super().data_received(data)
        if self._messages and isinstance(fault := self._messages[-1][0], _ErrInfo):
            self._is_unreadable = True
            if fault.exc is not None:
                fault.exc.__traceback__ = None  # by which it refers to itself, and to the data

    def connection_lost(self, exc: BaseException | None) -> None:
        """See the base class. Nothing refers to it any more, or what it had read would be kept as long as a header may take."""
        self._giving_up.cancel()
        self._stop_watching()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """See the base class, which would wait as long as the client pleases."""
        super().pause_writing()
        self._watch_taking()

    def resume_writing(self) -> None:
        """See the base class."""
        super().resume_writing()
        self._stop_watching()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """See the base class, which resumes twice for each body, though nothing was paused."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    async def start(self) -> None:
        """See the base class, which gives each request a task of its own, for the sake of context variables. Here a request
        that has arrived as a whole does without; all else, and what follows it, is left to the base class."""
        loop, manager = self._loop, self._manager
        assert manager is not None
        while not self._force_close:
            if not self._messages:
                self._waiter = loop.create_future()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
            message, payload = self._messages[0]
            is_whole = payload.is_eof() and len(self._messages) == 1 and not self._upgraded
            if not isinstance(message, RawRequestMessage) or not is_whole or self._parser is None or self._task_handler is None:
                await super().start()
                return
            self._messages.popleft()
            self._parser.message_consumed()
            manager.requests_count += 1
            request = web.BaseRequest(message, payload, self, StreamWriter(self, loop), self._task_handler, loop)
            if not await self._respond(request, manager.request_handler):
                break
            self._next_keepalive_close_time = loop.time() + self._keepalive_timeout
            if self._keepalive_handle is None:
                self._keepalive_handle = loop.call_at(self._next_keepalive_close_time, self._process_keepalive)
        if not self._force_close:
            self._task_handler = None
            if self.transport is not None:
                self.transport.close()

    async def _respond(self, request: web.BaseRequest, handler: Handler) -> bool:
        """Answers a request. Returns whether its connection may be used again."""
        try:
            response, is_lost = await self._handle_request(request, None, handler)
        except ConnectionError:
            return False
        except BaseException:
            self.force_close()
            raise
        self._keepalive = bool(response.keep_alive)
        return self._keepalive and not is_lost and not self._close and not self._force_close

    def _watch_taking(self, most_left_bytes: float = math.inf) -> None:
        """Gives the client up if it has left more than this of what it is to take; otherwise looks again later."""
        if self.transport is None:
            return
        left_bytes = self.transport.get_write_buffer_size()
        if left_bytes > most_left_bytes:
            if (connection := self.transport.get_extra_info("socket")) is not None:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DROPPED)  # what the kernel keeps for it, too
            self.transport.abort()
            return
        self._taking = self._loop.call_later(WRITE_SECONDS, self._watch_taking, max(0, left_bytes - PIECE_BYTES))

    def _stop_watching(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def _give_up(self) -> None:
        if self._request_count == 0 and self.transport is not None:
            self.transport.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 (named by the base class)
    ) -> web.StreamResponse:
        """See the base class."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer is under way already")
        structlog.get_logger().info("bad_http", status=status, error=type(exc).__name__)
        failure = refused(status, "The HTTP request cannot be read")
        response = web.Response(body=failure.body(None), status=failure.status, headers=JSON_HEADERS)
        response.force_close()
        return response


class Server(web.Server):
    """Makes the connections of one listening bridge."""

    def __call__(self) -> web.RequestHandler:
        """One connection, its limits set: no decompression, as only identity is accepted, and little lingering."""
        return Connection(
            self,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type] # None turns it off; the annotation forgets it
            auto_decompress=False,
            keepalive_timeout=75.0,
            lingering_time=1.0,
            max_line_size=2 * TARGET_BYTES,
            max_field_size=HEADERS_BYTES // 2,
        )
