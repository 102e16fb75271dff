"""From settings to a destination."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from store_service.archive.batches import Destination
from store_service.archive.errors import ArchiveError, Fault
from store_service.archive.folder import Folder

LOCKS: Final = ("COMPLIANCE", "GOVERNANCE", "NONE")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings:
    """Where an archive is and how it is kept. All but the address is for object storage."""

    address: str
    """The path of a folder, or `s3://bucket` or `s3://bucket/what/names/begin/with`."""
    endpoint: str = ""
    """The storage's address, where it is not AWS's."""
    region: str = "us-east-1"
    lock: str = "COMPLIANCE"
    """COMPLIANCE, GOVERNANCE or NONE."""
    lock_days: int = 3_650
    timeout_seconds: float = 30.0


def open_destination(settings: ArchiveSettings) -> Destination:
    """The destination. Asks nobody yet. Raises ArchiveError CONFIGURATION."""
    found = urlsplit(settings.address)
    if found.scheme == "s3":
        return _object_store(settings, found.netloc, found.path.strip("/"))
    if settings.address.startswith("/"):
        return Folder(Path(settings.address))
    raise ArchiveError(Fault.CONFIGURATION, f"{settings.address!r} is no archive; it is an absolute path or s3://bucket/prefix")


def _object_store(settings: ArchiveSettings, bucket: str, prefix: str) -> Destination:
    if not bucket:
        raise ArchiveError(Fault.CONFIGURATION, f"{settings.address!r} names no bucket")
    try:
        from store_service.archive.object_store import Bucket, ObjectStore  # noqa: PLC0415 (an extra of its own)
    except ModuleNotFoundError as missing:
        text = f"{missing.name} is not installed; run: pip install 'tenure[archive]'"
        raise ArchiveError(Fault.CONFIGURATION, text) from None
    return ObjectStore(
        Bucket(
            name=bucket,
            prefix=f"{prefix}/" if prefix else "",
            endpoint=settings.endpoint or None,
            region=settings.region,
            lock="COMPLIANCE" if settings.lock == "COMPLIANCE" else "GOVERNANCE" if settings.lock == "GOVERNANCE" else "NONE",
            lock_days=settings.lock_days,
            timeout_seconds=settings.timeout_seconds,
        )
    )
