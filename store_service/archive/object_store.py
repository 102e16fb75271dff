"""Batches as objects of S3, or of a storage that speaks like it, each locked for as long as it must be kept."""

import asyncio
import base64
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, TypeVar

from botocore import exceptions
from botocore.config import Config
from botocore.session import get_session

from store_service.archive.batches import MOST_BYTES, Batch, BatchId, Receipt
from store_service.archive.errors import ArchiveError, Fault

Value = TypeVar("Value")
Lock = Literal["COMPLIANCE", "GOVERNANCE", "NONE"]

_CONNECT_SECONDS: Final = 10.0
_AUTHORIZATION: Final = frozenset({"ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"})
_INTEGRITY: Final = frozenset(
    {"BadDigest", "IncompleteBody", "InvalidDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Where the objects are. Credentials are found as AWS's own programs find them."""

    name: str
    prefix: str = ""
    """What the names of all objects begin with."""
    endpoint: str | None = None
    """The storage's address, where it is not AWS's."""
    region: str = "us-east-1"
    lock: Lock = "COMPLIANCE"
    """How an object is locked: COMPLIANCE lets nobody take it away, GOVERNANCE those with a right of their own."""
    lock_days: int = 3_650
    timeout_seconds: float = 30.0
    """How long one request may take."""


class ObjectStore:
    """A destination. See `Destination`. The bucket must have object lock, unless the lock is NONE.

    An object is put only where there is none, and read back before its receipt is given. A put whose outcome is not known is
    settled by reading, never by another put.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._opening = threading.Lock()
        self._opened: Any = None

    async def put_batch(self, batch: Batch) -> Receipt:
        """See `Destination`."""
        if await self._is_kept(batch):
            return batch.receipt
        try:
            await self._asked(lambda: self._put(batch), is_put=True)
        except ArchiveError as error:
            if error.fault is not Fault.AMBIGUOUS or not await self._settle(batch, error):
                raise
            return batch.receipt
        if not await self._is_kept(batch):
            raise ArchiveError(Fault.INTEGRITY, f"{batch.id} is not there as soon as it is written")
        return batch.receipt

    async def get_batch(self, batch_id: BatchId) -> bytes | None:
        """See `Destination`."""
        found = await self._asked(lambda: self._get(batch_id))
        return found[0] if found is not None else None

    async def list_batches(self, tenant_id: str) -> list[BatchId]:
        """See `Destination`."""
        return sorted(await self._asked(lambda: self._list(f"{self._bucket.prefix}tenant={tenant_id}/")))

    async def close(self) -> None:
        """See `Destination`."""
        if self._opened is not None:
            await asyncio.to_thread(self._opened.close)

    async def _settle(self, batch: Batch, put: ArchiveError) -> bool:
        """Whether a put whose outcome is not known was done."""
        try:
            return await self._is_kept(batch)
        except ArchiveError as error:
            if error.fault in (Fault.INTEGRITY, Fault.CONFIGURATION):
                raise
            raise ArchiveError(Fault.AMBIGUOUS, f"{put}; nor could it be read: {error}") from error

    async def _is_kept(self, batch: Batch) -> bool:
        """Whether these bytes are there, under a lock. Raises ArchiveError for other bytes, and for no lock."""
        found = await self._asked(lambda: self._get(batch.id))
        if found is None:
            return False
        body, lock = found
        batch.receipt.check(body)
        if self._bucket.lock not in ("NONE", lock) and lock != "COMPLIANCE":
            raise ArchiveError(
                Fault.CONFIGURATION,
                f"{batch.id} is kept with the lock {lock}, not {self._bucket.lock}: the bucket has no object lock, or "
                "s3:GetObjectRetention is not allowed",
            )
        return True

    async def _asked(self, work: Callable[[], Value], *, is_put: bool = False) -> Value:
        """What a request brings, in time, or an ArchiveError that says what is known."""
        try:
            async with asyncio.timeout(self._bucket.timeout_seconds):
                return await asyncio.to_thread(work)
        except ArchiveError:
            raise
        except Exception as error:
            raise ArchiveError(_fault_of(error, is_put=is_put), _text_of(error)) from error

    def _put(self, batch: Batch) -> None:
        checksum = base64.b64encode(bytes.fromhex(batch.receipt.sha256)).decode()
        lock: dict[str, Any] = {}
        if self._bucket.lock != "NONE":
            until = datetime.now(UTC) + timedelta(days=self._bucket.lock_days)
            lock = {"ObjectLockMode": self._bucket.lock, "ObjectLockRetainUntilDate": until}
        self._client().put_object(
            Bucket=self._bucket.name, Key=self._key(batch.id), Body=batch.body, IfNoneMatch="*",
            ChecksumAlgorithm="SHA256", ChecksumSHA256=checksum, **lock,
        )  # fmt: skip

    def _get(self, batch_id: BatchId) -> tuple[bytes, str] | None:
        """The bytes that are kept, and their lock: NONE for one that is none, or is over."""
        try:
            answer = self._client().get_object(Bucket=self._bucket.name, Key=self._key(batch_id), ChecksumMode="ENABLED")
        except exceptions.ClientError as error:
            if _code_of(error) == "NoSuchKey":
                return None
            raise
        with answer["Body"] as stream:
            if answer["ContentLength"] > MOST_BYTES:
                raise ArchiveError(Fault.INTEGRITY, f"{batch_id} is larger than any batch")
            body: bytes = stream.read()
        until = answer.get("ObjectLockRetainUntilDate")
        return body, answer["ObjectLockMode"] if until is not None and until > datetime.now(UTC) else "NONE"

    def _list(self, prefix: str) -> list[BatchId]:
        pages = self._client().get_paginator("list_objects_v2").paginate(Bucket=self._bucket.name, Prefix=prefix)
        keys = [each["Key"] for page in pages for each in page.get("Contents", ())]
        found = (BatchId.from_path(key.removeprefix(self._bucket.prefix)) for key in keys)
        return [each for each in found if each is not None]

    def _client(self) -> Any:
        with self._opening:
            if self._opened is None:
                seconds = self._bucket.timeout_seconds
                config = Config(
                    retries={"total_max_attempts": 1},
                    connect_timeout=min(seconds, _CONNECT_SECONDS),
                    read_timeout=seconds,
                    s3={"addressing_style": "path"} if self._bucket.endpoint else None,
                )
                self._opened = get_session().create_client(
                    "s3", region_name=self._bucket.region, endpoint_url=self._bucket.endpoint, config=config
                )
            return self._opened

    def _key(self, batch_id: BatchId) -> str:
        return f"{self._bucket.prefix}{batch_id.path}"


def _fault_of(error: Exception, *, is_put: bool) -> Fault:
    """What a failure says of the destination. Of a put, whatever does not say that it was not done leaves that open."""
    match error:
        case exceptions.ClientError():
            return _fault_of_answer(error, is_put=is_put)
        case exceptions.EndpointConnectionError() | exceptions.ProxyConnectionError():
            return Fault.UNAVAILABLE
        case exceptions.ConnectTimeoutError():
            return Fault.TIMEOUT
        case exceptions.NoCredentialsError() | exceptions.PartialCredentialsError() | exceptions.CredentialRetrievalError():
            return Fault.AUTHORIZATION
        case exceptions.ParamValidationError() | ValueError():
            return Fault.CONFIGURATION
        case _ if is_put:
            return Fault.AMBIGUOUS
        case TimeoutError() | exceptions.ReadTimeoutError():
            return Fault.TIMEOUT
        case exceptions.SSLError():
            return Fault.CONFIGURATION
        case exceptions.FlexibleChecksumError():
            return Fault.INTEGRITY
        case OSError() | exceptions.HTTPClientError() | exceptions.IncompleteReadError():
            return Fault.UNAVAILABLE
        case _:
            return Fault.OTHER


def _fault_of_answer(error: exceptions.ClientError, *, is_put: bool) -> Fault:
    code, status = _code_of(error), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    match status:
        case 401 | 403:
            return Fault.AUTHORIZATION
        case _ if code in _AUTHORIZATION:
            return Fault.AUTHORIZATION
        case _ if code in _INTEGRITY:
            return Fault.INTEGRITY
        case 409 | 412:
            return Fault.AMBIGUOUS  # somebody else puts it, or has: reading says which
        case 429:
            return Fault.UNAVAILABLE
        case 501:
            return Fault.CONFIGURATION
        case _ if status >= 500:
            return Fault.AMBIGUOUS if is_put else Fault.UNAVAILABLE
        case _ if 300 <= status < 500:
            return Fault.CONFIGURATION
        case _:
            return Fault.AMBIGUOUS if is_put else Fault.OTHER


def _code_of(error: exceptions.ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _text_of(error: Exception) -> str:
    match error:
        case exceptions.ClientError():
            return f"{error.operation_name}: {_code_of(error)}: {error.response.get('Error', {}).get('Message', '')}"
        case TimeoutError():
            return "the storage did not answer in time"
        case _:
            return str(error)
