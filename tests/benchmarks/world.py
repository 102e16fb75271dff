"""Tenure as it is deployed, with its usual settings, and what the benchmarks do to it by gRPC."""

import asyncio
import contextlib
import itertools
import shutil
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Final
from uuid import uuid4

import asyncpg
import grpc
import grpc.aio
from taskstore.v1 import leases_pb2, leases_pb2_grpc, tasks_pb2, tasks_pb2_grpc, tenants_pb2, tenants_pb2_grpc, types_pb2

from tests.benchmarks.machine import Usage, usage
from tests.benchmarks.profile import Profile
from tests.pair import ROOT, Pair, Process, free_ports

TENANT: Final = "dev"
OWNER: Final = types_pb2.Owner(issuer="dev", subject="dev")
BATCH: Final = 100
_LIMITS: Final = [("grpc.max_receive_message_length", 6 * 2**20), ("grpc.max_send_message_length", 6 * 2**20)]


class World:
    """One pair with a database of its own, and its parts as processes."""

    def __init__(self, pair: Pair, folder: Path, profile: Profile | None = None) -> None:
        self.pair = pair
        self._profile = profile
        if profile is not None:
            profile.watch(pair.bridge)
            profile.watch(pair.store)
        self._folder = folder
        self._others: list[Process] = []

    @property
    def dsn(self) -> str:
        """Where Postgres is."""
        return self.pair.postgres.dsn

    def start(self, name: str, module: str, *arguments: str) -> Process:
        """Starts a program of the benchmarks beside the pair: `python -m MODULE ARGUMENTS`."""
        process = Process(name, ["-m", module, *arguments], environment={}, log=self._folder / f"{name}.log")
        self._others.append(process)
        return process

    def start_worker(self, name: str = "worker") -> Process:
        """Starts a worker that has nothing to do for its tasks."""
        process = self.start(name, "tests.benchmarks.programs.worker", self.pair.store_address, name)
        if self._profile is not None:
            self._profile.watch(process)
        return process

    def stop(self, process: Process) -> None:
        """Ends a program."""
        self._others.remove(process)
        process.stop()

    def stop_others(self) -> None:
        """Ends every program that is beside the pair."""
        if self._profile is not None:
            self._profile.stop()
        for process in reversed(self._others):
            process.stop()
        self._others.clear()

    async def postmaster(self) -> int:
        """The process id of Postgres."""
        connection = await asyncpg.connect(self.dsn)
        backend = await connection.fetchval("SELECT pg_backend_pid()")
        parent = int(Path(f"/proc/{backend}/stat").read_text().rpartition(")")[2].split()[1])
        await connection.close()
        return parent

    async def meter(self, **others: Process) -> "Meter":
        """Tells what each part of the pair takes, and these processes."""
        processes = {"bridge": self.pair.bridge.pid, "store": self.pair.store.pid, "postgres": await self.postmaster()}
        return Meter({**processes, **{name: process.pid for name, process in others.items()}})


class Meter:
    """CPU of some processes between two looks."""

    def __init__(self, processes: dict[str, int]) -> None:
        self._processes = processes
        self._before: Usage = usage(processes)

    def start(self) -> None:
        """The first look."""
        self._before = usage(self._processes)

    def stop(self, operations: int) -> dict[str, float]:
        """Microseconds of CPU for each operation since the first look."""
        return usage(self._processes).since(self._before, operations)


class Api:
    """The store's API, and what is asked of it again and again."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.tasks: tasks_pb2_grpc.TaskServiceAsyncStub = tasks_pb2_grpc.TaskServiceStub(channel)
        self.leases: leases_pb2_grpc.LeaseServiceAsyncStub = leases_pb2_grpc.LeaseServiceStub(channel)
        self.tenants: tenants_pb2_grpc.TenantServiceAsyncStub = tenants_pb2_grpc.TenantServiceStub(channel)

    async def lift_limits(self, tenant_id: str = TENANT) -> None:
        """Lets a tenant have as many tasks as a benchmark needs."""
        policy = tenants_pb2.TenantPolicy(max_outstanding=10_000_000, max_leased=10_000, retention_ms=86_400_000)
        await self.tenants.SetTenantPolicy(tenants_pb2.SetTenantPolicyRequest(tenant_id=tenant_id, policy=policy))

    async def outstanding(self, tenant_id: str = TENANT) -> int:
        """How many tasks of a tenant have not ended."""
        return (await self.tenants.GetTenant(tenants_pb2.GetTenantRequest(tenant_id=tenant_id))).tenant.outstanding

    async def create(self, count: int, *, workflow: str, tenant_id: str = TENANT, poll_ms: int = 10) -> list[str]:
        """Creates tasks and returns their ids."""
        made: list[str] = []
        for first in range(0, count, BATCH):
            items = [new_task(workflow, tenant_id, poll_ms) for _ in range(first, min(first + BATCH, count))]
            answer = await self.tasks.CreateTasks(tasks_pb2.CreateTasksRequest(items=items))
            made += [item.created.task.task_id for item in answer.items]
        assert all(made), "a creation was refused"
        return made

    async def complete(self, count: int, result: bytes, *, workflow: str) -> None:
        """Takes so many tasks and ends them with this result."""
        left = count
        while left:
            claim = leases_pb2.LeaseTasksRequest(
                request_id=uuid4().hex, worker_id="bench", workflows=[leases_pb2.WorkflowVersion(workflow=workflow, version=1)],
                limit=min(left, max(1, min(BATCH, 4 * 2**20 // (len(result) + 1000)))), lease_ms=60_000,
            )  # fmt: skip
            taken = (await self.leases.LeaseTasks(claim)).tasks
            payload = types_pb2.Payload(data=result)
            items = [leases_pb2.CompleteTaskRequest(lease=task.lease, result=payload) for task in taken]
            answer = await self.leases.CompleteTasks(leases_pb2.CompleteTasksRequest(items=items))
            assert all(item.HasField("completed") for item in answer.items)
            left -= len(items)


def new_task(workflow: str, tenant_id: str = TENANT, poll_ms: int = 10, data: bytes = b"{}") -> tasks_pb2.CreateTaskRequest:
    """A creation."""
    contract = types_pb2.TaskContract(
        tool="job", workflow=workflow, workflow_version=1, owner=OWNER, poll_interval_ms=poll_ms, ttl_ms=86_400_000
    )
    return tasks_pb2.CreateTaskRequest(
        tenant_id=tenant_id, request_id=uuid4().hex, contract=contract, input=types_pb2.Payload(data=data)
    )


@contextlib.asynccontextmanager
async def api(world: World) -> AsyncIterator[Api]:
    """The API of the world's store."""
    async with grpc.aio.insecure_channel(world.pair.store_address, options=_LIMITS) as channel:
        yield Api(channel)


@contextlib.contextmanager
def open_world(profile: Profile | None = None) -> Iterator[World]:
    """A pair in an empty folder, with a Postgres that does not forget."""
    folder = ROOT / ".tenure" / "bench" / "world"
    shutil.rmtree(folder, ignore_errors=True)
    with Pair(folder, routes=Path(__file__).parent / "routes.yaml", durable=True) as pair:
        world = World(pair, folder, profile)
        try:
            yield world
        finally:
            world.stop_others()


@contextlib.asynccontextmanager
async def echo(world: World, size: int) -> AsyncIterator[tuple[str, Process]]:
    """The bare aiohttp server, answering so many bytes."""
    (port,) = free_ports(1)
    process = world.start(f"echo-{size}", "tests.benchmarks.programs.echo", str(port), str(size))
    await until_listening(port)
    yield f"http://127.0.0.1:{port}/mcp", process
    world.stop(process)


async def until_listening(port: int, *, seconds: float = 30) -> None:
    """Waits until somebody listens on a port of loopback."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return


def forever(requests: Sequence[bytes]) -> Iterator[bytes]:
    """These requests, again and again."""
    return itertools.cycle(requests)


def metric(admin_port: int, line: str) -> float:
    """One figure of a process."""
    with urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return float(next(each.rpartition(" ")[2] for each in text.splitlines() if each.startswith(line)))
