"""Batches as files of a folder, on a disk of this machine or one that is mounted."""

import asyncio
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from store_service.archive.batches import MOST_BYTES, Batch, BatchId, Receipt
from store_service.archive.errors import ArchiveError, Fault


class Folder:
    """A destination. See `Destination`.

    A file gets its name by a link when all of it is on the disk, and a link is made only where there is no file. Whoever is
    killed leaves nothing but a file `.….part`, which nobody reads.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def put_batch(self, batch: Batch) -> Receipt:
        """See `Destination`."""
        return await asyncio.to_thread(self._put, batch)

    async def get_batch(self, batch_id: BatchId) -> bytes | None:
        """See `Destination`."""
        return await asyncio.to_thread(self._read, batch_id)

    async def list_batches(self, tenant_id: str) -> list[BatchId]:
        """See `Destination`."""
        return await asyncio.to_thread(self._list, tenant_id)

    async def close(self) -> None:
        """See `Destination`."""

    def _put(self, batch: Batch) -> Receipt:
        with _told():
            path = self._folder / batch.id.path
            if not self._folder.is_dir():
                raise ArchiveError(Fault.CONFIGURATION, f"{self._folder} is no folder")
            if not path.parent.is_dir():
                path.parent.mkdir(exist_ok=True)
                _sync(self._folder)
            if not path.exists():
                _link(path, batch.body)
            _sync(path.parent)  # also for a file whose writer was killed before it did this
        kept = self._read(batch.id)
        if kept is None:
            raise ArchiveError(Fault.INTEGRITY, f"{path} is gone as soon as it is written")
        batch.receipt.check(kept)
        return batch.receipt

    def _read(self, batch_id: BatchId) -> bytes | None:
        with _told():
            try:
                with (self._folder / batch_id.path).open("rb") as file:
                    body = file.read(MOST_BYTES + 1)
            except FileNotFoundError:
                return None
        if len(body) > MOST_BYTES:
            raise ArchiveError(Fault.INTEGRITY, f"{batch_id} is larger than any batch")
        return body

    def _list(self, tenant_id: str) -> list[BatchId]:
        with _told():
            try:
                paths = list((self._folder / f"tenant={tenant_id}").iterdir())
            except FileNotFoundError:
                return []
        found = (BatchId.from_path(f"{path.parent.name}/{path.name}") for path in paths)
        return sorted(each for each in found if each is not None)


def _link(path: Path, body: bytes) -> None:
    """Writes a file, all of it or nothing, unless there is one."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o440)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(descriptor)
        with suppress(FileExistsError):  # somebody was quicker: the same bytes, or the receipt says so
            path.hardlink_to(part)
    finally:
        part.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _told() -> Iterator[None]:
    """Errors of the system as errors of an archive."""
    try:
        yield
    except PermissionError as error:
        raise ArchiveError(Fault.AUTHORIZATION, f"{error.filename}: {error.strerror}") from error
    except OSError as error:
        raise ArchiveError(Fault.UNAVAILABLE, f"{error.filename or 'the archive'}: {error.strerror}") from error
