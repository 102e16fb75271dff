"""A TCP proxy that breaks what goes through it, as a network does: between one side of Tenure and another, on loopback."""

import asyncio
import contextlib
import enum
import socket
import struct
from dataclasses import dataclass
from typing import Self, cast

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER without patience: close sends RST
_CHUNK_BYTES = 4096


class Mode(enum.Enum):
    """What becomes of the bytes."""

    PASS = "pass"
    REFUSE = "refuse"  # connections are reset, new ones too
    BLACKHOLE = "blackhole"  # nothing arrives, nobody is told
    NO_REQUESTS = "no requests"  # one way: what the client sends does not arrive
    NO_REPLIES = "no replies"  # one way: what the server sends does not arrive
    DROP_REPLY = "drop reply"  # the request arrives; at the first byte of a reply the connection is reset
    DELAY = "delay"
    THROTTLE = "throttle"


@dataclass(slots=True)
class Conditions:
    """How the way is, for all connections of a proxy."""

    mode: Mode = Mode.PASS
    delay_seconds: float = 0.2
    bytes_per_second: int = 32_768


class _Side(asyncio.Protocol):
    """One of the two connections of a pair; `other` is where its bytes go."""

    def __init__(self, proxy: "Proxy", *, is_client: bool) -> None:
        self._proxy = proxy
        self._is_client = is_client
        self._gate: asyncio.Task[None] | None = None
        self._queue: list[bytes] = []
        self.held: list[bytes] = []
        self.is_orphan = False
        self.transport: asyncio.Transport | None = None
        self.other: _Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._proxy._sides.add(self)
        if not self._is_client:
            return
        if self._proxy.conditions.mode is Mode.REFUSE:
            self.reset()
            return
        self.transport.pause_reading()
        self._proxy._spawn(self._proxy._connect(self))

    def data_received(self, data: bytes) -> None:
        mode = self._proxy.conditions.mode
        other = self.other
        if other is None or other.transport is None:
            return
        if mode is Mode.PASS and not self._queue:
            other.transport.write(data)
        elif mode is Mode.DROP_REPLY and not self._is_client:
            self.reset()
            other.reset()
        elif (
            mode is Mode.BLACKHOLE
            or (mode is Mode.NO_REQUESTS and self._is_client)
            or (mode is Mode.NO_REPLIES and not self._is_client)
        ):
            self.held.append(data)  # lost to the peer until the way is whole: then TCP would send it again
        else:
            self._queue.append(data)
            if self._gate is None:
                self._gate = self._proxy._spawn(self._drip())

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None and not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        self._proxy._sides.discard(self)
        other, self.other = self.other, None
        if other is None or other.transport is None:
            return
        if self._proxy.conditions.mode is Mode.BLACKHOLE:
            other.is_orphan = True  # its peer learns of the end when the way is whole again
        else:
            other.transport.close()

    def reset(self) -> None:
        """Ends this side with RST."""
        if self.transport is not None and not self.transport.is_closing():
            connection: socket.socket | None = self.transport.get_extra_info("socket")
            if connection is not None:
                with contextlib.suppress(OSError):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.transport.abort()

    def release(self) -> None:
        """Lets go what was held back while nothing passed."""
        if self.held and self.other is not None and self.other.transport is not None:
            self.other.transport.write(b"".join(self.held))
        self.held.clear()

    async def _drip(self) -> None:
        """What arrives late or slowly, in its order."""
        conditions = self._proxy.conditions
        while self._queue:
            data = self._queue.pop(0)
            if conditions.mode is Mode.DELAY:
                await asyncio.sleep(conditions.delay_seconds)
                pieces = [data]
            else:
                pieces = [data[at : at + _CHUNK_BYTES] for at in range(0, len(data), _CHUNK_BYTES)]
            for piece in pieces:
                if conditions.mode is Mode.THROTTLE:
                    await asyncio.sleep(len(piece) / conditions.bytes_per_second)
                if self.other is not None and self.other.transport is not None:
                    self.other.transport.write(piece)
        self._gate = None


class Proxy:
    """Listens on a port of loopback and passes on to another, under conditions that may change at any time."""

    def __init__(self, name: str, *, listen: int, upstream: int) -> None:
        self.name = name
        self.conditions = Conditions()
        self.listen = listen
        self.upstream = upstream
        self._sides: set[_Side] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> Self:
        """Listens."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Side(self, is_client=True), "127.0.0.1", self.listen)
        return self

    async def stop(self) -> None:
        """Ends all connections and listens no more."""
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Resets every connection that there is. New ones are taken as the conditions say."""
        for side in list(self._sides):
            side.reset()

    def set(self, mode: Mode) -> None:
        """Changes the way. Back to PASS, what was blackholed arrives, as TCP has it."""
        self.conditions.mode = mode
        if mode is Mode.REFUSE:
            self.cut()
        elif mode is Mode.PASS:
            for side in list(self._sides):
                if side.is_orphan:
                    side.reset()
                side.release()

    async def _connect(self, client: _Side) -> None:
        loop = asyncio.get_running_loop()
        server = _Side(self, is_client=False)
        try:
            await loop.create_connection(lambda: server, "127.0.0.1", self.upstream)
        except OSError:
            client.reset()
            return
        client.other, server.other = server, client
        if client.transport is None or client.transport.is_closing():
            server.reset()
        else:
            client.transport.resume_reading()

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
