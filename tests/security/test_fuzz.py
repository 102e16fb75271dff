"""Bodies that nobody would send leave the bridge as it was. Security checklist H19, H20.

`make fuzz`, or `FUZZ_BODIES=1000000 pytest -s tests/security/test_fuzz.py`, sends as many; `FUZZ_SEED` sends the same again.
"""

import asyncio
import copy
import json
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from taskstore.v1 import tasks_pb2

from mcp_bridge.app import Bridge
from mcp_bridge.config import Config
from tests.bridge.client import PREFIX, TASKS, headers_for, meta
from tests.bridge.fake_store import FakeTaskStore

BODIES = int(os.environ.get("FUZZ_BODIES", "4000"))
SEED = int(os.environ.get("FUZZ_SEED", "0")) or random.randrange(2**32)
CONNECTIONS = 4
ROUTES = """
version: 1
tenants:
  dev:
    tools:
      - name: strict
        workflow: w
        task: required
        input_schema:
          type: object
          properties:
            region: {type: string, x-mcp-header: Region}
            items: {type: array, items: {type: string, pattern: "^(a+)+$"}}
          additionalProperties: false
"""
PIECES = [
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"null", b"true", b"NaN", b"Infinity", b"-0", b"1e999", b"1" * 700,
    b"\\u0000", b"\\ud800", b"\\u003a", b"\xff", b"\xc0\x80", b"\xef\xbb\xbf", b"\0", b"[" * 70, b'{"a":' * 70, b'"id":1',
    b'"jsonrpc":"2.0"', b'"params":{}', b'"_meta":null', b'"taskId":', b'"requestState":"x"', b"\r\n\r\n",
    b'"inputResponses":{"k":{"action":"accept"}}',
]  # fmt: skip


ODD: list[Any] = [
    None, True, 0, -1, 2**63, 10**300, 1.5, 1e308, "", "x", "x" * 5_000, "é\0", [], {}, [[]], [1] * 2_000, {"a": {}},
    {"$ref": "#"}, "2026-07-28", "strict", "tools/call", "io.modelcontextprotocol/tasks", {"action": "accept"},
    {str(n): n for n in range(300)},
]  # fmt: skip


class ForgetfulStore(FakeTaskStore):
    """Keeps nothing, so that what grows is the bridge's."""

    async def create_task(
        self, request: tasks_pb2.CreateTaskRequest, *, timeout_seconds: float = 10
    ) -> tasks_pb2.CreateTaskResponse:
        created = await super().create_task(request, timeout_seconds=timeout_seconds)
        for kept in (self.tasks, self.created, self.read, self._requests, self._ids):
            kept.clear()
        return created


def corpus() -> list[tuple[str, str | None, dict[str, Any]]]:
    """What is right: a method, the name that it repeats in a header, its parameters."""
    unknown = "00000000-0000-4000-8000-000000000000"
    call = {"name": "strict", "arguments": {"items": ["aaa"], "region": "x"}}
    return [
        ("server/discover", None, {}),
        ("tools/list", None, {"cursor": None}),
        ("tools/call", "strict", call),
        ("tools/call", "strict", {**call, "inputResponses": {"k": {"action": "accept"}}, "requestState": "x"}),
        ("tasks/get", unknown, {"taskId": unknown}),
        ("tasks/update", unknown, {"taskId": unknown, "inputResponses": {"k": {"action": "accept", "content": {"a": 1}}}}),
        ("tasks/cancel", unknown, {"taskId": unknown}),
        ("subscriptions/listen", None, {"notifications": {"taskIds": "x"}}),
        ("initialize", None, {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}}),
        ("notifications/cancelled", None, {"requestId": 1}),
    ]


class Mutator:
    """Makes of what is right what is almost right."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._corpus = corpus()

    def request(self) -> bytes:
        """One request of HTTP whose length is right, whatever its body is."""
        draw = self._draw
        method, name, params = copy.deepcopy(draw.choice(self._corpus))
        body: dict[str, Any] = {
            "jsonrpc": "2.0",
            "id": draw.choice([1, "a", 0]),
            "method": method,
            "params": {**params, "_meta": self._meta()},
        }
        for _ in range(draw.choice([0, 1, 1, 2, 4])):
            self._twist(body if draw.random() < 0.1 else body.get("params"))
        data = json.dumps(body, ensure_ascii=draw.random() < 0.5).encode(errors="replace")
        if draw.random() < 0.3:
            data = self._mangle(data)
        region = "x" if name == "strict" and draw.random() < 0.9 else None
        fields = headers_for(method, name, Host="localhost", Mcp_Param_Region=region, Content_Length=str(len(data)))
        head = "".join(f"{key}: {value}\r\n" for key, value in fields.items())
        return f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + data

    def _meta(self) -> Any:
        if self._draw.random() < 0.8:  # else little would come as far as a method
            return meta(TASKS)
        return self._draw.choice([meta(), {}, None, {PREFIX + "protocolVersion": 5}, meta({"extensions": []})])

    def _twist(self, value: Any) -> None:
        """Puts something odd somewhere into it, leaves something out, or calls it something else."""
        draw = self._draw
        while isinstance(value, dict | list) and value:
            key = draw.choice(list(value) if isinstance(value, dict) else range(len(value)))
            if not isinstance(value[key], dict | list) or not value[key] or draw.random() < 0.3:
                break
            value = value[key]
        else:
            return
        odd = copy.deepcopy(draw.choice(ODD))
        match draw.randrange(4):
            case 0 if isinstance(value, dict):
                value[str(odd)[:100]] = value.pop(key)
            case 1:
                del value[key]
            case _:
                value[key] = odd

    def _mangle(self, data: bytes) -> bytes:
        draw, found = self._draw, bytearray(data)
        for _ in range(draw.choice([1, 1, 2, 3, 8])):
            at, end = sorted((draw.randrange(len(found) + 1), draw.randrange(len(found) + 1)))
            match draw.randrange(6):
                case 0:
                    found[at:at] = draw.choice(PIECES)
                case 1:
                    found[at : at + 1] = draw.randbytes(1)
                case 2:
                    del found[at : min(end, at + 20)]
                case 3:
                    found[at:at] = found[at : min(end, at + 60)]
                case 4:
                    del found[at:]
                case _:
                    found[at:end] = draw.choice(PIECES)
        return bytes(found)


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, bytes | None]:
    """The status and the body of the next answer; None for one that is a stream."""
    head = await reader.readuntil(b"\r\n\r\n")
    status, lower = int(head.split(b" ", 2)[1]), head.lower()
    if b"text/event-stream" in lower:
        return status, None
    return status, await reader.readexactly(int(lower.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0))


async def send_all(port: int, count: int, seed: int, seen: Counter[str]) -> None:
    """Sends so many requests, one after the other, on as few connections as the bridge lets it. Streams are left at once."""
    mutator, writer = Mutator(seed), None
    for _ in range(count):
        request = mutator.request()
        if writer is None or writer.is_closing():
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        try:
            async with asyncio.timeout(60):
                status, body = await answer_of(reader)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise AssertionError(f"not answered: {request!r}") from error
        code = json.loads(body).get("error", {}).get("code", "OK") if body else "none" if body is not None else "stream"
        seen[f"{status} {code}"] += 1
        assert status < 500, (status, body, request)
        assert code != -32603, (body, request)
        if body is None or reader.at_eof():
            writer.close()
    if writer is not None:
        writer.close()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.row("H19", "H20")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc (2026-11-29)")
async def test_bodies_that_nobody_would_send_leave_the_bridge_as_it_was(tmp_path: Path) -> None:
    routes = tmp_path / "routes.yaml"
    routes.write_text(ROUTES)
    bridge = Bridge(Config(routes=str(routes), port=0, admin_port=0, drain_seconds=0), connect=lambda _: ForgetfulStore())
    await bridge.start()
    seen: Counter[str] = Counter()
    started = time.monotonic()

    async def send(count: int, seed: int) -> None:
        await asyncio.gather(*(send_all(bridge.port, count // CONNECTIONS, seed + n, seen) for n in range(CONNECTIONS)))

    await send(BODIES // 4, SEED)
    before = resident_bytes()
    await send(BODIES - BODIES // 4, SEED + CONNECTIONS)
    grown = resident_bytes() - before
    seconds = time.monotonic() - started
    await bridge.stop()
    print(f"\nseed {SEED}: {seen.total()} bodies in {seconds:.0f} s, {grown / 2**20:+.1f} MiB, {dict(seen.most_common())}")
    assert {"200 OK", "400 -32700", "400 -32600", "400 -32602"} <= set(seen)
    assert grown < 64 * 2**20, f"{grown} bytes more after {BODIES} bodies"
