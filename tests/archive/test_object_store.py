"""An object storage keeps each batch once, under a lock, and says so only when it is sure."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from botocore.exceptions import ClientError

from store_service.archive.batches import Batch, BatchId
from store_service.archive.errors import ArchiveError
from store_service.archive.errors import Fault as Kind
from store_service.archive.object_store import Bucket, ObjectStore
from tests.archive.faulty_way import (
    Fault,
    FaultyWay,
    answer_late,
    answer_lost,
    body_changed,
    cut,
    lock_forgotten,
    passes,
    refused,
    stalls,
)

BATCH: Final = Batch(BatchId("acme", 1, 3), b'{"proof":1}\n' * 100)
OTHER: Final = Batch(BATCH.id, b"something else\n")
SHORT_SECONDS: Final = 5.0
"""Enough for a request on a busy machine, and what a test waits for an answer that does not come."""


def versions(client: Any, bucket: Bucket) -> list[Any]:
    """All that the bucket keeps, each version of it."""
    found: list[Any] = client.list_object_versions(Bucket=bucket.name).get("Versions", [])
    return found


async def impatient(bucket: Bucket, way: FaultyWay) -> ObjectStore:
    """A store that is ready and waits for no answer for long."""
    store = ObjectStore(replace(bucket, timeout_seconds=SHORT_SECONDS))
    await ObjectStore(bucket).get_batch(BATCH.id)  # what is read once a process
    store._client()
    way.seen.clear()
    return store


async def fault_of(store: ObjectStore, batch: Batch = BATCH) -> Kind:
    """How a put fails."""
    with pytest.raises(ArchiveError) as caught:
        await store.put_batch(batch)
    return caught.value.fault


async def test_a_batch_is_kept_once_under_a_lock_that_nobody_takes_away(
    bucket: Bucket, way: FaultyWay, storage_client: Any
) -> None:
    store = ObjectStore(bucket)
    first = await store.put_batch(BATCH)
    assert str(first) == f"acme/{1:019}-{3:019} sha256:{BATCH.receipt.sha256}"
    assert await store.put_batch(BATCH) == first
    (version,) = versions(storage_client, bucket)
    assert version["Key"] == f"proof/tenant=acme/{1:019}-{3:019}.jsonl"
    kept = storage_client.get_object(Bucket=bucket.name, Key=version["Key"])
    assert kept["Body"].read() == await store.get_batch(BATCH.id) == BATCH.body
    assert kept["ObjectLockMode"] == "COMPLIANCE"
    assert kept["ObjectLockRetainUntilDate"] - datetime.now(UTC) > timedelta(days=29)
    with pytest.raises(ClientError, match="AccessDenied"):
        storage_client.delete_object(Bucket=bucket.name, Key=version["Key"], VersionId=version["VersionId"])
    assert way.seen.count("PUT") == 1


async def test_other_bytes_under_the_same_id_are_refused_and_change_nothing(bucket: Bucket, storage_client: Any) -> None:
    store = ObjectStore(bucket)
    await store.put_batch(BATCH)
    assert await fault_of(store, OTHER) is Kind.INTEGRITY
    assert await store.get_batch(BATCH.id) == BATCH.body
    assert len(versions(storage_client, bucket)) == 1


async def test_of_two_that_put_at_once_both_get_the_receipt_and_one_object_is_kept(
    bucket: Bucket, way: FaultyWay, storage_client: Any
) -> None:
    """Both look before either has put, so the second put meets the first one's object."""
    arrived = asyncio.Barrier(2)

    async def meets(request: Any) -> bytes | None:
        await arrived.wait()
        return await passes(request)

    way.faults["GET"] = [meets, meets]
    stores = [ObjectStore(bucket), ObjectStore(bucket)]
    receipts = await asyncio.gather(*(store.put_batch(BATCH) for store in stores))
    assert receipts == [BATCH.receipt] * 2
    assert len(versions(storage_client, bucket)) == 1


@pytest.mark.parametrize("fault", [answer_lost, answer_late, refused(500, "InternalError")])
async def test_a_put_whose_answer_is_lost_is_settled_by_reading_and_never_put_again(
    fault: Fault, bucket: Bucket, way: FaultyWay, storage_client: Any
) -> None:
    if fault not in (answer_lost, answer_late):  # done, and told wrongly

        async def fault_after(request: Any, told: Fault = fault) -> bytes | None:
            await request.passed_on()
            return await told(request)

        fault = fault_after
    store = await impatient(bucket, way)
    way.faults["PUT"] = [fault]
    assert await store.put_batch(BATCH) == BATCH.receipt
    assert way.seen == ["GET", "PUT", "GET"]
    assert len(versions(storage_client, bucket)) == 1


@pytest.mark.parametrize("fault", [cut, stalls, refused(500, "InternalError"), refused(503, "SlowDown")])
async def test_a_put_that_is_not_found_by_reading_stays_open_and_is_done_by_the_next_one(
    fault: Fault, bucket: Bucket, way: FaultyWay, storage_client: Any
) -> None:
    store = await impatient(bucket, way)
    way.faults["PUT"] = [fault]
    assert await fault_of(store) is Kind.AMBIGUOUS
    assert way.seen == ["GET", "PUT", "GET"]
    assert await store.put_batch(BATCH) == BATCH.receipt
    assert way.seen == ["GET", "PUT", "GET", "GET", "PUT", "GET"]
    assert len(versions(storage_client, bucket)) == 1


async def test_a_put_that_cannot_be_looked_for_stays_open(bucket: Bucket, way: FaultyWay) -> None:
    way.faults = {"PUT": [answer_lost], "GET": [passes, refused(503, "ServiceUnavailable")]}
    assert await fault_of(ObjectStore(bucket)) is Kind.AMBIGUOUS
    assert await ObjectStore(bucket).put_batch(BATCH) == BATCH.receipt
    assert way.seen.count("PUT") == 1


@pytest.mark.parametrize(
    ("method", "fault", "kind"),
    [
        ("PUT", refused(403, "AccessDenied"), Kind.AUTHORIZATION),
        ("PUT", refused(400, "ExpiredToken"), Kind.AUTHORIZATION),
        ("PUT", refused(400, "BadDigest"), Kind.INTEGRITY),
        ("PUT", refused(501, "NotImplemented"), Kind.CONFIGURATION),
        ("PUT", refused(429, "TooManyRequests"), Kind.UNAVAILABLE),
        ("PUT", body_changed, Kind.INTEGRITY),
        ("PUT", lock_forgotten, Kind.CONFIGURATION),
        ("GET", refused(403, "AccessDenied"), Kind.AUTHORIZATION),
        ("GET", refused(500, "InternalError"), Kind.UNAVAILABLE),
        ("GET", cut, Kind.UNAVAILABLE),
        ("GET", stalls, Kind.TIMEOUT),
    ],
)
async def test_each_failure_has_its_kind_and_brings_no_receipt(
    method: str, fault: Fault, kind: Kind, bucket: Bucket, way: FaultyWay
) -> None:
    store = await impatient(bucket, way)
    way.faults[method] = [fault]
    assert await fault_of(store) is kind
    assert way.seen.count("PUT") == (method == "PUT")


async def test_a_bucket_without_lock_or_one_that_is_not_there_keeps_nothing(bucket: Bucket, storage_client: Any) -> None:
    storage_client.create_bucket(Bucket="without-lock")
    for name in ("without-lock", "not-there"):
        assert await fault_of(ObjectStore(replace(bucket, name=name))) is Kind.CONFIGURATION
    assert versions(storage_client, replace(bucket, name="without-lock")) == []
    assert await ObjectStore(replace(bucket, name="without-lock", lock="NONE")).put_batch(BATCH) == BATCH.receipt


async def test_a_lock_that_is_weaker_than_asked_for_brings_no_receipt(bucket: Bucket) -> None:
    await ObjectStore(replace(bucket, lock="GOVERNANCE")).put_batch(BATCH)
    assert await fault_of(ObjectStore(bucket)) is Kind.CONFIGURATION
    assert await ObjectStore(replace(bucket, lock="GOVERNANCE")).put_batch(BATCH) == BATCH.receipt


async def test_nobody_listens_there(bucket: Bucket) -> None:
    assert await fault_of(ObjectStore(replace(bucket, endpoint="http://127.0.0.1:9"))) is Kind.UNAVAILABLE


async def test_without_credentials_nothing_is_asked(bucket: Bucket, way: FaultyWay, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    assert await fault_of(ObjectStore(bucket)) is Kind.AUTHORIZATION
    assert way.seen == []


async def test_batches_are_listed_of_one_tenant_in_the_order_of_cursors(bucket: Bucket, storage_client: Any) -> None:
    store = ObjectStore(bucket)
    ids = [BatchId("acme", first, first + 99) for first in (1, 101, 201)]
    for batch_id in reversed(ids):
        await store.put_batch(Batch(batch_id, b"x"))
    await store.put_batch(Batch(BatchId("acme-2", 1, 1), b"x"))
    storage_client.put_object(Bucket=bucket.name, Key="proof/tenant=acme/notes.txt", Body=b"")
    assert await store.list_batches("acme") == ids
    assert await store.list_batches("nobody") == []
    assert await store.get_batch(BatchId("acme", 7, 8)) is None
