"""Floor 4: the body of a request, as its bytes come. Source: security checklist H19."""

import asyncio
from typing import Final

from aiohttp import web
from aiohttp.web_exceptions import HTTPException
from aiohttp.web_protocol import RequestPayloadError

from mcp_bridge.wire.failures import Failure, refused

BODY_BYTES: Final = 5 * 1024 * 1024 // 4
BODY_SECONDS: Final = 30.0


async def read_body(request: web.BaseRequest) -> bytes:
    """The body, its real bytes counted as they come, whatever was declared. Raises Failure 413, 408 or 400."""
    content = request.content
    try:
        if content.is_eof() and content.total_bytes <= BODY_BYTES:  # all of it came with the header
            return content.read_nowait()
        if (request.content_length or 0) > BODY_BYTES:
            raise _too_large()
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        chunks: list[bytes] = []
        size = 0
        async with asyncio.timeout(BODY_SECONDS):
            while chunk := await content.readany():
                size += len(chunk)
                if size > BODY_BYTES:
                    raise _too_large()
                chunks.append(chunk)
    except TimeoutError:
        raise refused(408, f"The body did not arrive within {BODY_SECONDS:g} s", closes=True) from None
    except (RequestPayloadError, HTTPException):
        raise refused(400, "The body cannot be read", closes=True) from None
    return b"".join(chunks)


def _too_large() -> Failure:
    return refused(413, f"The body must be at most {BODY_BYTES} bytes", closes=True)
