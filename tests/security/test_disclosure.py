"""Whether there is a task that is not the caller's cannot be told, not by its answer and not by how long it takes. T5.

`SECURITY_SAMPLES=2000 pytest tests/security/test_disclosure.py`, or `make disclosure`, takes as many of each kind.
"""

import asyncio
import json
import os
import random
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from taskstore.v1 import tasks_pb2, types_pb2

from mcp_bridge.app import Bridge
from mcp_bridge.config import Config
from tests.bridge.client import TASKS, headers_for, meta
from tests.conftest import Clock, Stubs, started
from tests.security.authority import ISSUER, Authority
from tests.security.conftest import ROUTES
from tests.store.builders import DAY_MS, cancel, set_policy
from tests.store.retention import remove

SAMPLES = int(os.environ.get("SECURITY_SAMPLES", "60"))
LEAST_SECONDS = 0.0002  # less is not seen from outside
POLLS_PER_ID = 10  # so many are answered at once
AS_BEFORE = "{requests_per_second: 100000, creates_per_second: 100000, body_bytes_per_second: 1000000000}"
NOT_FOUND = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"Task not found"}}'


@pytest.fixture
async def real(config: Config, store: Stubs) -> AsyncIterator[Bridge]:
    """A bridge over the real store that lets everybody ask as fast as it can answer."""
    unlimited = f"    limits: {AS_BEFORE}\n    caller_limits: {AS_BEFORE}\n"
    Path(config.routes).write_text(ROUTES.replace("  beta:\n", f"{unlimited}  beta:\n"))
    async with started(Bridge(replace(config, store=store.address))) as running:
        yield running


async def ids_of(store: Stubs, count: int, *, tenant: str = "acme", subject: str = "ann") -> list[str]:
    """Tasks of somebody."""
    items = [
        tasks_pb2.CreateTaskRequest(
            tenant_id=tenant,
            request_id=str(uuid4()),
            contract=types_pb2.TaskContract(
                tool="report",
                workflow="nobody",
                workflow_version=1,
                owner=types_pb2.Owner(issuer=ISSUER, subject=subject),
                ttl_ms=1000,
            ),
            input=types_pb2.Payload(data=b"{}"),
        )
        for _ in range(count)
    ]
    created = await store.tasks.CreateTasks(tasks_pb2.CreateTasksRequest(items=items))
    return [item.created.task.task_id for item in created.items]


async def everything_that_is_not_anns(store: Stubs, clock: Clock, count: int) -> dict[str, list[str]]:
    """Ids of each kind that ann must not learn anything of."""
    await set_policy(store, tenant_id="acme", retention_ms=DAY_MS)
    removed = await ids_of(store, count)
    for task_id in removed:
        await store.tasks.CancelTask(cancel(task_id, tenant_id="acme"))
    await clock.advance(seconds=2 * 86_400)
    while await remove(store, tenant_id="acme"):
        pass
    expired = await ids_of(store, count)
    for task_id in expired:
        await store.tasks.CancelTask(cancel(task_id, tenant_id="acme"))
    await clock.advance(seconds=2)
    return {
        "unknown": [str(uuid4()) for _ in range(count)],
        "malformed": [f"{uuid4().hex}..." for _ in range(count)],
        "foreign owner": await ids_of(store, count, subject="eve"),
        "foreign tenant": await ids_of(store, count, tenant="beta"),
        "expired": expired,
        "removed": removed,
    }


class Connection:
    """One connection on which a user asks, one request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> None:
        self._reader = reader
        self._writer = writer
        self._token = token

    def request(self, action: str, task_id: str) -> bytes:
        params = {"taskId": task_id, "_meta": meta(TASKS), **({"inputResponses": {}} if action == "update" else {})}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": f"tasks/{action}", "params": params}).encode()
        fields = headers_for(f"tasks/{action}", task_id, Host="localhost", Authorization=f"Bearer {self._token}")
        head = "".join(f"{name}: {value}\r\n" for name, value in {**fields, "Content-Length": str(len(body))}.items())
        return f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + body

    async def ask(self, request: bytes) -> tuple[float, bytes]:
        """How long the answer took, in seconds, and all of it but its date."""
        started = time.perf_counter()
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        body = await self._reader.readexactly(length)
        seconds = time.perf_counter() - started
        return seconds, b"\r\n".join(line for line in head.split(b"\r\n") if not line.startswith(b"Date:")) + body

    def close(self) -> None:
        self._writer.close()


def superiority(these: Sequence[float], those: Sequence[float]) -> float:
    """How probable it is that one of these is above one of those: 0.5 if nothing tells them apart."""
    ranked = sorted([(value, True) for value in these] + [(value, False) for value in those])
    rank_sum = sum(rank for rank, (_, is_of_these) in enumerate(ranked, start=1) if is_of_these)
    return (rank_sum - len(these) * (len(these) + 1) / 2) / (len(these) * len(those))


def typical(values: Sequence[float]) -> float:
    """The mean without the tenth that took longest."""
    return statistics.fmean(sorted(values)[: max(1, len(values) * 9 // 10)])


def differ(these: Sequence[float], those: Sequence[float]) -> bool:
    """Whether two samples are told apart: by more than chance, a twentieth of what they take, and 0.2 ms."""
    chance = 4 / (12 * min(len(these), len(those)) / 2) ** 0.5  # four standard deviations of the superiority
    by_rank = abs(superiority(these, those) - 0.5) > 0.05 + chance
    apart_seconds = abs(typical(these) - typical(those))
    return by_rank and apart_seconds > max(0.05 * typical(those), LEAST_SECONDS)


@pytest.mark.row("T5", "T6")
@pytest.mark.parametrize("action", ["get", "update", "cancel"])
@pytest.mark.parametrize("groups", [(), ("auditors",)], ids=["user", "auditor"])
async def test_what_is_not_the_callers_is_answered_alike_and_takes_as_long(
    real: Bridge, authority: Authority, store: Stubs, clock: Clock, action: str, groups: Sequence[str]
) -> None:
    """Also for somebody who may read everybody's tasks, of another tool."""
    kinds = await everything_that_is_not_anns(store, clock, -(-SAMPLES // POLLS_PER_ID))
    reader, writer = await asyncio.open_connection("127.0.0.1", real.port)
    ann = Connection(reader, writer, authority.token(sub="ann", groups=list(groups), expires_in=3600))
    took: dict[str, list[float]] = {kind: [] for kind in kinds}
    seen = set()
    for number in range(-5, SAMPLES):
        for kind in random.sample(sorted(kinds), len(kinds)):
            seconds, answer = await ann.ask(ann.request(action, kinds[kind][number % len(kinds[kind])]))
            seen.add(answer)
            if number >= 0:
                took[kind].append(seconds)
    ann.close()
    assert {answer.partition(b"\r\n")[0] for answer in seen} == {b"HTTP/1.1 400 Bad Request"}
    assert {answer[answer.index(b"{") :] for answer in seen} == {NOT_FOUND}
    assert len(seen) == 1
    told = {
        kind: (round(superiority(took[kind], took["unknown"]), 3), f"{typical(took[kind]) * 1000:.3f} ms") for kind in kinds
    }
    print(action, told)
    assert not [kind for kind in kinds if differ(took[kind], took["unknown"])], told


def test_two_samples_are_told_apart_only_if_they_differ() -> None:
    draw = random.Random(5)

    def sample(mean: float, count: int = 1000, *, of_seconds: float = 1) -> list[float]:
        return [(draw.gauss(mean, 0.2) + (draw.random() < 0.02) * 20) * of_seconds for _ in range(count)]

    assert not any(differ(sample(1), sample(1)) for _ in range(20))
    assert not differ(sample(1.01), sample(1))
    assert all(differ(sample(1.2), sample(1)) for _ in range(20))
    assert differ(sample(0.5, 60), sample(1, 60))
    assert not differ(sample(1.15, of_seconds=0.001), sample(1, of_seconds=0.001))
    assert differ(sample(1.25, of_seconds=0.001), sample(1, of_seconds=0.001))
