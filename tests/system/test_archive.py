"""After its handle is over nobody finds a task; its tombstone says what happened, and the archive proves it."""

import asyncio
import hashlib
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest
from taskstore.v1 import retention_pb2, retention_pb2_grpc, tasks_pb2

from mcp_bridge.client import HandleExpired, Policy, TaskClient, TaskHandle
from store_service.client import TaskStore
from store_service.client.channel import open_channel
from tests.conftest import MOVABLE_CLOCK, Clock
from tests.pair import ROOT, Pair
from tests.system.conftest import REPORT_ROUTES, REPORT_WORKER
from tests.system.test_kills import PATIENCE_SECONDS, until

TENANT: Final = ("--tenant", "dev")
HOUR: Final = 3_600.0


@pytest.fixture
def archived_pair(tmp_path: Path) -> Iterator[Pair]:
    """A pair that removes what is over by itself, and archives it in a folder."""
    (tmp_path / "archive").mkdir()
    settings = {
        "TENURE_STORE_CLEANUP": "true",
        "TENURE_STORE_CLEANUP_SCAN_SECONDS": "0.5",
        "TENURE_STORE_ARCHIVE": str(tmp_path / "archive"),
    }
    with Pair(tmp_path, routes=REPORT_ROUTES, durable=False, store_settings=settings) as pair:
        yield pair


@pytest.fixture
async def clock(archived_pair: Pair) -> AsyncIterator[Clock]:
    """The clock of the pair's database."""
    database = await asyncpg.connect(archived_pair.postgres.dsn)
    await database.execute(MOVABLE_CLOCK)
    yield Clock(database)
    await database.close()


async def operator(pair: Pair, archive: Path, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """What `tenure-store` ends with, and what it says."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "store_service", *arguments, "--store", pair.store_address, "--archive", str(archive),
        cwd=ROOT, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, [json.loads(line) for line in out.splitlines()]


async def test_a_task_that_is_no_longer_found_is_told_by_its_tombstone_and_proved_by_the_archive(
    archived_pair: Pair, clock: Clock, tmp_path: Path
) -> None:
    pair, archive = archived_pair, tmp_path / "archive"
    pair.start_worker("worker", REPORT_WORKER)
    async with TaskClient(pair.url, policy=Policy(deadline_seconds=PATIENCE_SECONDS)) as client:
        handle = await client.call_tool_outcome("durable_report", {"seconds_per_step": 0})
        assert isinstance(handle, TaskHandle)
        assert not (await client.wait_task(handle)).is_error
        events = await history(pair, handle.task_id)

        await clock.advance(seconds=2 * HOUR)
        with pytest.raises(HandleExpired):
            await client.get_task(handle)
    await clock.advance(seconds=40 * 24 * HOUR)

    async with open_channel(pair.store_address) as channel:
        store = retention_pb2_grpc.RetentionServiceStub(channel)

        async def is_archived() -> bool:
            told = await store.GetRetention(retention_pb2.GetRetentionRequest(tenant_id="dev"))
            return told.exported.through_cursor > 0

        await until(is_archived)
        request = retention_pb2.GetTombstoneRequest(tenant_id="dev", task_id=handle.task_id)
        stone = (await store.GetTombstone(request)).tombstone
    assert (stone.tool, stone.workflow) == ("durable_report", "durable-report")
    assert [json.loads(line)[1] for line in stone.history.splitlines()] == events
    assert hashlib.sha256(stone.history).digest() == stone.history_digest

    code, (told,) = await operator(pair, archive, "tombstones", "verify", *TENANT, handle.task_id)
    assert (code, told["state"], told["store"], told["archive"]) == (0, "COMPLETED", "proved", "proved")
    assert (await operator(pair, archive, "archive", "verify", *TENANT))[0] == 0

    (batch,) = (archive / "tenant=dev").iterdir()
    batch.chmod(0o600)
    batch.write_bytes(batch.read_bytes().replace(b"COMPLETED", b"CANCELLED"))
    code, (told,) = await operator(pair, archive, "tombstones", "verify", *TENANT, handle.task_id)
    assert (code, told["store"], told["archive"]) == (1, "proved", "missing")
    code, told_all = await operator(pair, archive, "archive", "verify", *TENANT)
    assert (code, told_all[0]["first"], told_all[-1]["faults"]) == (1, 1, 1)


async def history(pair: Pair, task_id: str) -> list[str]:
    """The events of a task that ended."""
    async with TaskStore.connect(pair.store_address) as store:
        answer = await store.list_task_history(tasks_pb2.ListTaskHistoryRequest(tenant_id="dev", task_id=task_id))
        return [tasks_pb2.HistoryEvent.Name(line.event).removeprefix("HISTORY_EVENT_") for line in answer.lines]
