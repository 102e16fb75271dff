"""The texts of the queries against a real database, and against the code that sends them and reads their rows."""

import ast
import re
from dataclasses import fields
from pathlib import Path
from typing import Final

import asyncpg
import pytest

import store_service
from store_service.db.queries import Queries
from store_service.model.audit import AuditLine
from store_service.model.explanations import Situation
from store_service.model.purges import Purge, PurgeEvidence, TombstoneExport
from store_service.model.retention import Hold, Tombstone
from store_service.model.tasks import TenantPolicy
from store_service.model.waits import SignalFacts

FLOORS: Final = Path(str(store_service.__file__)).parent
FILES: Final = sorted(path.name for path in (FLOORS / "db").glob("*.sql"))
TOMBSTONE: Final = {field.name for field in fields(Tombstone)}
PURGE: Final = {field.name for field in fields(Purge)}
EVIDENCE: Final = {field.name for field in fields(PurgeEvidence)}
HOLD: Final = {field.name for field in fields(Hold)}
WHOLE: Final = {
    "get_tenant": {
        *("tenant_id", "outstanding", "leased", "workflow", "version", "actor", "reason", "paused_at"),
        *(field.name for field in fields(TenantPolicy)),
    },
    "get_signal": {field.name for field in fields(SignalFacts)},
    "list_signals": {field.name for field in fields(SignalFacts)},
    "list_signals_of_task": {field.name for field in fields(SignalFacts)},
    "explain_task": {field.name for field in fields(Situation)},
    "remove_tasks": TOMBSTONE | {"outcome"},
    "list_tombstones": TOMBSTONE,
    "get_tombstone": TOMBSTONE,
    "place_hold": HOLD | {"outcome", "replayed"},
    "release_hold": HOLD | {"outcome"},
    "list_holds": HOLD,
    "list_holds_of_task": HOLD,
    "confirm_export": {field.name for field in fields(TombstoneExport)} | {"outcome"},
    "prepare_purge": PURGE | {"outcome"},
    "list_purges": PURGE,
    "claim_purge": PURGE | {"outcome"},
    "decide_purge": PURGE | {"outcome"},
    "execute_purge": EVIDENCE | {"outcome"},
    "get_purge_evidence": EVIDENCE,
    "list_audit_lines": {field.name for field in fields(AuditLine)},
}
"""Rows that are read as a whole, into a class."""
UNREAD: Final = {
    "ordinal",  # of batches whose rows come in the order of their items
    "tenant_id",  # of what fell due, for people who look by hand
    "one",  # of the ping
    "member",  # of one row that is read as a value
    "pg_notify",
    "set_config",  # for the rest of a transaction
    "done",  # of what returns nothing
}
NO_ROWS: Final = {
    "create_roles",
    "grant_rights",
    "guard_rows",
    "own_functions",
    "create_migrations",
    "enter_schema",
    "pin_functions",
    "add_migration",
    "forget_claims",
    "record_registrations",
}


def columns_read(stem: str) -> set[str]:
    """Every `row["column"]` in the modules of one name on the floors that see rows, and in what they share. What is taken out
    of a call is a query of another file, out of a constant a setting."""
    found: set[str] = set()
    shared = ("db/tasks.py",) if stem == "leases" else ()
    for module in (FLOORS / part for part in (f"db/{stem}.py", f"operations/{stem}.py", *shared)):
        for node in ast.walk(ast.parse(module.read_text())) if module.exists() else ():
            if (
                isinstance(node, ast.Subscript)
                and not isinstance(node.value, ast.Call)
                and not (isinstance(node.value, ast.Name) and node.value.id.isupper())
                and isinstance(node.slice, ast.Constant)
            ):
                found |= {node.slice.value} if isinstance(node.slice.value, str) else set()
    return found


def arguments_sent(stem: str, name: str) -> int | None:
    """How many arguments `self._queries["name"]` is called with; None where that is not plain to see."""
    for node in ast.walk(ast.parse((FLOORS / "db" / f"{stem}.py").read_text())):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        first = node.args[0]
        if isinstance(first, ast.Subscript) and isinstance(first.slice, ast.Constant) and first.slice.value == name:
            count = 0
            for argument in node.args[1:]:
                if isinstance(argument, ast.Starred):
                    text = ast.unparse(argument)
                    width = 5 if "fence" in text else 3 if "bounds" in text else None
                    if width is None:
                        return None
                    count += width
                else:
                    count += 1
            return count
    return None


@pytest.mark.parametrize("file", FILES)
async def test_the_queries_are_understood_and_fit_the_code_around_them(database: asyncpg.Connection, file: str) -> None:
    stem, all_columns = file.removesuffix(".sql"), set()
    read = columns_read(stem)
    for name, text in Queries(file).items():
        statement = await database.prepare(text)
        comments = " ".join(line for line in text.splitlines() if line.startswith("-- "))
        numbers = [int(number) for number in re.findall(r"\$(\d+)", comments)]
        parameters = len(statement.get_parameters())
        assert numbers == list(range(1, parameters + 1)), f"the comment of {name} names each parameter, in order"
        assert arguments_sent(stem, name) in (parameters, None), name
        columns = [attribute.name for attribute in statement.get_attributes()]
        all_columns.update(columns)
        assert len(columns) == len(set(columns)), name
        if name in NO_ROWS:
            assert columns == [], name
        elif name in WHOLE:
            assert set(columns) == WHOLE[name], name
        elif stem != "migrate":
            assert set(columns) - read - UNREAD == set(), f"what {name} reads is used"
    if stem != "leases":
        assert read - set(Queries(file)) <= all_columns, "what the code reads is in the rows"


@pytest.mark.row("P4")
async def test_each_query_has_one_name_and_is_sent_by_someone() -> None:
    names = [name for file in FILES for name in Queries(file)]
    assert len(names) == len(set(names))
    code = "\n".join(path.read_text() for path in (FLOORS / "db").glob("*.py"))
    for name in names:
        assert f'"{name}"]' in code, name


async def test_columns_of_texts_compare_byte_by_byte(database: asyncpg.Connection) -> None:
    """Locks are taken in the order of ids, on both sides of the wire and in every database alike."""
    rows = await database.fetch(
        "SELECT table_name || '.' || column_name AS name FROM information_schema.columns WHERE table_schema = 'tenure' "
        "AND data_type = 'text' AND collation_name IS DISTINCT FROM 'C' AND column_name IN "
        "('tenant_id', 'worker_id', 'workflow', 'state', 'event', 'request_id') AND table_name <> 'delta'"
    )
    assert [row["name"] for row in rows] == []
