"""Operators put away what is over, prove it, keep it and forget it, from a command line."""

import hashlib
import io
from pathlib import Path
from typing import Final

import pytest
from taskstore.v1 import retention_pb2

from store_service.operator.connection import Connection
from store_service.operator.display import Display
from tests.conftest import Clock, Stubs
from tests.operator.conftest import Operator
from tests.store.builders import DAY_MS, cancel, create, lease

DAY: Final = 86_400.0
TENANT: Final = ("--tenant", "acme")


async def removed(store: Stubs, clock: Clock, operator: Operator, *, tasks: int) -> list[str]:
    """Tasks that were removed by the operator."""
    ids = []
    for _ in range(tasks):
        task_id = (await create(store, tenant_id="acme", ttl_ms=1_000)).task_id
        await store.tasks.CancelTask(cancel(task_id, tenant_id="acme"))
        ids.append(task_id)
    await clock.advance(seconds=60 * DAY)
    assert await operator.does("retention", "run") == 0
    assert operator.row == {"tenant_id": "acme", "removed": tasks, "note": ""}
    return ids


async def test_what_is_over_is_shown_removed_listed_and_told_with_its_history(
    store: Stubs, clock: Clock, operator: Operator
) -> None:
    ids = await removed(store, clock, operator, tasks=3)
    assert await operator.does("retention", "status", *TENANT) == 0
    assert (operator.row["last_cursor"], operator.row["exported_cursor"], operator.row["due_since"]) == (3, 0, None)
    assert await operator.does("tombstones", "list", *TENANT, "--after", 1) == 0
    assert [row["task_id"] for row in operator.rows] == ids[1:]
    assert operator.rows[0]["removed_by"] == "ann"
    assert await operator.does("tombstones", "show", *TENANT, ids[0]) == 0
    row = operator.row
    assert row["state"] == "CANCELLED"
    assert "CREATED" in row["history"].splitlines()[0]
    assert hashlib.sha256(row["history"].encode()).hexdigest() == row["history_digest"]
    assert await operator.does("tombstones", "show", *TENANT, "00000000-0000-4000-8000-000000000000") == 5
    assert "TOMBSTONE_NOT_FOUND" in operator.trouble


@pytest.mark.parametrize(("limits", "cursors"), [({}, [2, 3, 4, 5]), ({"limit": 3}, [2, 3, 4]), ({"limit": 0}, [])])
async def test_a_list_is_read_page_after_page_up_to_its_limit(
    store: Stubs, clock: Clock, operator: Operator, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], cursors: list[int]
) -> None:
    await removed(store, clock, operator, tasks=5)
    monkeypatch.setattr("store_service.operator.connection.PAGE", 2)
    request = retention_pb2.ListTombstonesRequest(tenant_id="acme", after_cursor=1)
    async with Connection(store.address, None, "ann") as connection:
        asked = connection.retention.ListTombstones
        stones = connection.each(asked, request, lambda page: page.tombstones, by="cursor", **limits)
        assert [stone.cursor async for stone in stones] == cursors


async def test_the_archive_proves_what_was_removed_and_tells_what_was_taken_from_it(
    store: Stubs, clock: Clock, operator: Operator, archive: Path
) -> None:
    ids = await removed(store, clock, operator, tasks=3)
    assert await operator.does("tombstones", "verify", *TENANT, ids[1]) == 1
    assert operator.row["archive"] == "missing"
    assert await operator.does("archive", "export", *TENANT) == 0
    assert (operator.row["batches"], operator.row["through_cursor"]) == (1, 3)
    assert await operator.does("archive", "export", *TENANT) == 0
    assert (operator.row["batches"], operator.row["through_cursor"]) == (0, 3)
    assert await operator.does("tombstones", "verify", *TENANT, ids[1]) == 0
    assert operator.row == {"task_id": ids[1], "state": "CANCELLED", "store": "proved", "archive": "proved"}
    assert await operator.does("archive", "verify", *TENANT) == 0
    assert operator.row == {
        "tenant_id": "acme", "through_cursor": 3, "batches": 1, "tombstones": 3, "proved": 3, "not_kept": 0, "purged": 0,
        "faults": 0,
    }  # fmt: skip

    (path,) = (archive / "tenant=acme").iterdir()
    path.chmod(0o640)
    kept = path.read_bytes()
    path.write_bytes(kept.replace(b"CANCELLED", b"COMPLETED", 1))
    assert await operator.does("archive", "verify", *TENANT) == 1
    assert operator.rows[0]["fault"].endswith(f"not with {hashlib.sha256(kept).hexdigest()}")
    assert await operator.does("tombstones", "verify", *TENANT, ids[1]) == 1
    path.unlink()
    assert await operator.does("archive", "verify", *TENANT) == 1
    assert operator.rows[0] == {"first": 1, "last": 3, "fault": "missing"}
    assert operator.rows[1]["faults"] == 1


async def test_a_hold_keeps_a_task_until_it_is_released(store: Stubs, clock: Clock, operator: Operator) -> None:
    task_id = (await create(store, tenant_id="acme", ttl_ms=1_000)).task_id
    await store.tasks.CancelTask(cancel(task_id, tenant_id="acme"))
    assert await operator.does("holds", "place", *TENANT, task_id, "--reason", "case 17") == 0
    hold = operator.row
    assert (hold["placed_by"], hold["reason"], hold["released_at"]) == ("ann", "case 17", None)
    await clock.advance(seconds=60 * DAY)
    assert await operator.does("retention", "run") == 0
    assert operator.rows == []
    assert await operator.does("holds", "list", *TENANT, "--active") == 0
    assert operator.row == hold
    assert await operator.does("holds", "release", *TENANT, hold["number"], "--principal", "bob") == 0
    assert operator.row["released_by"] == "bob"
    assert await operator.does("holds", "list", *TENANT, "--active") == 0
    assert operator.rows == []
    assert await operator.does("retention", "run") == 0
    assert operator.row["removed"] == 1


async def test_tombstones_are_purged_by_two_persons_and_the_archive_still_proves_them(
    store: Stubs, clock: Clock, operator: Operator
) -> None:
    ids = await removed(store, clock, operator, tasks=2)
    prepare = ("purge", "prepare", *TENANT, "--older-than-days", 30, "--request-id", "autumn")
    assert await operator.does(*prepare) == 4
    assert "NOT_EXPORTED" in operator.trouble
    assert await operator.does("archive", "export", *TENANT) == 0
    assert await operator.does(*prepare) == 5
    await clock.advance(seconds=31 * DAY)
    assert await operator.does(*prepare) == 0
    number = operator.row["number"]
    assert await operator.does(*prepare) == 0
    assert operator.row["number"] == number
    assert await operator.does("purge", "approve", *TENANT, number) == 4
    assert "SECOND_PERSON_REQUIRED" in operator.trouble
    assert await operator.does("purge", "inbox", *TENANT, "--claim", "--principal", "bob") == 0
    claim = operator.row["claim_token"]
    assert await operator.does("purge", "inbox", *TENANT) == 0
    assert (operator.row["state"], operator.row["reviewer"]) == ("CLAIMED", "bob")
    assert await operator.does("purge", "approve", *TENANT, number, "--claim", claim, "--principal", "bob") == 0
    assert await operator.does("purge", "execute", *TENANT, number) == 0
    evidence = operator.row
    assert (evidence["tombstones"], evidence["prepared_by"], evidence["approved_by"]) == (2, "ann", "bob")
    lines = "".join(f"{cursor} {task_id}\n" for cursor, task_id in enumerate(ids, start=1))
    assert evidence["fingerprint"] == hashlib.sha256(lines.encode()).hexdigest()
    assert await operator.does("purge", "evidence", *TENANT, number) == 0
    assert operator.row == evidence
    assert await operator.does("tombstones", "verify", *TENANT, ids[0]) == 0
    assert operator.row == {"task_id": ids[0], "state": "CANCELLED", "store": "purged", "archive": "proved"}
    assert await operator.does("archive", "verify", *TENANT) == 0
    assert (operator.row["purged"], operator.row["proved"]) == (2, 2)


async def test_a_purge_that_was_rejected_is_over(store: Stubs, clock: Clock, operator: Operator) -> None:
    await removed(store, clock, operator, tasks=1)
    assert await operator.does("archive", "export", *TENANT) == 0
    await clock.advance(seconds=2 * DAY)
    assert await operator.does("purge", "prepare", *TENANT, "--older-than-days", 1) == 0
    number = operator.row["number"]
    assert await operator.does("purge", "reject", *TENANT, number, "--reason", "case 17", "--principal", "bob") == 0
    assert (operator.row["state"], operator.row["rejection"]) == ("REJECTED", "case 17")
    assert await operator.does("purge", "approve", *TENANT, number, "--principal", "eve") == 4
    assert await operator.does("purge", "inbox", *TENANT) == 0
    assert operator.rows == []
    assert await operator.does("purge", "inbox", *TENANT, "--all") == 0
    assert operator.row["number"] == number


async def test_each_way_to_fail_has_its_code_and_says_what_to_do(store: Stubs, operator: Operator, tmp_path: Path) -> None:
    await create(store, tenant_id="acme", ttl_ms=DAY_MS)
    for arguments, code, said in (
        (("holds", "list"), 2, "--tenant"),
        (("archive", "export", *TENANT, "--archive", "somewhere"), 8, "configuration"),
        (("archive", "export", *TENANT, "--archive", ""), 2, "TENURE_STORE_ARCHIVE"),
        (("retention", "status", *TENANT, "--certificate", "x"), 2, "--ca"),
        (("retention", "status", "--tenant", "nobody"), 5, "TENANT_NOT_FOUND"),
        (("holds", "release", *TENANT, 7), 5, "HOLD_NOT_FOUND"),
        (("purge", "evidence", *TENANT, 7), 5, "PURGE_NOT_FOUND"),
        (("tombstones", "show", *TENANT, "no id"), 4, "INVALID_INPUT"),
    ):
        assert await operator.does(*arguments) == code, arguments
        assert said in operator.trouble, arguments
    operator.environment["TENURE_STORE_ARCHIVE_LOCK"] = "SOME"
    assert await operator.does("archive", "verify", *TENANT) == 2
    assert "TENURE_STORE_ARCHIVE_LOCK must be" in operator.trouble


async def test_text_is_a_table_and_what_there_is_one_of_has_a_line_for_each_thing(
    store: Stubs, clock: Clock, operator: Operator
) -> None:
    (task_id,) = await removed(store, clock, operator, tasks=1)
    assert await operator.does("tombstones", "list", *TENANT, "--output", "text") == 0
    head, line = operator.said.splitlines()
    assert head.split() == ["CURSOR", "TASK_ID", "TOOL", "STATE", "ENDED_AT", "REMOVED_AT", "REMOVED_BY"]
    assert line.split()[:4] == ["1", task_id, "report", "CANCELLED"]
    assert await operator.does("tombstones", "show", *TENANT, task_id, "--output", "text") == 0
    assert f"task_id           {task_id}" in operator.said.splitlines()


class Terminal(io.StringIO):
    """What a person looks at."""

    def isatty(self) -> bool:
        return True


def test_progress_is_written_over_on_a_terminal_and_nowhere_else() -> None:
    out, terminal, file = io.StringIO(), Terminal(), io.StringIO()
    seen = Display(as_json=True, out=out, err=terminal)
    seen.progress("acme: 100 removed")
    seen.progress("acme: 200 removed\x1b[2J")
    seen.row({"tenant_id": "acme"}, ["tenant_id"])
    assert terminal.getvalue() == "\r\x1b[Kacme: 100 removed\r\x1b[Kacme: 200 removed\ufffd[2J\r\x1b[K"
    Display(as_json=True, out=out, err=file).progress("acme: 100 removed")
    assert file.getvalue() == ""
    assert out.getvalue() == '{"tenant_id": "acme"}\n'


async def test_an_operator_is_told_which_worker_has_a_task(store: Stubs, operator: Operator) -> None:
    await create(store, tenant_id="acme")
    held = (await lease(store, worker_id="reports-7")).lease
    assert await operator.does("task", "why", "--tenant", "acme", held.task_id) == 0
    assert (operator.row["cause"], operator.row["worker_id"]) == ("RUNNING", "reports-7")
    assert operator.row["text"].startswith("A worker is at it since ")
    assert await operator.does("task", "why", "--tenant", "globex", held.task_id) == 5
