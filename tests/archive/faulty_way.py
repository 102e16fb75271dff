"""The way to a server of HTTP, on which requests and answers are lost, late, refused or changed."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self


@dataclass
class Request:
    """A request that came along, and how to bring it to its end."""

    method: str
    head: bytes
    body: bytes
    end: Callable[["Request"], Awaitable[bytes]]

    async def passed_on(self) -> bytes:
        """The answer of the server."""
        return await self.end(self)


Fault = Callable[[Request], Awaitable[bytes | None]]
"""What happens to a request: the answer, or None to break the connection."""


async def passes(request: Request) -> bytes | None:
    """Nothing happens to it."""
    return await request.passed_on()


async def answer_lost(request: Request) -> bytes | None:
    """It arrives, and nobody hears of it."""
    await request.passed_on()
    return None


async def cut(request: Request) -> bytes | None:
    """It does not arrive."""
    return None


async def stalls(request: Request) -> bytes | None:
    """Nobody answers."""
    await asyncio.Event().wait()
    return None


async def answer_late(request: Request) -> bytes | None:
    """It arrives, and the answer comes too late."""
    await request.passed_on()
    await asyncio.Event().wait()
    return None


async def body_changed(request: Request) -> bytes | None:
    """It arrives with one bit changed."""
    request.body = request.body[:-1] + bytes([request.body[-1] ^ 1])
    return await request.passed_on()


async def lock_forgotten(request: Request) -> bytes | None:
    """The storage knows no locks, and does not say so."""
    request.head = re.sub(rb"(?im)^x-amz-object-lock-.*\r\n", b"", request.head)
    return await request.passed_on()


def refused(status: int, code: str) -> Fault:
    """It is answered by this."""

    async def fault(request: Request) -> bytes | None:
        text = f"<Error><Code>{code}</Code><Message>refused by the test</Message></Error>"
        return (
            f"HTTP/1.1 {status} Refused\r\nContent-Type: application/xml\r\nContent-Length: {len(text)}\r\n"
            f"Connection: close\r\n\r\n{text}"
        ).encode()

    return fault


@dataclass
class FaultyWay:
    """A way to the server at a port of loopback. Each connection brings one request."""

    port: int
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    """What happens to the next requests of a method, one after another. All others pass."""
    seen: list[str] = field(default_factory=list)
    """The methods of the requests that came along."""

    @property
    def url(self) -> str:
        """Where the way begins."""
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._connections: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for each in self._connections:
            each.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if re.search(rb"(?im)^expect: 100-continue", head):
                head = re.sub(rb"(?im)^expect:.*\r\n", b"", head)
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            length = re.search(rb"(?im)^content-length: (\d+)", head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            request = Request(head.split(b" ", 1)[0].decode(), head, body, self._ask)
            self.seen.append(request.method)
            waiting = self.faults.get(request.method, [])
            fault = waiting.pop(0) if waiting else passes
            if (answer := await fault(request)) is not None:
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # whoever asked has left
        finally:
            writer.close()

    async def _ask(self, request: Request) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(
                re.sub(rb"(?im)^connection:.*\r\n", b"", request.head)[:-2] + b"Connection: close\r\n\r\n" + request.body
            )
            return await reader.read()
        finally:
            writer.close()
