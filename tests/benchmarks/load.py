"""A client that costs as little as Python allows, so that what is measured is the server: prepared bytes, one request at a
time on each connection."""

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import urlsplit

import msgspec

from mcp_bridge.client.transport import write_request

TASKS: Final[dict[str, Any]] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"content-length:"
_PATIENCE_SECONDS: Final = 60.0


@dataclass(slots=True)
class Load:
    """What came of a stretch of requests."""

    seconds: float
    latencies_ms: list[float] = field(repr=False)
    answer_bytes: int
    failures: list[bytes]

    @property
    def operations(self) -> int:
        """How many were answered as they should be."""
        return len(self.latencies_ms)

    @property
    def rate(self) -> float:
        """Answers a second."""
        return self.operations / self.seconds

    def percentile_ms(self, percent: int) -> float:
        """A percentile of the latencies."""
        if len(self.latencies_ms) < 2:
            return self.latencies_ms[0] if self.latencies_ms else 0.0
        return statistics.quantiles(self.latencies_ms, n=100)[percent - 1]


def mcp_request(
    url: str, method: str, params: dict[str, Any], *, capabilities: dict[str, Any] | None = None, token: str | None = None
) -> bytes:
    """One request of MCP as the bytes of HTTP/1.1."""
    headers, body = write_request(
        method, params, request_id=1, capabilities=TASKS if capabilities is None else capabilities,
        client_info={"name": "bench", "version": "1"},
    )  # fmt: skip
    authorization = {} if token is None else {"Authorization": f"Bearer {token}"}
    return http_request(url, msgspec.json.encode(body), {**headers, **authorization})


def http_request(url: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    """A POST as bytes."""
    parts = urlsplit(url)
    lines = [f"POST {parts.path} HTTP/1.1", f"Host: {parts.netloc}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + _END + body


class _Connection(asyncio.Protocol):
    """One request after another, until it is told to stop."""

    def __init__(self, requests: Iterator[bytes], load: Load, is_right: Callable[[bytes | bytearray], bool]) -> None:
        self._requests = requests
        self._load = load
        self._is_right = is_right
        self._received = bytearray()
        self._wanted = 0
        self._sent_at = 0.0
        self._transport: asyncio.Transport
        self.stopping = False
        self.stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def send(self) -> None:
        request = None if self.stopping else next(self._requests, None)
        if request is None:
            if not self.stopped.done():
                self.stopped.set_result(None)
            return
        self._sent_at = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        if not self._wanted:
            end = received.find(_END)
            if end < 0:
                return
            start = received[:end].lower().find(_LENGTH) + len(_LENGTH)
            stop = received.find(b"\r", start)
            self._wanted = end + len(_END) + int(received[start : stop if stop > 0 else end])
        if len(received) < self._wanted:
            return
        if received.startswith(b"HTTP/1.1 200") and self._is_right(received):
            self._load.latencies_ms.append((time.perf_counter() - self._sent_at) * 1000)
            self._load.answer_bytes += self._wanted
        elif len(self._load.failures) < 100:
            self._load.failures.append(bytes(received[:2000]))
        received.clear()
        self._wanted = 0
        self.send()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.stopped.done():
            self._load.failures.append(f"connection lost: {error!r}".encode())
            self.stopped.set_result(None)


async def drive(
    url: str,
    requests: Iterator[bytes],
    *,
    connections: int,
    seconds: float,
    is_right: Callable[[bytes | bytearray], bool] = lambda _: True,
) -> Load:
    """Keeps `connections` requests under way for so long, or until there are no more. What is under way at the end is
    waited for and counted. Raises RuntimeError when an answer was not right."""
    loop = asyncio.get_running_loop()
    parts = urlsplit(url)
    load = Load(0.0, [], 0, [])
    opened = [
        (await loop.create_connection(lambda: _Connection(requests, load, is_right), str(parts.hostname), parts.port or 80))[1]
        for _ in range(connections)
    ]
    started = time.perf_counter()
    for each in opened:
        each.send()
    everyone = asyncio.ensure_future(asyncio.gather(*(each.stopped for each in opened)))
    await asyncio.wait({everyone}, timeout=seconds)
    for each in opened:
        each.stopping = True
    await asyncio.wait_for(everyone, _PATIENCE_SECONDS)
    load.seconds = time.perf_counter() - started
    for each in opened:
        each._transport.close()
    if load.failures:
        raise RuntimeError(f"{len(load.failures)} wrong answers, such as {load.failures[0]!r}")
    return load
