"""`tenure-store doctor` says what is wrong, and what to do."""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest
from cryptography import x509

from store_service.config import Config
from store_service.db.diagnosis import DatabaseFacts, RoleFacts, read_facts
from store_service.dev_certs import make_authority, make_dev_certs
from store_service.doctor import examine, judge_database
from store_service.model.moves import MoveState, UnfinishedMove
from store_service.telemetry.findings import Verdict
from tests.pair import free_ports

ROLES = RoleFacts(login="tenure", is_above_rows=False, missing=(), is_store=True)
WELL = DatabaseFacts(
    version=(16, 4),
    is_replica=False,
    switched_off=(),
    connections=97,
    used=12,
    stores=1,
    ahead_seconds=0.01,
    schema_trouble=None,
    roles=ROLES,
    hints_trouble=None,
    snapshot_seconds=0.5,
    idle_slots=0,
    moves=(),
)


async def verdicts(config: Config) -> dict[str, tuple[Verdict, str, str]]:
    """What was found, by what was looked at."""
    return {one.subject: (one.verdict, one.text, one.cure) async for one in examine(config)}


async def test_a_database_that_is_ready_is_well(dsn: str) -> None:
    found = await verdicts(Config(dsn=dsn, allow_test_clock=True))
    assert {name for name, (verdict, *_) in found.items() if verdict is Verdict.WELL} >= {
        *("database", "schema", "clock", "hints", "pool", "vacuum", "moves", "callers"),
    }


async def test_a_clock_that_a_test_moved_and_a_schema_that_lacks_a_step_are_wrong(
    dsn: str, database: asyncpg.Connection
) -> None:
    assert (await verdicts(Config(dsn=dsn)))["schema"] == (
        Verdict.WRONG,
        "the function tenure.task_now() is not the database's clock",
        "restore it before serving",
    )
    await database.execute("DELETE FROM public.tenure_migration WHERE number = 1")
    verdict, text, cure = (await verdicts(Config(dsn=dsn, allow_test_clock=True)))["schema"]
    assert (verdict, cure) == (Verdict.WRONG, "run `tenure-store migrate`")
    assert text == "the schema lacks 1 migrations"


async def test_who_connects_is_told_what_it_may_not_be(dsn: str, database: asyncpg.Connection) -> None:
    login = f"login_{uuid4().hex}"
    await database.execute(f"CREATE ROLE {login} LOGIN PASSWORD 'x'")
    try:
        parts = urlsplit(dsn)
        theirs = parts._replace(netloc=f"{login}:x@{parts.hostname}:{parts.port}").geturl()
        found = await verdicts(Config(dsn=theirs, allow_test_clock=True))
        assert found["roles"][::2] == (Verdict.WRONG, f'an administrator runs: GRANT tenure_app TO "{login}"')
        assert "moves" not in found, "it may not see them"
        await database.execute(f"GRANT tenure_app TO {login}")
        found = await verdicts(Config(dsn=theirs, allow_test_clock=True))
        assert [found[name][0] for name in ("schema", "roles", "moves", "hints")] == [Verdict.WELL] * 4
    finally:
        await database.execute(f"DROP ROLE {login}")


async def test_an_open_transaction_is_seen(dsn: str, database: asyncpg.Connection) -> None:
    async with database.transaction(isolation="repeatable_read"):
        await database.fetchval("SELECT count(*) FROM tenure.tenant")
        assert (await read_facts(dsn, allow_test_clock=True)).snapshot_seconds > 0
        assert (await read_facts(dsn, allow_test_clock=True)).used >= 2


@pytest.mark.parametrize(
    ("changes", "subject", "verdict"),
    [
        ({}, None, Verdict.WELL),
        ({"is_replica": True}, "database", Verdict.WRONG),
        ({"version": (14, 9)}, "database", Verdict.WRONG),
        ({"switched_off": ("fsync",)}, "durability", Verdict.WRONG),
        ({"switched_off": ("synchronous_commit",)}, "durability", Verdict.WRONG),
        ({"switched_off": ("autovacuum",)}, "vacuum", Verdict.WRONG),
        ({"ahead_seconds": -7.5}, "clock", Verdict.DOUBTFUL),
        ({"hints_trouble": "a NOTIFY did not arrive"}, "hints", Verdict.WRONG),
        ({"used": 90}, "pool", Verdict.DOUBTFUL),
        ({"used": 90, "stores": 0}, "pool", Verdict.WRONG),
        ({"snapshot_seconds": 4_000.0}, "vacuum", Verdict.DOUBTFUL),
        ({"idle_slots": 2}, "vacuum", Verdict.DOUBTFUL),
        ({"roles": replace(ROLES, missing=("tenure_app",), is_store=False)}, "roles", Verdict.WRONG),
        ({"roles": replace(ROLES, is_store=False)}, "roles", Verdict.WRONG),
        ({"roles": replace(ROLES, is_above_rows=True)}, "roles", Verdict.DOUBTFUL),
        ({"moves": (UnfinishedMove("acme", MoveState.FROZEN, 7.0, False),)}, "tenant acme", Verdict.WRONG),
        ({"moves": (UnfinishedMove("acme", MoveState.FROZEN, 7.0, True),)}, "tenant acme", Verdict.DOUBTFUL),
        ({"moves": (UnfinishedMove("acme", MoveState.DRAINING, 7.0, True),)}, None, Verdict.WELL),
    ],
)
def test_each_fault_is_told_as_what_it_is_with_a_cure(changes: dict[str, Any], subject: str | None, verdict: Verdict) -> None:
    findings = list(judge_database(replace(WELL, **changes), pool_size=10))
    assert {one.subject: one.verdict for one in findings if one.verdict is not Verdict.WELL} == (
        {} if subject is None else {subject: verdict}
    )
    assert all(one.cure for one in findings if one.verdict is not Verdict.WELL)


async def test_certificates_keys_and_policy_are_looked_at(dsn: str, tmp_path: Path) -> None:
    make_dev_certs(tmp_path)
    files = {"tls_certificate": "store.crt", "tls_key": "store.key", "tls_client_ca": "ca.crt", "policy": "policy.yaml"}
    config = Config(dsn=dsn, allow_test_clock=True, **{name: str(tmp_path / file) for name, file in files.items()})  # type: ignore[arg-type]
    found = await verdicts(config)
    assert {found[f"TENURE_STORE_{name.upper()}"][0] for name in files} == {Verdict.WELL}
    (tmp_path / "policy.yaml").write_text("version: 1\ncallers: [{identity: x, role: king}]\n")
    authority = make_authority(tmp_path)
    authority.issue(tmp_path, "store", [x509.DNSName("localhost")], days=7)
    found = await verdicts(replace(config, tls_key=str(tmp_path / "bridge.key")))
    assert found["TENURE_STORE_TLS_CERTIFICATE"][0] is Verdict.DOUBTFUL
    assert found["TENURE_STORE_TLS_KEY"][0] is Verdict.WRONG
    assert found["TENURE_STORE_POLICY"][0] is Verdict.WRONG
    authority.issue(tmp_path, "store", [x509.DNSName("localhost")], days=-1)
    assert (await verdicts(config))["TENURE_STORE_TLS_CERTIFICATE"][0] is Verdict.WRONG
    (tmp_path / "store.crt").write_text("not a certificate")
    assert (await verdicts(config))["TENURE_STORE_TLS_CERTIFICATE"][0] is Verdict.WRONG


async def test_the_command_prints_a_line_each_and_ends_with_1_where_something_is_wrong() -> None:
    (nowhere,) = free_ports(1)
    code, lines = await asyncio.to_thread(doctor, f"postgresql://127.0.0.1:{nowhere}/none")
    assert code == 1
    assert [one["verdict"] for one in lines] == ["wrong", "well"]
    assert lines[0]["subject"] == "database"
    assert lines[0]["cure"].startswith("see TENURE_STORE_DSN")


def doctor(dsn: str) -> tuple[int, list[dict[str, str]]]:
    command = [sys.executable, "-m", "store_service", "doctor"]
    environment = {**os.environ, "TENURE_STORE_DSN": dsn}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]
