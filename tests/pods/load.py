"""Clients that call a tool all the time, and count what they see."""

import asyncio
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

from mcp_bridge.client import ClientError, Policy, TaskClient
from mcp_bridge.client.transport import write_request

TASKS: Final = 4
"""Clients that know Tasks: they get a handle, and look until the work is done."""
HELD: Final = 2
"""Clients that do not: their call is held until the work is done."""
NAMES: Final = ["Ann", "Bob", "Cid"]
SECONDS: Final = 0.3
"""How long each greeting takes."""
GREETINGS: Final = "\n".join(f"Hello, {name}!" for name in NAMES)
DEADLINE: Final = timedelta(seconds=120)


@dataclass
class Counts:
    """What the clients have seen."""

    right: int = 0
    failed: list[str] = field(default_factory=list)
    repeated: int = 0
    """Requests that a client sent again, by its policy."""
    longest_seconds: float = 0.0
    bare: int = 0
    """Requests of the client that repeats nothing."""
    bare_failed: list[str] = field(default_factory=list)

    def told(self) -> str:
        """In one line."""
        return (
            f"{self.right} calls right, {len(self.failed)} failed, {self.repeated} requests repeated by the clients, "
            f"longest call {self.longest_seconds:.1f} s; of {self.bare} bare requests {len(self.bare_failed)} failed"
        )


@dataclass(frozen=True, kw_only=True)
class CountingPolicy(Policy):
    """The usual policy; it counts how often a client asks how long to wait before it repeats a request."""

    counts: Counts

    def backoff(self, attempt: int, *, spread: Callable[[], float] = random.random) -> float:
        self.counts.repeated += 1
        return Policy.backoff(self, attempt, spread=spread)


class Load:
    """Clients at work. Use it as a context; it ends when the calls under way have ended."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._counts = Counts()
        self._is_ending = False
        self._ended = [0] * (HELD + TASKS)
        self._clients: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        calling = [self._call(number, {} if number < HELD else None) for number in range(HELD + TASKS)]
        self._clients = [asyncio.create_task(each) for each in (*calling, self._ask_barely())]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._is_ending = True
        if error is not None:
            for client in self._clients:
                client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=error is not None)

    def take(self) -> Counts:
        """What was counted since the last time."""
        counts = replace(self._counts)
        vars(self._counts).update(vars(Counts()))
        return counts

    async def wait_rounds(self, more: int) -> None:
        """Until each client has ended that many more calls, with the one that it is at."""
        wanted = [ended + more for ended in self._ended]
        async with asyncio.timeout(2 * DEADLINE.total_seconds()):
            while any(ended < want for ended, want in zip(self._ended, wanted, strict=True)):
                await asyncio.sleep(0.1)

    async def _call(self, number: int, capabilities: dict[str, Any] | None) -> None:
        policy = CountingPolicy(counts=self._counts)
        async with TaskClient(self._url, capabilities=capabilities, policy=policy) as client:
            while not self._is_ending:
                began = time.monotonic()
                try:
                    result = await client.call_tool(
                        "greet_all", {"names": NAMES, "seconds": SECONDS}, idempotency_key=str(uuid.uuid4()), deadline=DEADLINE
                    )
                except ClientError as error:
                    self._counts.failed.append(f"{type(error).__name__}: {error}")
                else:
                    if result.text == GREETINGS:
                        self._counts.right += 1
                    else:
                        self._counts.failed.append(f"another answer: {result.text}")
                self._ended[number] += 1
                self._counts.longest_seconds = max(self._counts.longest_seconds, time.monotonic() - began)

    async def _ask_barely(self) -> None:
        """Ten times a second, each time by a connection of its own."""
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=10)) as session:
            while not self._is_ending:
                headers, body = write_request(
                    "tools/list", {}, request_id=1, capabilities={}, client_info={"name": "bare", "version": "1"}
                )
                self._counts.bare += 1
                try:
                    async with session.post(self._url, json=body, headers=headers) as response:
                        answer = await response.text()
                        if response.status != 200 or "greet_all" not in answer:
                            self._counts.bare_failed.append(f"{response.status} {answer[:200]}")
                except (aiohttp.ClientError, TimeoutError) as error:
                    self._counts.bare_failed.append(repr(error))
                await asyncio.sleep(0.1)
