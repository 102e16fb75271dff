"""P10: two thousand open subscriptions: the memory of each, and how long after a change its clients are told."""

import asyncio
import resource
import time
from contextlib import AsyncExitStack
from typing import Final

import grpc.aio
from taskstore.v1 import leases_pb2_grpc, types_pb2

from store_service.operations.watches import WATCH_POLL_SECONDS
from tests.benchmarks.figures import Figure, Target, percentile
from tests.benchmarks.plan import Plan
from tests.benchmarks.world import World
from tests.bridge.listening import Stream
from tests.store.builders import report
from tests.system import subscriptions

PRINCIPALS: Final = 100
EACH: Final = 20


async def p10(world: World, plan: Plan) -> list[Figure]:
    """As `make subscriptions` has it, with readers alone; the pair is one whose bridge knows its callers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8_192)), hard))
    folder = world.folder / "subscriptions"
    crowd_plan = subscriptions.Plan(
        principals=10 if plan.is_quick else PRINCIPALS, readers=EACH, slow=0, leaving=0, rounds=plan.rounds
    )
    with subscriptions.authorized_pair(folder) as pair:
        crowd = _Crowd(pair, folder, crowd_plan)
        figures = await crowd.run()
    memory = Figure(
        "P10", f"memory of one of {crowd_plan.streams:,} idle subscriptions", "", "itself", Target("at most", 40, " KB"), "KB",
        [figures.idle_bytes(crowd_plan.streams) / 1000],
    )  # fmt: skip
    cadence_ms = WATCH_POLL_SECONDS * 1000
    delay = Figure(
        "P10", "p99 from a change to its snapshot", "", "itself", Target("at most", cadence_ms, " ms"), "ms",
        [percentile(each, 99) for each in crowd.delays_ms],
    )  # fmt: skip
    delay.details = {"p50 ms": [percentile(each, 50) for each in crowd.delays_ms], "resident bytes": figures.resident_bytes}
    return [memory, delay]


class _Crowd(subscriptions.Crowd):
    """All listen, and each task changes in turn."""

    delays_ms: list[list[float]]

    async def run(self) -> subscriptions.Figures:
        self.delays_ms = []
        await self._create_tasks()
        await self._open_and_close_once()
        await self._note("before")
        async with AsyncExitStack() as stack, grpc.aio.insecure_channel(self._pair.store_address) as channel:
            streams = await self._open(stack, EACH)
            for stream in streams:
                await stream.frame()  # the task as it stands
            await self._note("idle")
            leases: leases_pb2_grpc.LeaseServiceAsyncStub = leases_pb2_grpc.LeaseServiceStub(channel)
            held = await self._lease(leases)
            for number in range(self._plan.rounds):
                self.delays_ms.append([])
                for lease in held:
                    first = self._tasks.index(lease.task_id) * EACH
                    self.delays_ms[-1] += await self._change_one(leases, lease, streams[first : first + EACH], number)
        return self.figures

    async def _change_one(
        self, leases: "leases_pb2_grpc.LeaseServiceAsyncStub", lease: types_pb2.Lease, streams: list[Stream], number: int
    ) -> list[float]:
        """Milliseconds from before the worker's report until each stream has told it."""
        sent = report(lease, number)
        sent.message = f"{number} round"

        async def told(stream: Stream) -> float:
            while not (await stream.frame())["params"].get("statusMessage", "").startswith(f"{number} "):
                pass
            return (time.perf_counter() - began) * 1000

        waiting = [asyncio.create_task(told(stream)) for stream in streams]
        began = time.perf_counter()
        await leases.ReportProgress(sent)
        return list(await asyncio.gather(*waiting))
