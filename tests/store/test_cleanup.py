"""Who may remove what is over: one owner a tenant, by a lease with a fencing token. Source: contract, section 13."""

import asyncio

import asyncpg
import pytest
from taskstore.v1 import retention_pb2

from tests.conftest import Clock, Stubs
from tests.store.builders import (
    TENANT,
    assert_lease_lost,
    blocked,
    cancel,
    checkpoint,
    create,
    create_and_lease,
    get,
    holding,
    publish,
    refusal_of,
)
from tests.store.retention import (
    DAY,
    OPERATOR,
    REMOVE_ONE,
    REVIEWER,
    claim_cleanup,
    cleanup_lease,
    ended,
    fence,
    hold,
    place_hold,
    remove,
    remove_tasks,
)


def heartbeat(lease: retention_pb2.CleanupLease, *, lease_ms: int = 60_000) -> retention_pb2.HeartbeatCleanupRequest:
    return retention_pb2.HeartbeatCleanupRequest(lease=lease, lease_ms=lease_ms, principal=OPERATOR)


def release(lease: retention_pb2.CleanupLease) -> retention_pb2.ReleaseCleanupRequest:
    return retention_pb2.ReleaseCleanupRequest(lease=lease, principal=OPERATOR)


async def test_a_tenant_has_one_cleanup_lease_and_each_claim_raises_its_token(store: Stubs, clock: Clock) -> None:
    await create(store)
    first = await store.retention.ClaimCleanup(claim_cleanup(lease_ms=60_000))
    assert first.lease.token == 1
    held = await store.retention.ClaimCleanup(claim_cleanup(owner_id="other"))
    assert not held.HasField("lease")
    assert held.expires_at == first.expires_at
    assert (await cleanup_lease(store)).token == 2, "its owner may take it again"
    for other in (claim_cleanup(owner_id="other"), claim_cleanup(principal="other")):
        assert not (await store.retention.ClaimCleanup(other)).HasField("lease")
    await clock.advance(seconds=901)
    assert (await cleanup_lease(store, owner_id="other")).token == 3


async def test_nothing_is_done_under_a_lease_that_is_over_or_another_s(store: Stubs, clock: Clock) -> None:
    task_id = await ended(store)
    await clock.advance(seconds=3 * DAY)
    old, lease = await cleanup_lease(store), await cleanup_lease(store)
    wrong = [old]
    for name, value in (("owner_id", "other"), ("token", lease.token + 1), ("epoch", lease.epoch + 1), ("tenant_id", "b")):
        forged = retention_pb2.CleanupLease()
        forged.CopyFrom(lease)
        setattr(forged, name, value)
        wrong.append(forged)
    for one in wrong:
        for call in (
            store.retention.RemoveTasks(remove_tasks(one)),
            store.retention.HeartbeatCleanup(heartbeat(one)),
            store.retention.ReleaseCleanup(release(one)),
        ):
            await assert_lease_lost(call)
    stolen = remove_tasks(lease)
    stolen.principal = REVIEWER
    await assert_lease_lost(store.retention.RemoveTasks(stolen))
    await clock.advance(seconds=900)
    await assert_lease_lost(store.retention.RemoveTasks(remove_tasks(lease)))
    await get(store, task_id)


async def test_a_heartbeat_extends_and_never_shortens_and_what_is_given_back_is_free(store: Stubs) -> None:
    await create(store)
    lease = await cleanup_lease(store)
    long = (await store.retention.HeartbeatCleanup(heartbeat(lease, lease_ms=900_000))).expires_at
    short = (await store.retention.HeartbeatCleanup(heartbeat(lease, lease_ms=1_000))).expires_at
    assert short == long
    await store.retention.ReleaseCleanup(release(lease))
    await assert_lease_lost(store.retention.ReleaseCleanup(release(lease)))
    assert (await cleanup_lease(store, owner_id="other")).token == lease.token + 1


async def test_a_lease_is_worth_nothing_after_the_database_was_restored(store: Stubs, database: asyncpg.Connection) -> None:
    await create(store)
    lease = await cleanup_lease(store)
    await database.execute("UPDATE tenure.epoch SET epoch = epoch + 1")
    await assert_lease_lost(store.retention.RemoveTasks(remove_tasks(lease)))
    assert (await cleanup_lease(store, owner_id="other")).epoch == lease.epoch + 1


async def test_who_claims_waits_for_the_removal_under_way_though_its_lease_ran_out(
    store: Stubs, clock: Clock, dsn: str, database: asyncpg.Connection
) -> None:
    """FIX-4: the lease is locked, not merely read."""
    await ended(store)
    await clock.advance(seconds=3 * DAY)
    lease = await cleanup_lease(store)
    async with holding(dsn, REMOVE_ONE, *fence(lease)):
        await clock.advance(seconds=901)
        claim = asyncio.ensure_future(store.retention.ClaimCleanup(claim_cleanup(owner_id="other")))
        await blocked(database)
    assert (await claim).lease.token == lease.token + 1


async def test_a_removal_that_waited_past_the_end_of_its_lease_removes_nothing(
    store: Stubs, clock: Clock, dsn: str, database: asyncpg.Connection
) -> None:
    task_id = await ended(store)
    await clock.advance(seconds=3 * DAY)
    lease = await cleanup_lease(store)
    async with holding(dsn, "SELECT FROM tenure.tenant FOR UPDATE"):
        removal = asyncio.ensure_future(store.retention.RemoveTasks(remove_tasks(lease)))
        await blocked(database)
        await clock.advance(seconds=901)
    await assert_lease_lost(removal)
    await get(store, task_id)


async def test_tenants_are_found_by_pages_with_since_when_their_oldest_task_is_over(store: Stubs, clock: Clock) -> None:
    for tenant_id in ("a", "b", "c"):
        await create(store, tenant_id=tenant_id)
    for tenant_id in ("d", "b"):
        await ended(store, ttl_ms=1, tenant_id=tenant_id)
        await clock.advance(seconds=10)
    await clock.advance(seconds=DAY - 10)
    request = retention_pb2.ListCleanupTenantsRequest(page_size=2)
    seen: list[tuple[list[str], str]] = []
    since: list[int] = []
    while True:
        page = await store.retention.ListCleanupTenants(request)
        seen.append(([item.tenant_id for item in page.items], page.next_tenant_id))
        since += [item.due_since.ToMicroseconds() for item in page.items]
        request.after_tenant_id = page.next_tenant_id
        if not page.next_tenant_id:
            break
    assert seen == [(["b"], "b"), (["d"], "d"), ([], "")]
    assert 9_000_000 < since[0] - since[1] < 60_000_000
    named = await store.retention.ListCleanupTenants(retention_pb2.ListCleanupTenantsRequest(tenant_ids=["d", "a", "d"]))
    assert [item.tenant_id for item in named.items] == ["d"]


@pytest.mark.parametrize("scene", ["queued", "leased", "signalled"])
async def test_what_lives_is_never_looked_at_whoever_holds_the_lease(store: Stubs, clock: Clock, scene: str) -> None:
    task_id = (await create_and_lease(store, ttl_ms=1)).lease.task_id if scene == "leased" else (await create(store)).task_id
    if scene == "signalled":
        await publish(store, task_id, name="go")
    await clock.advance(seconds=1_000 * DAY)
    assert not await remove(store)
    await get(store, task_id)


async def test_a_task_that_is_held_is_not_removed_and_holds_up_no_other(store: Stubs, clock: Clock) -> None:
    kept, gone = await ended(store), await ended(store)
    live = (await create_and_lease(store)).lease
    for task_id in (kept, live.task_id):
        await hold(store, task_id)
    await store.leases.AppendCheckpoint(checkpoint(live))
    await store.tasks.CancelTask(cancel(live.task_id, force=True))
    await clock.advance(seconds=3 * DAY)
    assert [one.task_id for one in await remove(store, limit=1)] == [gone]
    assert not await remove(store)
    found = await store.retention.ListCleanupTenants(retention_pb2.ListCleanupTenantsRequest())
    assert not found.items
    await store.governance.ReleaseHold(retention_pb2.ReleaseHoldRequest(tenant_id=TENANT, number=1, principal=OPERATOR))
    assert [one.task_id for one in await remove(store)] == [kept]
    assert (await get(store, live.task_id)).checkpoints == 1


async def test_a_hold_that_comes_while_a_task_is_being_removed_holds_its_tombstone(
    store: Stubs, clock: Clock, dsn: str, database: asyncpg.Connection
) -> None:
    task_id = await ended(store)
    await clock.advance(seconds=3 * DAY)
    lease = await cleanup_lease(store)
    async with holding(dsn, REMOVE_ONE, *fence(lease)):
        placed = asyncio.ensure_future(store.governance.PlaceHold(place_hold(task_id)))
        await blocked(database)
    assert (await placed).hold.task_id == task_id
    assert (await refusal_of(store.governance.PlaceHold(place_hold(task_id, reason=" ")))).reason == "INVALID_INPUT"
    tombstone = await store.retention.GetTombstone(retention_pb2.GetTombstoneRequest(tenant_id=TENANT, task_id=task_id))
    assert tombstone.tombstone.cursor == 1
