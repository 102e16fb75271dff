"""The world outside: a ledger that workers write effects to, which refuses a token that is lower than one it has seen."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec


class Effect(msgspec.Struct):
    """One attempt of one step to have its effect."""

    task: str
    step: str
    token: int
    worker: str
    is_accepted: bool = False


class Ledger:
    """Listens on loopback, one effect a line of JSON, answered `ok` or `fenced`."""

    def __init__(self, path: Path, port: int, *, is_buffered: bool = True) -> None:
        self._file = path.open("wb", buffering=1 << 20 if is_buffered else 0)
        self._port = port
        self._highest: dict[str, int] = {}
        self.count = 0
        self.fenced = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listens."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)

    async def stop(self) -> None:
        """Listens no more."""
        if self._server is not None:
            self._server.close()
        self._file.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(b"ok\n" if self._take(msgspec.json.decode(line, type=Effect)) else b"fenced\n")
        except (ConnectionError, msgspec.DecodeError):
            pass
        finally:
            writer.close()

    def _take(self, effect: Effect) -> bool:
        highest = self._highest.get(effect.task, 0)
        effect.is_accepted = effect.token >= highest
        if effect.is_accepted:
            self._highest[effect.task] = effect.token
            self.count += 1
        else:
            self.fenced += 1
        if not self._file.closed:
            self._file.write(msgspec.json.encode(effect) + b"\n")
        return effect.is_accepted


class LedgerClient:
    """The ledger as a worker sees it: an effect is done when it was answered."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._lock = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def append(self, **effect: Any) -> bool:
        """Whether it was taken; tried again over a new connection while the ledger is not reached."""
        line = msgspec.json.encode(effect) + b"\n"
        while True:
            try:
                async with self._lock:
                    if self._streams is None:
                        self._streams = await asyncio.open_connection("127.0.0.1", self._port)
                    reader, writer = self._streams
                    writer.write(line)
                    answer = await reader.readline()
                if answer:
                    return answer == b"ok\n"
                raise ConnectionError
            except OSError:
                self._streams = None
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                self._streams = None  # its answer would be taken for the next one's
                raise


def read_effects(path: Path) -> list[Effect]:
    """All attempts, in their order."""
    decoder = msgspec.json.Decoder(Effect)
    with path.open("rb") as lines:
        return [decoder.decode(line) for line in lines]
