"""Tombstones are forgotten for good only when they are kept elsewhere and a second person agrees. Contract, section 14."""

import asyncio
import hashlib
from collections.abc import Awaitable
from typing import Any

import asyncpg
import grpc
import pytest
from taskstore.v1 import retention_pb2

from tests.conftest import Clock, Stubs
from tests.store.builders import LOCK_TENANT, TENANT, assert_lease_lost, blocked, holding, refusal_of
from tests.store.retention import (
    DAY,
    EXECUTE,
    HOUR_MS,
    OPERATOR,
    PLACE_HOLD,
    REMOVE_ONE,
    REVIEWER,
    approve_purge,
    claim_purge,
    cleanup_lease,
    confirm_export,
    ended,
    execute_purge,
    fence,
    hold,
    place_hold,
    prepare_purge,
    prepared,
    reject_purge,
    release_hold,
    remove,
    remove_tasks,
    removed,
)

Purge = retention_pb2.Purge


async def purges(store: Stubs, *states: str) -> list[Purge]:
    wanted = [retention_pb2.PurgeState.Value(f"PURGE_STATE_{state}") for state in states]
    return list((await store.governance.ListPurges(retention_pb2.ListPurgesRequest(tenant_id=TENANT, states=wanted))).purges)


async def state_of(store: Stubs, number: int = 1) -> str:
    (purge,) = [one for one in await purges(store) if one.number == number]
    return retention_pb2.PurgeState.Name(purge.state).removeprefix("PURGE_STATE_")


async def cursors(database: asyncpg.Connection) -> list[int]:
    return [row["cursor"] for row in await database.fetch("SELECT cursor FROM tenure.tombstone ORDER BY cursor")]


async def is_conflict(call: Awaitable[Any], reason: str = "PURGE_CONFLICT") -> bool:
    refused = await refusal_of(call)
    return (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, reason)


async def test_from_removal_to_evidence(store: Stubs, clock: Clock, database: asyncpg.Connection) -> None:
    purge = await prepared(store, clock, limit=2)
    assert (purge.number, purge.tombstones, purge.first_cursor, purge.last_cursor, purge.watermark) == (1, 2, 1, 2, 3)
    rows = await database.fetch("SELECT cursor, task_id FROM tenure.tombstone WHERE cursor < 3 ORDER BY cursor")
    lines = "".join(f"{row['cursor']} {row['task_id']}\n" for row in rows)
    assert purge.fingerprint == hashlib.sha256(lines.encode()).digest()
    claimed = await store.governance.ClaimPurge(claim_purge())
    assert (claimed.purge.number, claimed.claim_token) == (1, 1)
    assert await state_of(store) == "CLAIMED"
    await store.governance.ApprovePurge(approve_purge(claim_token=1))
    assert await state_of(store) == "APPROVED"
    await clock.advance(seconds=901)
    lease = await cleanup_lease(store, principal="cid")
    evidence = (await store.governance.ExecutePurge(execute_purge(lease, principal="cid"))).evidence
    assert (evidence.prepared_by, evidence.approved_by, evidence.executed_by) == (OPERATOR, REVIEWER, "cid")
    assert (evidence.tombstones, evidence.watermark, evidence.receipt) == (2, 3, "receipt")
    assert evidence.fingerprint == purge.fingerprint
    assert await cursors(database) == [3]
    assert await state_of(store) == "EXECUTED"
    again = await store.governance.ExecutePurge(execute_purge(lease, principal="cid"))
    assert again.evidence == evidence
    request = retention_pb2.GetPurgeEvidenceRequest(tenant_id=TENANT, number=1)
    assert (await store.governance.GetPurgeEvidence(request)).evidence == evidence
    await clock.advance(seconds=901)
    assert (await store.governance.ExecutePurge(execute_purge(lease))).evidence == evidence, "a lost answer is told again"
    await ended(store, ttl_ms=1)
    await clock.advance(seconds=2 * DAY)
    assert [one.cursor for one in await remove(store)] == [4], "cursors go on"


async def test_only_what_is_kept_elsewhere_old_enough_and_not_held_is_prepared(
    store: Stubs, clock: Clock, database: asyncpg.Connection
) -> None:
    ids = await removed(store, clock, 5)
    lease = await cleanup_lease(store)
    assert await is_conflict(store.governance.PreparePurge(prepare_purge(lease)), "NOT_EXPORTED")
    await store.governance.ConfirmExport(confirm_export(4))
    refused = await refusal_of(store.governance.PreparePurge(prepare_purge(lease, retention_ms=2_000 * int(DAY))))
    assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "NOTHING_TO_PURGE")
    await hold(store, ids[1])
    first = (await store.governance.PreparePurge(prepare_purge(lease, limit=2))).purge
    assert await database.fetch("SELECT cursor FROM tenure.purge_item ORDER BY 1") == [(1,), (3,)]
    again = (await store.governance.PreparePurge(prepare_purge(lease, limit=2))).purge
    assert again == first, "the same request is answered the same"
    refused = await refusal_of(store.governance.PreparePurge(prepare_purge(lease, limit=3)))
    assert refused.reason == "REQUEST_ID_CONFLICT"
    second = (await store.governance.PreparePurge(prepare_purge(lease, request_id="more"))).purge
    assert (second.tombstones, second.first_cursor) == (1, 4)
    refused = await refusal_of(store.governance.PreparePurge(prepare_purge(lease, request_id="rest")))
    assert refused.reason == "NOTHING_TO_PURGE"


async def test_a_purge_that_ran_out_or_was_rejected_gives_its_tombstones_to_the_next(store: Stubs, clock: Clock) -> None:
    await prepared(store, clock)
    await clock.advance(seconds=3_601)
    assert await state_of(store) == "EXPIRED"
    for call in (store.governance.ApprovePurge(approve_purge()), store.governance.RejectPurge(reject_purge())):
        assert await is_conflict(call)
    assert not (await store.governance.ClaimPurge(claim_purge())).HasField("purge")
    lease = await cleanup_lease(store)
    second = (await store.governance.PreparePurge(prepare_purge(lease, request_id="second"))).purge
    assert second.tombstones == 3
    await store.governance.RejectPurge(reject_purge(2))
    third = (await store.governance.PreparePurge(prepare_purge(lease, request_id="third"))).purge
    assert third.tombstones == 3
    assert [one.number for one in await purges(store, "REJECTED", "EXPIRED")] == [1, 2]
    assert [one.number for one in await purges(store, "PENDING")] == [3]


async def test_who_prepared_a_purge_neither_approves_nor_claims_it_and_may_take_it_back(store: Stubs, clock: Clock) -> None:
    await prepared(store, clock)
    own = store.governance.ApprovePurge(approve_purge(principal=OPERATOR))
    assert await is_conflict(own, "SECOND_PERSON_REQUIRED")
    assert not (await store.governance.ClaimPurge(claim_purge(principal=OPERATOR))).HasField("purge")
    await store.governance.RejectPurge(reject_purge(principal=OPERATOR))
    assert await state_of(store) == "REJECTED"


async def test_one_decision_is_made_and_repeated_by_who_made_it_alone(store: Stubs, clock: Clock) -> None:
    await prepared(store, clock)
    first = (await store.governance.RejectPurge(reject_purge())).purge
    assert (await store.governance.RejectPurge(reject_purge(reason="else"))).purge == first
    assert await is_conflict(store.governance.RejectPurge(reject_purge(principal="cid")))
    assert await is_conflict(store.governance.ApprovePurge(approve_purge()))
    assert await is_conflict(store.governance.ApprovePurge(approve_purge(principal="cid"))), "FIX-6: nor by the other way"
    assert await is_conflict(store.governance.ExecutePurge(execute_purge(await cleanup_lease(store))))
    await store.governance.PreparePurge(prepare_purge(await cleanup_lease(store), request_id="second"))
    approved = (await store.governance.ApprovePurge(approve_purge(2))).purge
    assert (await store.governance.ApprovePurge(approve_purge(2))).purge == approved
    assert await is_conflict(store.governance.RejectPurge(reject_purge(2, principal="cid")))


async def test_a_claim_is_for_one_and_ends_by_itself(store: Stubs, clock: Clock) -> None:
    await prepared(store, clock, limit=1)
    await store.governance.PreparePurge(prepare_purge(await cleanup_lease(store), request_id="second", limit=1))
    first = await store.governance.ClaimPurge(claim_purge())
    assert (await store.governance.ClaimPurge(claim_purge())).claim_token == first.claim_token + 1, "its holder takes it again"
    assert (await store.governance.ClaimPurge(claim_purge(principal="cid"))).purge.number == 2, "the next one"
    assert not (await store.governance.ClaimPurge(claim_purge(1, principal="cid"))).HasField("purge")
    assert await is_conflict(store.governance.ApprovePurge(approve_purge(1, principal="cid")))
    for token, principal in ((1, REVIEWER), (3, REVIEWER), (2, "cid")):
        await assert_lease_lost(store.governance.ApprovePurge(approve_purge(claim_token=token, principal=principal)))
        await assert_lease_lost(store.governance.RejectPurge(reject_purge(claim_token=token, principal=principal)))
    await clock.advance(seconds=61)
    await assert_lease_lost(store.governance.ApprovePurge(approve_purge(claim_token=2)))
    assert await state_of(store) == "PENDING"
    late = await store.governance.ClaimPurge(claim_purge(1, principal="cid", lease_ms=900_000))
    await clock.advance(seconds=600)
    await store.governance.RejectPurge(reject_purge(claim_token=late.claim_token, principal="cid"))


async def test_a_claim_lasts_no_longer_than_its_purge(store: Stubs, clock: Clock) -> None:
    purge = await prepared(store, clock, approval_ms=600_000)
    claimed = await store.governance.ClaimPurge(claim_purge(lease_ms=900_000))
    assert claimed.purge.claim_expires_at == purge.deadline_at


async def test_a_purge_is_executed_only_under_the_lease_of_the_tenant_and_in_time(
    store: Stubs, clock: Clock, database: asyncpg.Connection
) -> None:
    await prepared(store, clock)
    lease = await cleanup_lease(store)
    assert await is_conflict(store.governance.ExecutePurge(execute_purge(lease))), "it is not approved"
    await store.governance.ApprovePurge(approve_purge())
    await assert_lease_lost(store.governance.ExecutePurge(execute_purge(lease, principal=REVIEWER)))
    await cleanup_lease(store)
    await assert_lease_lost(store.governance.ExecutePurge(execute_purge(lease)))
    await assert_lease_lost(store.governance.PreparePurge(prepare_purge(lease, request_id="second")))
    await clock.advance(seconds=3_601)
    newer = await cleanup_lease(store)
    assert await is_conflict(store.governance.ExecutePurge(execute_purge(newer)))
    assert await cursors(database) == [1, 2, 3]


async def test_a_tombstone_that_is_held_stops_its_purge_until_the_hold_ends(
    store: Stubs, clock: Clock, database: asyncpg.Connection
) -> None:
    await prepared(store, clock)
    (stone, *_) = (await store.retention.ListTombstones(retention_pb2.ListTombstonesRequest(tenant_id=TENANT))).tombstones
    placed = await hold(store, stone.task_id)
    await store.governance.ApprovePurge(approve_purge())
    lease = await cleanup_lease(store)
    refused = await refusal_of(store.governance.ExecutePurge(execute_purge(lease)))
    assert (refused.reason, "held" in refused.message) == ("PURGE_CONFLICT", True)
    assert await cursors(database) == [1, 2, 3]
    await store.governance.ReleaseHold(release_hold(placed.number))
    await store.governance.ExecutePurge(execute_purge(lease))
    assert await cursors(database) == []
    assert (await refusal_of(store.governance.PlaceHold(place_hold(stone.task_id)))).reason == "TASK_NOT_FOUND"


@pytest.mark.parametrize("first", ["hold", "purge"])
async def test_a_hold_and_a_purge_at_once_are_one_after_the_other(
    store: Stubs, clock: Clock, dsn: str, database: asyncpg.Connection, first: str
) -> None:
    """FIX-4: never a hold on a tombstone that is gone."""
    await prepared(store, clock)
    await store.governance.ApprovePurge(approve_purge())
    lease = await cleanup_lease(store)
    task_id = await database.fetchval("SELECT task_id FROM tenure.tombstone WHERE cursor = 1")
    if first == "purge":
        async with holding(dsn, EXECUTE, *fence(lease)):
            late = asyncio.ensure_future(refusal_of(store.governance.PlaceHold(place_hold(str(task_id)))))
            await blocked(database)
        assert (await late).reason == "TASK_NOT_FOUND"
        assert await cursors(database) == []
    else:
        async with holding(dsn, PLACE_HOLD, TENANT, task_id):
            executing = asyncio.ensure_future(is_conflict(store.governance.ExecutePurge(execute_purge(lease))))
            await blocked(database)
        assert await executing
        assert await cursors(database) == [1, 2, 3]
    assert await database.fetchval(
        "SELECT NOT EXISTS (SELECT FROM tenure.hold h WHERE h.released_at IS NULL AND NOT EXISTS "
        "(SELECT FROM tenure.tombstone t WHERE t.task_id = h.task_id))"
    )


async def test_an_approval_and_a_rejection_at_once_make_one_decision(
    store: Stubs, second_store: Stubs, clock: Clock, dsn: str, database: asyncpg.Connection
) -> None:
    await prepared(store, clock)
    async with holding(dsn, LOCK_TENANT, TENANT):
        approving = asyncio.ensure_future(store.governance.ApprovePurge(approve_purge()))
        await blocked(database)
        rejecting = asyncio.ensure_future(is_conflict(second_store.governance.RejectPurge(reject_purge(principal="cid"))))
        await blocked(database, count=2)
    await approving
    assert await rejecting
    assert await state_of(store) == "APPROVED"


async def test_an_export_is_confirmed_upwards_by_one_receipt_each(store: Stubs, clock: Clock) -> None:
    await removed(store, clock, 3)
    first = (await store.governance.ConfirmExport(confirm_export(2))).exported
    assert (first.through_cursor, first.receipt, first.confirmed_by) == (2, "receipt", OPERATOR)
    again = (await store.governance.ConfirmExport(confirm_export(2, principal=REVIEWER))).exported
    assert again == first
    for wrong in (confirm_export(1), confirm_export(2, receipt="else")):
        assert await is_conflict(store.governance.ConfirmExport(wrong), "EXPORT_CONFLICT")
    refused = await refusal_of(store.governance.ConfirmExport(confirm_export(4)))
    assert (refused.reason, refused.message.split()[0]) == ("INVALID_INPUT", "through_cursor")
    await store.governance.ConfirmExport(confirm_export(3, receipt="next"))
    assert (await store.governance.ConfirmExport(confirm_export(2))).exported == first, "a lost answer is told again"
    told = await store.retention.GetRetention(retention_pb2.GetRetentionRequest(tenant_id=TENANT))
    assert (told.exported.through_cursor, told.last_cursor) == (3, 3)


async def test_a_confirmation_waits_for_the_tombstones_being_written_and_never_passes_them(
    store: Stubs, clock: Clock, dsn: str, database: asyncpg.Connection
) -> None:
    """FIX-5: what a slow committer writes is neither skipped by a reader nor confirmed before it was seen."""
    for _ in range(2):
        await ended(store, ttl_ms=1)
    await clock.advance(seconds=2 * DAY)
    lease = await cleanup_lease(store)
    await store.retention.RemoveTasks(remove_tasks(lease, limit=1))
    async with holding(dsn, REMOVE_ONE, *fence(lease)):
        listed = await store.retention.ListTombstones(retention_pb2.ListTombstonesRequest(tenant_id=TENANT))
        assert [one.cursor for one in listed.tombstones] == [1]
        confirming = asyncio.ensure_future(store.governance.ConfirmExport(confirm_export(1)))
        await blocked(database)
    assert (await confirming).exported.through_cursor == 1
    listed = await store.retention.ListTombstones(retention_pb2.ListTombstonesRequest(tenant_id=TENANT, after_cursor=1))
    assert [one.cursor for one in listed.tombstones] == [2], "the slow one is next"
    await clock.advance(seconds=1)
    purge = (await store.governance.PreparePurge(prepare_purge(lease))).purge
    assert purge.last_cursor == 1, "what is not confirmed is not purged"


async def test_what_was_decided_and_what_was_done_never_changes(
    store: Stubs, clock: Clock, database: asyncpg.Connection
) -> None:
    await prepared(store, clock)
    await store.governance.ApprovePurge(approve_purge())
    with pytest.raises(asyncpg.RaiseError, match="never changed"):
        await database.execute("UPDATE tenure.purge SET state = 'PENDING', decided_by = NULL, decided_at = NULL")
    await store.governance.ExecutePurge(execute_purge(await cleanup_lease(store)))
    for change in ("purge_evidence SET approved_by = 'eve'", "purge SET decided_by = 'eve'",
                   "tombstone_export SET receipt = 'else'"):  # fmt: skip
        with pytest.raises(asyncpg.RaiseError, match="never changed"):
            await database.execute(f"UPDATE tenure.{change}")


async def test_how_far_a_tenant_s_retention_has_come_is_told(store: Stubs, clock: Clock) -> None:
    request = retention_pb2.GetRetentionRequest(tenant_id=TENANT)
    refused = await refusal_of(store.retention.GetRetention(request))
    assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "TENANT_NOT_FOUND")
    task_id = await ended(store, ttl_ms=1_000 * HOUR_MS)
    told = await store.retention.GetRetention(request)
    assert told == retention_pb2.GetRetentionResponse(tenant_id=TENANT)
    await prepared(store, clock, 2)
    await hold(store, task_id)
    told = await store.retention.GetRetention(request)
    assert (told.last_cursor, told.exported.through_cursor, told.purges_waiting, told.holds) == (2, 2, 1, 1)
    assert told.cleanup_owner_id == "cleaner"
    await ended(store, ttl_ms=1)
    await clock.advance(seconds=2 * DAY)
    told = await store.retention.GetRetention(request)
    assert told.HasField("due_since")
    assert not told.HasField("cleanup_expires_at")
    assert told.purges_waiting == 0, "it ran out"
