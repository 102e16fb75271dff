"""Floor 4: the connections of a bridge, and what every answer on them carries. Source: security checklist H18 and H19."""

import asyncio
from typing import Final

import structlog
from aiohttp import web

from mcp_bridge.wire.failures import refused
from mcp_bridge.wire.headers import JSON

HEADERS_BYTES: Final = 16 * 1024
HEADER_SECONDS: Final = 15.0
TARGET_BYTES: Final = 2 * 1024
HEADERS: Final = {"Server": "tenure", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
JSON_HEADERS: Final = {**HEADERS, "Content-Type": JSON}


class Connection(web.RequestHandler):
    """One connection. What is not even HTTP is answered in JSON too, and leaves no trace of our insides."""

    __slots__ = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See the base class. Who takes too long over the first header is given up; later ones are the keep-alive's."""
        super().connection_made(transport)
        asyncio.get_running_loop().call_later(HEADER_SECONDS, self._give_up)

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
