"""A client that listens: one stream, read frame by frame."""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from taskstore.v1 import types_pb2

from mcp_bridge.app import Bridge
from tests.bridge.client import PREFIX, TASKS, Client, headers_for, meta
from tests.conftest import Stubs, bridge_on, started
from tests.pair import metrics_at
from tests.store.builders import claim

SUBSCRIPTION_ID = PREFIX + "subscriptionId"
PATIENCE_SECONDS = 60
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


ASKS = {**TASKS, "elicitation": {}}
FORM = b'{"message":"Go?","requestedSchema":{"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"]}}'
YES = {"a": {"action": "accept", "content": {"ok": True}}}


def bridging(store_address: str, routes: Path, **settings: Any) -> AbstractAsyncContextManager[Bridge]:
    """A bridge over a store."""
    return started(bridge_on(routes, store=store_address, drain_seconds=5, **settings))


async def create(user: Client, **arguments: Any) -> str:
    """Creates a task and returns its id."""
    task_id = (await user.call("work", arguments, tasks=True)).result["taskId"]
    assert isinstance(task_id, str)
    return task_id


async def lease(store: Stubs) -> types_pb2.Lease:
    """Takes the one task that is ready."""
    (leased,) = (await store.leases.LeaseTasks(claim(workflow="work", limit=1))).tasks
    return leased.lease


async def shown(user: Client, task_id: str) -> dict[str, Any]:
    """What a subscription would tell of the task now: what `tasks/get` answers, without what every result has."""
    result = (await user.task("get", task_id, capabilities=ASKS)).result
    return {name: value for name, value in result.items() if name not in ("resultType", "_meta")}


async def told(stream: Stream, request_id: Any = 1) -> dict[str, Any]:
    """The task that the next frame tells of."""
    frame = await stream.frame()
    assert (frame["jsonrpc"], frame["method"], "id" in frame) == ("2.0", "notifications/tasks", False)
    meta = frame["params"].pop("_meta")
    assert meta == {SUBSCRIPTION_ID: request_id}
    task = frame["params"]
    assert isinstance(task, dict)
    return task


async def acknowledged(stream: Stream, request_id: Any = 1) -> dict[str, Any]:
    """What the acknowledgement agrees to, which must be the next frame."""
    frame = await stream.frame()
    assert frame["method"] == "notifications/subscriptions/acknowledged"
    assert frame["params"]["_meta"] == {SUBSCRIPTION_ID: request_id}
    agreed = frame["params"]["notifications"]
    assert isinstance(agreed, dict)
    return agreed


def is_end(frame: dict[str, Any], request_id: Any = 1) -> bool:
    """Whether a frame is the answer to the request itself, and as it should be."""
    meta = frame["result"].pop("_meta")
    assert set(meta) == {SUBSCRIPTION_ID, "io.modelcontextprotocol/serverInfo"}
    assert (type(meta[SUBSCRIPTION_ID]), meta[SUBSCRIPTION_ID]) == (type(request_id), request_id)
    return frame == {"jsonrpc": "2.0", "id": request_id, "result": {"resultType": "complete"}}


def timeless(task: dict[str, Any]) -> dict[str, Any]:
    """A task without what depends on when a live one is looked at."""
    return {name: value for name, value in task.items() if name not in ("ttlMs", "pollIntervalMs")}


async def figure(port: int, name: str) -> float:
    """One of a process's own figures."""
    found = re.search(rf"^{name} (\S+)$", await asyncio.to_thread(metrics_at, port), re.MULTILINE)
    assert found is not None, name
    return float(found[1])
