"""What the methods of retention and governance refuse."""

from typing import Final

from google.protobuf.message import Message
from taskstore.v1 import retention_pb2

from tests.store.budgets import HOUR_MS
from tests.store.builders import (
    TENANT,
    create,
)
from tests.store.refusals.calls import (
    NO_ID,
    UNDER_CLEANUP,
    Scene,
)
from tests.store.refusals.case import Case, Cases
from tests.store.retention import (
    OPERATOR,
    REVIEWER,
    approve_purge,
    claim_cleanup,
    claim_purge,
    cleanup_lease,
    confirm_export,
    ended,
    execute_purge,
    hold,
    place_hold,
    prepare_purge,
    reject_purge,
    release_hold,
    remove,
)

OF_RETENTION: Final = Cases()
case = OF_RETENTION.case


@case("GetTombstone", "TOMBSTONE_NOT_FOUND")
async def _(_: Scene) -> Message:
    return retention_pb2.GetTombstoneRequest(tenant_id=TENANT, task_id=NO_ID)


@case("ClaimCleanup", "TENANT_NOT_FOUND")
async def _(_: Scene) -> Message:
    return claim_cleanup(tenant_id="nobody")


@case("PlaceHold", "TASK_NOT_FOUND")
async def _(_: Scene) -> Message:
    return place_hold(NO_ID)


@case("ReleaseHold", "HOLD_NOT_FOUND")
async def _(_: Scene) -> Message:
    return release_hold(1)


@case("ReleaseHold", "HOLD_RELEASED")
async def _(scene: Scene) -> Message:
    placed = await hold(scene.store, (await create(scene.store)).task_id)
    await scene.store.governance.ReleaseHold(release_hold(placed.number, principal=REVIEWER))
    return release_hold(placed.number)


@case("GetRetention", "TENANT_NOT_FOUND")
async def _(_: Scene) -> Message:
    return retention_pb2.GetRetentionRequest(tenant_id=TENANT)


@case("ConfirmExport", "EXPORT_CONFLICT")
async def _(scene: Scene) -> Message:
    await _exported(scene)
    return confirm_export(1, receipt="another")


@case("PreparePurge", "NOT_EXPORTED")
async def _(scene: Scene) -> Message:
    await create(scene.store)
    return prepare_purge(await cleanup_lease(scene.store))


@case("PreparePurge", "NOTHING_TO_PURGE")
async def _(scene: Scene) -> Message:
    await _exported(scene)
    return prepare_purge(await cleanup_lease(scene.store), retention_ms=HOUR_MS)


@case("PreparePurge", "REQUEST_ID_CONFLICT")
async def _(scene: Scene) -> Message:
    await _prepared(scene)
    return prepare_purge(await cleanup_lease(scene.store), limit=1_000)


for _method, _request in (
    ("ApprovePurge", approve_purge()),
    ("RejectPurge", reject_purge()),
    ("ClaimPurge", claim_purge(1)),
    ("GetPurgeEvidence", retention_pb2.GetPurgeEvidenceRequest(tenant_id=TENANT, number=1)),
):

    @case(_method, "PURGE_NOT_FOUND")
    async def _(_: Scene, request: Message = _request) -> Message:
        return request


@case("ExecutePurge", "PURGE_NOT_FOUND")
async def _(scene: Scene) -> Message:
    await create(scene.store)
    return execute_purge(await cleanup_lease(scene.store))


@case("ApprovePurge", "SECOND_PERSON_REQUIRED")
async def _(scene: Scene) -> Message:
    await _prepared(scene)
    return approve_purge(principal=OPERATOR)


for _method, _request in (("ApprovePurge", approve_purge(claim_token=1)), ("RejectPurge", reject_purge(claim_token=1))):

    @case(_method, "LEASE_LOST")
    async def _(scene: Scene, request: Message = _request) -> Message:
        await _prepared(scene)
        return request


@case("ApprovePurge", "PURGE_CONFLICT")
async def _(scene: Scene) -> Message:
    await _prepared(scene)
    await scene.store.governance.RejectPurge(reject_purge())
    return approve_purge()


@case("RejectPurge", "PURGE_CONFLICT")
async def _(scene: Scene) -> Message:
    await _prepared(scene)
    await scene.store.governance.ApprovePurge(approve_purge())
    return reject_purge()


@case("ExecutePurge", "PURGE_CONFLICT")
async def _(scene: Scene) -> Message:
    await _prepared(scene)
    return execute_purge(await cleanup_lease(scene.store))


async def _exported(scene: Scene) -> None:
    """One task was removed, and its tombstone is kept elsewhere."""
    await ended(scene.store, ttl_ms=1)
    await scene.database.execute("UPDATE clock.shift SET by = '2 days'")
    await remove(scene.store)
    await scene.store.governance.ConfirmExport(confirm_export(1))
    await scene.database.execute("UPDATE clock.shift SET by = '2 days 1 second'")


async def _prepared(scene: Scene) -> None:
    await _exported(scene)
    await scene.store.governance.PreparePurge(prepare_purge(await cleanup_lease(scene.store)))


def _cleanup_lost(method: str) -> Case:
    async def make(scene: Scene) -> Message:
        if method == "ExecutePurge":
            await _prepared(scene)
        else:
            await create(scene.store)
        held = await cleanup_lease(scene.store)
        await scene.store.retention.ReleaseCleanup(retention_pb2.ReleaseCleanupRequest(lease=held, principal=OPERATOR))
        return UNDER_CLEANUP[method](held)

    return make


for _method in UNDER_CLEANUP:
    case(_method, "LEASE_LOST")(_cleanup_lost(_method))
