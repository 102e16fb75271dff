"""What a failover loses is told, what it keeps is kept; and so for a restore from a base backup."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import grpc
import pytest
from taskstore.v1 import types_pb2

from store_service.config import Config
from store_service.db.migrate import SchemaError, bump_epoch, keep_epoch, migrate
from store_service.server import Store
from tests.conftest import Stubs, open_stubs
from tests.pair import free_ports
from tests.robustness.postgres import Server, base_backup, make_primary, make_replica
from tests.robustness.proxy import Mode, Proxy
from tests.store.builders import assert_lease_lost, create, get, heartbeat, lease, refusal_of

REFUSED = "failed over or was restored"


@dataclass
class Site:
    """A primary, the way to it that stores use, and a folder for more."""

    folder: Path
    primary: Server
    way: Proxy

    @property
    def dsn(self) -> str:
        return self.primary.dsn(self.way.listen)

    def store(self) -> Store:
        return Store(Config(dsn=self.dsn, port=0, admin_port=0, drain_seconds=2))

    async def fail_over(self, replica: Server) -> None:
        """The primary is lost, the replica takes over, and the way leads to it."""
        await self.primary.stop(immediate=True)
        await asyncio.to_thread(replica.promote)
        await replica.answers()
        self.take(replica)

    def take(self, server: Server) -> None:
        self.primary = server
        self.way.upstream = server.port
        self.way.cut()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    folder = Path(tempfile.mkdtemp(prefix="tenure-site-"))
    folder.chmod(0o755)  # where we are root, Postgres runs as another account
    port, listen = free_ports(2)
    primary = await make_primary(folder, port)
    await migrate(primary.dsn())
    way = await Proxy("store>postgres", listen=listen, upstream=port).start()
    site = Site(folder, primary, way)
    yield site
    await way.stop()
    await site.primary.stop(immediate=True)
    shutil.rmtree(folder)


async def is_answered(stubs: Stubs) -> None:
    """Waits until the store has connections to the database that is there now."""
    async with asyncio.timeout(60):
        while True:
            try:
                await create(stubs)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.1)
            else:
                return


async def test_a_synchronous_failover_loses_nothing_and_leases_stay_good(site: Site) -> None:
    running = site.store()
    await running.start()
    (port,) = free_ports(1)
    replica = await make_replica(site.primary, site.folder / "replica", port)
    await site.primary.wait_for_replica()
    async with open_stubs(running) as stubs:
        made = [(await create(stubs)).task_id for _ in range(20)]
        taken = await lease(stubs, limit=1)
        await site.fail_over(replica)
        await is_answered(stubs)
        for task_id in made:
            assert (await get(stubs, task_id)).task_id == task_id
        with pytest.raises(SchemaError, match=REFUSED):
            await site.store().start()
        await keep_epoch(site.dsn)
        await stubs.leases.HeartbeatTask(heartbeat(taken.lease))
    await running.stop()
    again = site.store()
    await again.start()
    await again.stop()


async def test_what_an_asynchronous_failover_lost_is_told_and_no_lease_of_it_is_taken(site: Site) -> None:
    running = site.store()
    await running.start()
    (port, listen) = free_ports(2)
    behind = await Proxy("replica>primary", listen=listen, upstream=site.primary.port).start()
    replica = await make_replica(site.primary, site.folder / "replica", port, through=listen)
    async with open_stubs(running) as stubs:
        kept = (await create(stubs)).task_id
        await site.primary.is_replayed()
        behind.set(Mode.BLACKHOLE)
        taken = await lease(stubs, limit=1)
        lost = (await create(stubs)).task_id
        await site.fail_over(replica)
        await is_answered(stubs)
        assert (await get(stubs, kept)).state == types_pb2.TASK_STATE_QUEUED, "its lease is lost"
        assert (await refusal_of(get(stubs, lost))).reason == "TASK_NOT_FOUND"
        with pytest.raises(SchemaError, match=REFUSED):
            await site.store().start()
        assert await bump_epoch(site.dsn) == 2
        again = await lease(stubs, limit=1, worker_id=taken.lease.worker_id)
        assert (again.lease.task_id, again.lease.token) == (kept, taken.lease.token), "the token is used again"
        await assert_lease_lost(stubs.leases.HeartbeatTask(heartbeat(taken.lease)))
    await running.stop()
    await behind.stop()


async def test_a_store_on_another_timeline_says_so(site: Site) -> None:
    running = site.store()
    await running.start()
    (port,) = free_ports(1)
    replica = await make_replica(site.primary, site.folder / "replica", port)
    await site.primary.wait_for_replica()
    async with open_stubs(running) as stubs:
        await site.fail_over(replica)
        await is_answered(stubs)
    assert running._parts is not None
    chores = running._parts.chores
    await chores.look_at_timeline()
    assert chores._other_timeline._value.get() == 1
    await keep_epoch(site.dsn)
    await chores.look_at_timeline()
    assert chores._other_timeline._value.get() == 0
    await running.stop()


async def test_a_base_backup_has_all_that_was_acknowledged_before_it_and_its_leases_end_with_the_epoch(site: Site) -> None:
    running = site.store()
    await running.start()
    async with open_stubs(running) as stubs:
        made = [(await create(stubs)).task_id for _ in range(20)]
        taken = await lease(stubs, limit=1)
        (port,) = free_ports(1)
        restored = await base_backup(site.primary, site.folder / "backup", port)
        await create(stubs)
        await site.primary.stop(immediate=True)
        await restored.start()
        site.take(restored)
        await bump_epoch(site.dsn)
        await is_answered(stubs)
        connection = await asyncpg.connect(restored.dsn())
        there = {str(row[0]) for row in await connection.fetch("SELECT task_id FROM tenure.task")}
        assert await connection.fetch("SELECT FROM tenure.audit") == []
        await connection.close()
        assert set(made) <= there
        await assert_lease_lost(stubs.leases.HeartbeatTask(heartbeat(taken.lease)))
    await running.stop()
