"""The load in small: what must hold of a million tasks holds of some thousand."""

from pathlib import Path

from store_service.embedded import EmbeddedPostgres
from tests.databases import Databases
from tests.retention.load import run


async def test_each_task_leaves_one_tombstone_however_often_the_stores_that_clean_up_are_killed(
    postgres: EmbeddedPostgres, databases: Databases, tmp_path: Path
) -> None:
    dsn = await databases.take_empty()
    report = await run(dsn, tmp_path, tasks=5_000, tenants=50, kills=3, calm_seconds=2, lease_seconds=2, most_seconds=240)
    assert report.wrong == []
    assert report.kills == 3
    assert report.claims_meanwhile["claims"] > 0
