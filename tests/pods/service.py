"""An address that stays while pods come and go, as a Service's does, with a way into a pod's loopback, as port-forward has."""

import asyncio
import contextlib
import ctypes
import itertools
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol, Self

NEW_NETWORK: Final = 0x40000000
"""CLONE_NEWNET of sched.h."""
READ_BYTES: Final = 65_536


class Endpoint(Protocol):
    """Where a connection may go."""

    @property
    def network(self) -> Path:
        """The file of its network namespace."""


class Service:
    """Passes each new connection on to one of the endpoints that are ready, in turn, and keeps it there."""

    def __init__(self, ready: Callable[[], Sequence[Endpoint]], *, port: int) -> None:
        self._ready = ready
        self._port = port
        self._turn = itertools.count()
        self._server: asyncio.Server | None = None
        self._passing: set[asyncio.Task[None]] = set()  # nobody else keeps them
        self.unserved = 0
        """Connections for which nobody was ready, or that were refused."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()

    @property
    def port(self) -> int:
        """Where it listens, on loopback."""
        if self._server is None:
            raise RuntimeError("the service is used outside of its context")
        return int(self._server.sockets[0].getsockname()[1])

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passing = asyncio.create_task(self._pass_on(reader, writer))
        self._passing.add(passing)
        passing.add_done_callback(self._passing.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ready = self._ready()
        try:
            if not ready:
                raise ConnectionRefusedError("no pod is ready")
            endpoint = ready[next(self._turn) % len(ready)]
            there, to_there = await connect(endpoint.network, self._port)
        except OSError:
            self.unserved += 1
            writer.transport.abort()
            return
        try:
            await asyncio.gather(_copy(reader, to_there), _copy(there, writer))
        finally:
            for each in (to_there, writer):
                each.close()
                with contextlib.suppress(OSError):
                    await each.wait_closed()


async def connect(network: Path, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connects to a port of the loopback of a network namespace. As root."""
    inside = _socket_in(network)
    try:
        await asyncio.get_running_loop().sock_connect(inside, ("127.0.0.1", port))
        return await asyncio.open_connection(sock=inside)
    except BaseException:
        inside.close()
        raise


def _socket_in(network: Path) -> socket.socket:
    """A socket belongs to the namespace in which it was made, whoever uses it."""
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns is there from Python 3.12 on
    with Path("/proc/thread-self/ns/net").open() as ours, network.open() as theirs:
        if libc.setns(theirs.fileno(), NEW_NETWORK) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        try:
            inside = socket.socket()
        finally:
            if libc.setns(ours.fileno(), NEW_NETWORK) != 0:
                os.abort()  # this thread would go on in somebody else's network
    inside.setblocking(False)
    return inside


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the one side has ended; then says so to the other. A connection that breaks is broken on both sides."""
    try:
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.transport.abort()
