"""A folder keeps each batch once, all of it or nothing, whenever its writer is killed."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from store_service.archive.batches import Batch, BatchId, Receipt
from store_service.archive.errors import ArchiveError, Fault
from store_service.archive.folder import Folder
from tests.archive.killed_writer import BATCH
from tests.pair import ROOT


async def test_a_batch_is_kept_once_and_again_with_the_same_receipt(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    receipts = await asyncio.gather(*(folder.put_batch(BATCH) for _ in range(8)))
    assert receipts == [BATCH.receipt] * 8
    assert await folder.get_batch(BATCH.id) == BATCH.body
    assert [path.name for path in (tmp_path / "tenant=acme").iterdir()] == [f"{1:019}-{3:019}.jsonl"]


async def test_other_bytes_under_the_same_id_are_refused_and_change_nothing(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    await folder.put_batch(BATCH)
    with pytest.raises(ArchiveError, match=BATCH.receipt.sha256) as caught:
        await folder.put_batch(Batch(BATCH.id, b"something else\n"))
    assert caught.value.fault is Fault.INTEGRITY
    assert await folder.get_batch(BATCH.id) == BATCH.body


async def test_whoever_is_killed_leaves_nothing_or_the_whole_and_the_next_one_completes_it(tmp_path: Path) -> None:
    """A writer kills itself when the folder has changed once, twice, and so on: an empty part, a whole one, the link."""
    left: list[bool] = []
    for change in range(1, 50):
        place = tmp_path / str(change)
        place.mkdir()
        command = (sys.executable, "-m", "tests.archive.killed_writer", place, str(change))
        writer = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
        code = await writer.wait()
        if code == 0:
            break
        assert code == -signal.SIGKILL
        folder = Folder(place)
        kept = await folder.get_batch(BATCH.id)
        assert kept in (None, BATCH.body), change
        assert await folder.list_batches("acme") == ([] if kept is None else [BATCH.id])
        left.append(kept is not None)
        assert await folder.put_batch(BATCH) == BATCH.receipt
        assert await folder.get_batch(BATCH.id) == BATCH.body
    else:
        pytest.fail("the writer never came to its end")
    assert left == sorted(left), "it was kept, and then it was not"
    assert {False, True} == set(left)


async def test_a_folder_that_is_not_there_or_may_not_be_written_keeps_nothing(tmp_path: Path) -> None:
    for place, fault in ((tmp_path / "nowhere", Fault.CONFIGURATION), (Path("/proc/self"), Fault.UNAVAILABLE)):
        with pytest.raises(ArchiveError) as caught:
            await Folder(place).put_batch(BATCH)
        assert caught.value.fault is fault


@pytest.mark.parametrize("tenant_id", [".", "..", "acme", "A.b_c-1"])
async def test_no_name_of_a_tenant_leads_out_of_the_folder(tmp_path: Path, tenant_id: str) -> None:
    batch = Batch(BatchId(tenant_id, 1, 1), b"x")
    await Folder(tmp_path).put_batch(batch)
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert path.parent.parent == tmp_path
    assert await Folder(tmp_path).list_batches(tenant_id) == [batch.id]


@pytest.mark.parametrize(
    "text", ["", "acme", "acme/1-2", f"acme/{2:019}-{1:019}", f"a/b/{1:019}-{1:019}", f"é/{1:019}-{1:019}"]
)
def test_what_is_no_id_and_no_receipt_is_refused(text: str) -> None:
    for read in (BatchId.parse, Receipt.parse):
        with pytest.raises(ValueError, match="is no"):
            read(text)
    assert Receipt.parse(str(BATCH.receipt)) == BATCH.receipt
