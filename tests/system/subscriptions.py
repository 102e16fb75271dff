"""Many subscriptions of many principals for tasks that change, with clients that read, that do not, and that go without a word.

Nothing here depends on how fast the machine is: each round waits until all who read have seen it.
"""

import asyncio
import base64
import socket
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc.aio
from taskstore.v1 import leases_pb2_grpc, types_pb2

from mcp_bridge.client import Policy, TaskClient, TaskHandle
from mcp_bridge.development import Trial, issue_token
from tests.bridge.listening import Stream, listening
from tests.pair import Pair
from tests.store.builders import claim, complete, report

TENANT: Final = "load"
PUBLIC_URL: Final = "http://127.0.0.1:8080"
ROUTES: Final = f"""
version: 1
tenants:
  {TENANT}:
    limits: {{streams: 100000, requests_per_second: 100000}}
    caller_limits: {{requests_per_second: 10000, streams: 1000}}
    grants: {{call: anyone}}
    tools:
      - {{name: work, workflow: work, task: required, input_schema: {{type: object}}}}
"""
TCP_REPAIR: Final = 19
MESSAGE: Final = "x" * 1_000


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How many of what. Each principal has one task, and so many streams that listen to it."""

    principals: int
    readers: int
    """Streams of each principal that read all."""
    slow: int = 2
    """Those that read nothing until the end."""
    leaving: int = 2
    """Those that go in each round, and come again: by turns with a reset, with a close, and without a word."""
    rounds: int = 10
    reports: int = 16
    """So many changes of each task in each round, one after the other, whoever has read them."""

    @property
    def streams(self) -> int:
        """Those of all principals."""
        return self.principals * (self.readers + self.slow + self.leaving)


@dataclass
class Figures:
    """What was measured at the bridge."""

    resident_bytes: dict[str, int] = field(default_factory=dict)
    """By moment."""
    descriptors: dict[str, int] = field(default_factory=dict)
    changes: int = 0
    """Of each task."""
    slow_snapshots: list[int] = field(default_factory=list)
    """So many each of those saw who read at the end; those that were given up meanwhile are left out."""
    coalesced: int = 0

    def idle_bytes(self, streams: int) -> int:
        """What one subscription takes that is told nothing."""
        return (self.resident_bytes["idle"] - self.resident_bytes["before"]) // streams


@contextmanager
def authorized_pair(folder: Path, **settings: str) -> Iterator[Pair]:
    """A pair whose bridge knows its principals by their tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    routes = folder / "routes.yaml"
    routes.write_text(ROUTES)
    token_of(folder, "nobody")
    believing = {
        "TENURE_BRIDGE_ISSUERS": str(folder / "issuer" / "issuers.yaml"),
        "TENURE_BRIDGE_PUBLIC_URL": PUBLIC_URL,
        "TENURE_BRIDGE_STATE_KEYS": base64.b64encode(bytes(32)).decode(),
        "TENURE_BRIDGE_STREAMS_PER_PRINCIPAL": "100",  # those that left and were not noticed yet count too
        "TENURE_LOG_LEVEL": "warning",
    }
    with Pair(folder, routes=routes, durable=False, bridge_settings={**believing, **settings}) as pair:
        yield pair


def token_of(folder: Path, subject: str) -> str:
    """A token of one principal."""
    trial = Trial(tenant=TENANT, subject=subject, scopes=(), groups=(), audience=f"{PUBLIC_URL}/mcp", minutes=600)
    return issue_token(folder / "issuer", trial)


class Crowd:
    """All clients of one bridge."""

    def __init__(self, pair: Pair, folder: Path, plan: Plan) -> None:
        self._pair = pair
        self._plan = plan
        self._port = int(pair.url.rpartition(":")[2].partition("/")[0])
        self._tokens = [token_of(folder, f"p{number}") for number in range(plan.principals)]
        self._tasks: list[str] = []
        self.figures = Figures()

    async def run(self) -> Figures:
        """Opens everything, lets the tasks change, and closes everything."""
        await self._create_tasks()
        await self._open_and_close_once()
        await self._note("before")
        async with AsyncExitStack() as stack, grpc.aio.insecure_channel(self._pair.store_address) as channel:
            readers = await self._open(stack, self._plan.readers)
            slow = await self._open(stack, self._plan.slow, receive_bytes=4096)
            leaving = await self._open(stack, self._plan.leaving)
            for stream in (*readers, *leaving):
                await stream.frame()  # the task as it stands
            await self._note("idle")
            leases = leases_pb2_grpc.LeaseServiceStub(channel)
            held = await self._lease(leases)
            number = 0
            while number < self._plan.rounds or await self._was_all_told(number):
                leaving = await self._come_and_go(stack, leaving, number)
                await asyncio.gather(*(self._change(leases, lease, number) for lease in held))
                await asyncio.gather(*(_seen(stream, _last_of(self._plan, number)) for stream in readers))
                if number in (self._plan.rounds // 3, self._plan.rounds - 1):
                    await self._note(f"round {number}")
                number += 1
            await asyncio.gather(*(leases.CompleteTask(complete(lease, b'{"content":[]}')) for lease in held))
            await asyncio.gather(*(_ended(stream) for stream in readers))
            self.figures.changes = number * self._plan.reports + 3
            self.figures.slow_snapshots = [count for count in [await _read_late(stream) for stream in slow] if count]
            self.figures.coalesced = int(await self._figure("tenure_bridge_snapshots_coalesced_total"))
        await self._until_alone()
        await self._note("after")
        async with AsyncExitStack() as stack:
            await self._open(stack, self._plan.readers + self._plan.slow + self._plan.leaving, tools=True)
            await self._note("idle again")
        await self._until_alone()
        return self.figures

    async def _was_all_told(self, rounds: int) -> bool:
        """Whether no snapshot was skipped for those who do not read: where the store leaves out many, more rounds fit on the
        way to them. It ends some time."""
        return rounds < 10 * self._plan.rounds and not await self._figure("tenure_bridge_snapshots_coalesced_total")

    async def _change(self, leases: "leases_pb2_grpc.LeaseServiceAsyncStub", lease: types_pb2.Lease, number: int) -> None:
        for value in range(self._plan.reports):
            sent = report(lease, number * self._plan.reports + value)
            sent.message = f"{sent.value:g} {MESSAGE}"
            await leases.ReportProgress(sent)

    async def _create_tasks(self) -> None:
        for token in self._tokens:
            async with TaskClient(self._pair.url, token=token, policy=Policy()) as client:
                handle = await client.call_tool_outcome("work")
                assert isinstance(handle, TaskHandle)
                self._tasks.append(handle.task_id)

    async def _open(self, stack: AsyncExitStack, each: int, **settings: Any) -> list[Stream]:
        """So many streams for each principal; all are acknowledged."""
        return [await self._open_one(stack, number, **settings) for number in range(self._plan.principals) for _ in range(each)]

    async def _open_one(self, stack: AsyncExitStack, number: int, **settings: Any) -> Stream:
        wanted = listening(self._port, self._tasks[number], token=self._tokens[number], **settings)
        stream = await stack.enter_async_context(wanted)
        assert (await stream.frame())["method"] == "notifications/subscriptions/acknowledged"
        return stream

    async def _open_and_close_once(self) -> None:
        """Lets the bridge load what it needs for its first streams."""
        async with AsyncExitStack() as stack:
            for stream in await self._open(stack, 1):
                await stream.frame()
        await self._until_alone()

    async def _come_and_go(self, stack: AsyncExitStack, leaving: Sequence[Stream], number: int) -> list[Stream]:
        """They go, each in its way, and come again; some before their last stream is noticed to be gone."""
        for position, stream in enumerate(leaving):
            (_reset, _close, _vanish)[(position + number) % 3](stream)
        return [await self._open_one(stack, position // self._plan.leaving) for position in range(len(leaving))]

    async def _lease(self, leases: "leases_pb2_grpc.LeaseServiceAsyncStub") -> list[types_pb2.Lease]:
        """Every task is taken, for long enough."""
        held: list[types_pb2.Lease] = []
        while len(held) < self._plan.principals:
            wanted = claim(workflow="work", limit=100, lease_ms=900_000, wait_ms=5_000)
            held += [task.lease for task in (await leases.LeaseTasks(wanted)).tasks]
        return held

    async def _until_alone(self) -> None:
        """Waits until the bridge has noticed that everybody left."""
        async with asyncio.timeout(120):
            while await self._figure("tenure_bridge_subscriptions"):
                await asyncio.sleep(0.1)

    async def _note(self, moment: str) -> None:
        self.figures.resident_bytes[moment] = int(await self._figure("process_resident_memory_bytes"))
        self.figures.descriptors[moment] = int(await self._figure("process_open_fds"))

    async def _figure(self, name: str) -> float:
        return await asyncio.to_thread(self._pair.figure, name)


def _last_of(plan: Plan, number: int) -> str:
    """How the message of a round's last report begins."""
    return f"{(number + 1) * plan.reports - 1} "


async def _seen(stream: Stream, start: str) -> None:
    """Reads until a snapshot has a message that begins so."""
    while not (await stream.frame())["params"].get("statusMessage", "").startswith(start):
        pass


async def _ended(stream: Stream) -> None:
    """The last snapshot, the answer, and nothing more."""
    task, answer = await stream.rest()
    assert task["params"]["status"] == "completed"
    assert answer["result"]["resultType"] == "complete"


def _reset(stream: Stream) -> None:
    stream.reset()


def _close(stream: Stream) -> None:
    stream.writer.close()


def _vanish(stream: Stream) -> None:
    """Goes without a word, as far as this may be asked of the kernel: nothing is sent, and what comes is not expected."""
    connection = stream.writer.get_extra_info("socket")
    try:
        connection.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    except OSError:  # it takes a privilege
        stream.reset()
    else:
        stream.writer.transport.abort()


async def _read_late(stream: Stream) -> int:
    """How many snapshots one sees who reads only now; 0 for one that was given up."""
    try:
        *snapshots, answer = await stream.rest()
    except (ConnectionError, asyncio.IncompleteReadError):
        return 0
    assert snapshots[-1]["params"]["status"] == "completed"
    assert answer["result"]["resultType"] == "complete"
    return len(snapshots)
