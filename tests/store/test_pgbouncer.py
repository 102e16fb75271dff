"""A store behind a PgBouncer in transaction mode: nothing of one transaction is left in the session for the next."""

import asyncio
import itertools
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import asyncpg
import grpc
import pytest
from taskstore.v1 import tasks_pb2, types_pb2

from store_service.client.errors import from_rpc_error
from tests.conftest import Stubs, serving
from tests.pair import free_ports, metrics_at
from tests.pgbouncer import MISSING, PROGRAM, PgBouncer
from tests.store.builders import TENANT, claim, complete, create, get, new_task, refusal_of

pytestmark = pytest.mark.skipif(PROGRAM is None, reason=MISSING)

TENANTS: Final = ("acme", "globex")
ROUNDS: Final = int(os.environ.get("PGBOUNCER_ROUNDS", "200"))
TASKS: Final = 60
SETTINGS_LEFT: Final = """
SELECT current_setting('role'), current_setting('enable_seqscan'), current_setting('lock_timeout'),
       coalesce(current_setting('tenure.tenants', true), ''), (SELECT count(*) FROM pg_prepared_statements)
"""


def behind(bouncer: PgBouncer, dsn: str) -> AbstractAsyncContextManager[Stubs]:
    """A store that goes through it for all but hints."""
    return serving(dsn, pooled_dsn=bouncer.dsn(dsn))


@asynccontextmanager
async def bouncing(folder: Path, dsn: str, *, size: int) -> AsyncIterator[PgBouncer]:
    (port,) = free_ports(1)
    bouncer = PgBouncer(folder, dsn, port=port, size=size)
    try:
        await bouncer.start()
        yield bouncer
    finally:
        bouncer.stop()


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that every account may enter: PgBouncer does not run as root."""
    made = tmp_path_factory.mktemp("pgbouncer")
    for each in (made, *made.parents[:2]):
        each.chmod(0o755)
    return made


async def test_tenants_that_share_one_session_see_nothing_of_each_other(
    folder: Path, dsn: str, database: asyncpg.Connection
) -> None:
    draw = random.Random(1)
    async with bouncing(folder, dsn, size=1) as bouncer, behind(bouncer, dsn) as store:
        mine = {tenant: (await create(store, tenant_id=tenant, data=tenant.encode().join([b'"', b'"']))).task_id
                for tenant in TENANTS}  # fmt: skip
        for turn in range(ROUNDS):
            tenant, other = TENANTS[turn % 2], TENANTS[1 - turn % 2]
            found = await get(store, mine[tenant], tenant_id=tenant, view=types_pb2.TASK_VIEW_FULL)
            assert found.input.data == f'"{tenant}"'.encode()
            refused = await refusal_of(get(store, mine[other], tenant_id=tenant))
            assert refused.reason == "TASK_NOT_FOUND"
            if turn % 5 == 0:  # one whose caller leaves, and one that is refused while it writes
                leaving = tasks_pb2.GetTaskRequest(tenant_id=tenant, task_id=mine[tenant])
                with suppress(grpc.aio.AioRpcError):
                    await store.tasks.GetTask(leaving, timeout=draw.uniform(0.0005, 0.005))
                await create(store, tenant_id=tenant, request_id=f"same-{tenant}")
                again = create(store, tenant_id=tenant, request_id=f"same-{tenant}", data=b'"other"')
                assert (await refusal_of(again)).reason == "REQUEST_ID_CONFLICT"
        session = await asyncpg.connect(bouncer.dsn(dsn), statement_cache_size=0)
        assert tuple(await session.fetchrow(SETTINGS_LEFT)) == ("none", "on", "0", "", 0)
        async with session.transaction():
            await session.execute("SET LOCAL ROLE tenure_app")
            assert await session.fetchval("SELECT count(*) FROM tenure.task") == 0, "no tenant was named"
        await session.close()
    assert await database.fetchval("SELECT count(*) FROM tenure.task") == 2 * len(TENANTS)


async def test_work_goes_on_through_restarts_of_the_pool_and_each_task_is_made_and_ended_once(
    folder: Path, dsn: str, database: asyncpg.Connection
) -> None:
    requests = [new_task(request_id=f"r{number}") for number in range(TASKS)]
    async with bouncing(folder, dsn, size=5) as bouncer, behind(bouncer, dsn) as store, asyncio.timeout(240):
        assert "tenure_store_listen_connected 1.0" in await until_listening(store)
        enough = asyncio.Event()
        restarting = asyncio.create_task(restart_often(bouncer, enough))
        try:
            made = await asyncio.gather(*(heard(store.tasks.CreateTask, request) for request in requests))
            worked = await asyncio.gather(*(work(store, f"worker-{number}") for number in range(4)))
        finally:
            enough.set()
            await restarting
        await bouncer.restart()
        task_ids = {answer.task.task_id for answer in made}
        assert len(task_ids) == TASKS
        assert sorted(task_id for each in worked for task_id in each) == sorted(task_ids)
        for task_id in task_ids:
            assert (await heard_get(store, task_id)).state == types_pb2.TASK_STATE_COMPLETED
    assert await database.fetchval("SELECT count(*) FROM tenure.task") == TASKS
    assert await database.fetch("SELECT * FROM tenure.audit") == []


async def restart_often(bouncer: PgBouncer, enough: asyncio.Event) -> None:
    """Gently and not, each time after some work."""
    for number in itertools.cycle((signal.SIGTERM, signal.SIGKILL)):
        with suppress(TimeoutError):
            await asyncio.wait_for(enough.wait(), 0.5)  # the work between two faults
            return
        await bouncer.restart(number)


async def work(store: Stubs, worker_id: str) -> list[str]:
    """Takes and completes tasks until there are none. Returns those that it completed."""
    done: list[str] = []
    while True:
        taken = await heard(store.leases.LeaseTasks, claim(worker_id=worker_id, limit=5, lease_ms=60_000))
        if not taken.tasks:
            return done
        for each in taken.tasks:
            await heard(store.leases.CompleteTask, complete(each.lease))
            done.append(each.lease.task_id)


async def heard_get(store: Stubs, task_id: str) -> types_pb2.Task:
    answer = await heard(store.tasks.GetTask, tasks_pb2.GetTaskRequest(tenant_id=TENANT, task_id=task_id))
    task: types_pb2.Task = answer.task
    return task


async def heard(method: Any, request: Any) -> Any:
    """The answer, whatever is in the way: the same call, with its ids, until it is answered."""
    while True:
        try:
            return await method(request, timeout=20)
        except grpc.aio.AioRpcError as error:
            if not from_rpc_error(error).is_transient:
                raise
            await asyncio.sleep(0.05)


async def until_listening(store: Stubs) -> str:
    """The store's figures, once hints reach it."""
    while True:
        text = await asyncio.to_thread(metrics_at, store.admin_port)
        if "tenure_store_listen_connected 1.0" in text:
            return text
        await asyncio.sleep(0.05)
