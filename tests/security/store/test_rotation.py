"""Certificates, keys and policies change while everything runs."""

import asyncio
import os
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from taskstore.v1 import tasks_pb2, types_pb2

from store_service import watched_file
from store_service.client import Context, StoreError, TaskStore, Worker, tls
from store_service.dev_certs import DOMAIN, Authority, make_authority
from tests.security.store.conftest import Guarded
from tests.store.builders import OWNER, new_task


@pytest.fixture(autouse=True)
def _look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are looked at whenever they are asked for."""
    monkeypatch.setattr(watched_file, "_LOOK_SECONDS", 0.0)


def trust_both(folder: Path, first: Authority, second: Authority) -> None:
    """The step between: everybody trusts both authorities."""
    both = [authority.certificate.public_bytes(Encoding.PEM) for authority in (first, second)]
    (folder / "ca.crt").write_bytes(b"".join(both))


@pytest.mark.row("G1")
async def test_an_authority_is_replaced_without_a_restart_of_anybody(guarded: Guarded, tmp_path: Path) -> None:
    async with TaskStore.connect(guarded.address, tls=guarded.tls("bridge")) as store:
        await store.create_task(new_task())
        next_folder = tmp_path / "next"
        next_folder.mkdir()
        second = make_authority(next_folder)
        trust_both(guarded.folder, guarded.authority, second)
        await store.create_task(new_task())
        second.issue(guarded.folder, "store", [x509.DNSName("localhost")])
        second.issue(guarded.folder, "bridge", [x509.UniformResourceIdentifier(f"{DOMAIN}/bridge")])
        await store.create_task(new_task())
        (guarded.folder / "ca.crt").write_bytes(second.certificate.public_bytes(Encoding.PEM))
        await store.create_task(new_task())
        async with TaskStore.connect(guarded.address, tls=guarded.tls("bridge")) as fresh:
            await fresh.create_task(new_task())


async def test_a_watch_goes_on_when_the_connection_that_it_began_on_is_closed(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "_GRACE_SECONDS", 0.01)
    async with TaskStore.connect(guarded.address, tls=guarded.tls("bridge")) as store:
        assert isinstance(store._channel, tls.RenewedChannel)
        task = (await store.create_task(new_task())).task
        watch = store.watch_task(tasks_pb2.WatchedTask(tenant_id=task.tenant_id, task_id=task.task_id, owner=OWNER))
        async with asyncio.timeout(30):
            assert (await anext(watch)).task.change == 1
            for _ in range(2):
                before = store._channel.current()[0]
                guarded.authority.issue(guarded.folder, "bridge", [x509.UniformResourceIdentifier(f"{DOMAIN}/bridge")])
                await store.create_task(new_task())
                while store._channel.current()[0] is before or before.get_state() is not grpc.ChannelConnectivity.SHUTDOWN:
                    await asyncio.sleep(0.01)
            await store.cancel_task(tasks_pb2.CancelTaskRequest(tenant_id=task.tenant_id, task_id=task.task_id))
            assert (await anext(watch)).task.state == types_pb2.TASK_STATE_CANCELLED


async def test_half_of_a_rotation_changes_nothing(guarded: Guarded) -> None:
    before = (guarded.folder / "store.crt").read_bytes()
    guarded.authority.issue(guarded.folder, "store", [x509.DNSName("localhost")])
    (guarded.folder / "store.crt").write_bytes(before)  # the key is new, its certificate has not come yet
    async with TaskStore.connect(guarded.address, tls=guarded.tls("bridge")) as store:
        await store.create_task(new_task())


async def test_a_policy_that_changes_holds_at_once_and_one_that_is_wrong_does_not(guarded: Guarded) -> None:
    policy = guarded.folder / "policy.yaml"
    async with TaskStore.connect(guarded.address, tls=guarded.tls("late")) as store:
        with pytest.raises(StoreError, match="does not know who calls"):
            await store.create_task(new_task())
        policy.write_text(f'{policy.read_text()}  - {{identity: {DOMAIN}/late, role: bridge, tenants: ["*"]}}\n')
        await store.create_task(new_task())
        policy.write_text("version: 1\ncallers: none\n")
        await store.create_task(new_task())


async def test_a_change_that_leaves_size_and_time_of_the_file_as_they_were_is_seen(guarded: Guarded) -> None:
    policy = guarded.folder / "policy.yaml"
    before = policy.stat()
    async with TaskStore.connect(guarded.address, tls=guarded.tls("bridge")) as store:
        await store.create_task(new_task())
        policy.write_text(policy.read_text().replace(f"{DOMAIN}/bridge,", f"{DOMAIN}/dredge,"))
        os.utime(policy, ns=(before.st_atime_ns, before.st_mtime_ns))
        after = policy.stat()
        assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)
        with pytest.raises(StoreError, match="does not know who calls"):
            await store.create_task(new_task())


async def test_a_worker_works_over_its_certificate(guarded: Guarded) -> None:
    worker = Worker(guarded.address, tls=guarded.tls("reports"), name="reports", lease_seconds=5)

    @worker.workflow("report")
    async def report(ctx: Context, args: dict[str, Any]) -> int:
        total: int = await ctx.step("add", lambda: args["a"] + 1)
        return total

    async with TaskStore.connect(guarded.address, tls=guarded.tls("bridge")) as store, worker:
        task = (await store.create_task(new_task())).task
        async with asyncio.timeout(60):
            request = tasks_pb2.WatchedTask(tenant_id=task.tenant_id, task_id=task.task_id, owner=OWNER)
            async for answer in store.watch_task(request):
                seen = answer
    assert worker.worker_id.startswith("reports-")
    assert seen
