"""Floor 4: messages over two pipes, one a line. Source: contract, section 10.24."""

import asyncio
import os
import queue
import threading
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

LINE_BYTES: Final = 1024 * 1024
_CHUNK_BYTES: Final = 64 * 1024


class LineTooLong(Exception):  # noqa: N818 (it says what the line is)
    """A line was longer than LINE_BYTES. It was passed over."""


class Lines:
    """Reads and writes lines, of which each is one message.

    Threads do what blocks, as a pipe may be a file or a terminal too, and to make one of those not block would change it for
    other processes. They are daemons: one that waits for input holds up no end.
    """

    def __init__(self, source: int, sink: int) -> None:
        self._source = source
        self._sink = sink
        self._reader = _Hand("stdin")
        self._writer = _Hand("stdout")
        self._writing = asyncio.Lock()
        self._buffer = bytearray()
        self._is_skipping = False

    async def read(self) -> bytes | None:
        """The next line without its end; None at the end of the input. Raises LineTooLong, after which the next is read."""
        searched = 0
        while True:
            end = self._buffer.find(b"\n", searched)
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                if self._is_skipping or len(line) > LINE_BYTES:
                    self._is_skipping = False
                    raise LineTooLong
                return line
            if self._is_skipping or len(self._buffer) > LINE_BYTES:
                self._is_skipping = True
                self._buffer.clear()
            searched = len(self._buffer)
            chunk = await self._reader.do(lambda: os.read(self._source, _CHUNK_BYTES))
            if not chunk:
                return None
            self._buffer += chunk

    async def write(self, *pieces: bytes) -> None:
        """Writes one message, whose line ends stand between tokens of JSON only. Raises ConnectionError when nobody reads."""
        line = b"".join(pieces).replace(b"\n", b" ").replace(b"\r", b" ") + b"\n"
        async with self._writing:
            await self._writer.do(lambda: _write_all(self._sink, line))


def own_pipes() -> tuple[int, int]:
    """Standard input and output of this process for its messages alone: whatever else reads finds nothing, and whatever else
    writes, writes to standard error."""
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return source, sink


class _Hand:
    """A thread that does one thing after the other."""

    def __init__(self, name: str) -> None:
        self._wishes: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    async def do(self, function: Callable[[], T]) -> T:
        """What `function` returns or raises. It goes on when nobody waits for it any more."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: OSError | None) -> None:
            if done.cancelled():
                return
            if error is None:
                done.set_result(result)  # type: ignore[arg-type] # None where T is None
            else:
                done.set_exception(error)

        def wish() -> None:
            result: T | None = None
            failure: OSError | None = None
            try:
                result = function()
            except OSError as error:
                failure = error
            try:
                loop.call_soon_threadsafe(settle, result, failure)
            except RuntimeError:
                return  # the loop was closed: nobody waits any more

        self._wishes.put(wish)
        return await done

    def _work(self) -> None:
        while True:
            self._wishes.get()()


def _write_all(sink: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(sink, left) :]
