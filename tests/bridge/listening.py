"""A client that listens: one stream, read frame by frame."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from tests.bridge.client import PREFIX, TASKS, headers_for, meta

SUBSCRIPTION_ID = PREFIX + "subscriptionId"
PATIENCE_SECONDS = 30
"""How long a frame may take that must come."""


class Stream:
    """An answer of small events that is read as it comes, over a connection of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def frame(self) -> dict[str, Any]:
        """The next message."""
        data: list[bytes] = []
        while (line := await self._line()) or not data:
            if line.startswith(b"data: "):
                data.append(line.removeprefix(b"data: "))
        value = json.loads(b"\n".join(data))
        assert isinstance(value, dict)
        return value

    async def comment(self) -> bytes:
        """The next comment, before which no message comes."""
        while not (line := await self._line()).startswith(b":"):
            assert not line.startswith(b"data:"), line
        return line

    async def rest(self) -> list[dict[str, Any]]:
        """Every message until the stream ends, which it must."""
        frames = []
        try:
            while True:
                frames.append(await self.frame())
        except EOFError:
            return frames

    def reset(self) -> None:
        """Leaves without a word: the other side sees a reset."""
        connection = self.writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.writer.transport.abort()

    async def _line(self) -> bytes:
        """The next line of the body. Raises EOFError at its end."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            line = (await self._reader.readuntil(b"\n")).rstrip(b"\n")
        if line == b"0\r":  # the last chunk of an answer in chunks
            assert await self._reader.read() == b"\r\n"
            raise EOFError
        return line


@asynccontextmanager
async def listening(
    port: int,
    *task_ids: str,
    tools: bool | None = None,
    request_id: Any = 1,
    capabilities: Any = None,
    receive_bytes: int | None = None,
    token: str | None = None,
    **notifications: Any,
) -> AsyncIterator[Stream]:
    """Asks to be told of these, and is left at the end. The header of the answer is read."""
    wanted = dict(notifications)
    if task_ids:
        wanted["taskIds"] = task_ids
    if tools is not None:
        wanted["toolsListChanged"] = tools
    params = {"notifications": wanted, "_meta": meta(TASKS if capabilities is None else capabilities)}
    body = json.dumps({"jsonrpc": "2.0", "id": request_id, "method": "subscriptions/listen", "params": params}).encode()
    headers = headers_for("subscriptions/listen", Host=f"127.0.0.1:{port}", Content_Length=str(len(body)))
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    connection = socket.socket()
    connection.setblocking(False)
    if receive_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=connection, limit=receive_bytes or 2**16)
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + body)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            answered = (await reader.readuntil(b"\r\n\r\n")).decode()
        assert answered.startswith("HTTP/1.1 200 "), answered
        assert "text/event-stream" in answered, answered
        yield Stream(reader, writer)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
