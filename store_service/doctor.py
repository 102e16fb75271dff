"""`tenure-store doctor`: what is wrong with what a store is told and stands on, and what to do."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from store_service.config import Config
from store_service.db.diagnosis import DatabaseFacts, DatabaseUnreachable, RoleFacts, read_facts
from store_service.model.moves import MoveState, UnfinishedMove
from store_service.rpc.encryption import read_tls_files
from store_service.rpc.policy import PolicyError, read_policy
from store_service.rpc.tokens import read_keys
from store_service.telemetry.certificates import examine_certificates
from store_service.telemetry.findings import Finding, doubtful, well, wrong

OLDEST_POSTGRES: Final = 15
LONG_SECONDS: Final = 300.0
CLOCK_SECONDS: Final = 1.0
_MEANWHILE: Final = {
    MoveState.DRAINING: "nothing new of it is leased",
    MoveState.FROZEN: "every call of it is refused",
    MoveState.ARRIVING: "every call of it is refused here until it has come",
    MoveState.LEFT: "rows of it are left here",
}


async def examine(config: Config) -> AsyncIterator[Finding]:
    """Looks at one thing after the other, changes nothing, and lets a store that runs alone."""
    try:
        facts = await read_facts(config.dsn, allow_test_clock=config.allow_test_clock)
    except DatabaseUnreachable as error:
        cure = "see TENURE_STORE_DSN: postgresql://user:password@host:port/database"
        yield wrong("database", f"it is not reached: {error}", cure)
    else:
        for finding in judge_database(facts, pool_size=config.pool_size):
            yield finding
    for finding in _examine_callers(config):
        yield finding


def judge_database(facts: DatabaseFacts, *, pool_size: int) -> Iterator[Finding]:
    """What the facts mean for a store."""
    version = f"PostgreSQL {facts.version[0]}.{facts.version[1]}"
    if facts.is_replica:
        yield wrong(
            "database", f"{version}, a replica, which only reads", "name the primary, or both with target_session_attrs"
        )
    elif facts.version[0] < OLDEST_POSTGRES:
        yield wrong("database", f"{version} is too old", f"PostgreSQL {OLDEST_POSTGRES} or later")
    else:
        yield well("database", version)

    if facts.schema_trouble is not None:
        what, _, cure = facts.schema_trouble.partition("; ")
        yield wrong("schema", what, cure)
    else:
        yield well("schema", "as this version needs it, with the database's own clock")
    yield _judge_roles(facts.roles)

    if off := [name for name in facts.switched_off if name != "autovacuum"]:
        yield wrong("durability", f"{', '.join(off)} is off: what was acknowledged can be lost", "set it to on")
    else:
        yield well("durability", "what was acknowledged is on disk")

    if abs(facts.ahead_seconds) > CLOCK_SECONDS:
        way = "ahead of" if facts.ahead_seconds > 0 else "behind"
        text = f"this machine is {abs(facts.ahead_seconds):.1f} s {way} the database"
        yield doubtful("clock", text, "leases go by the database's clock and do not mind; tokens and certificates do: set it")
    else:
        yield well("clock", "within a second of the database's")

    if facts.hints_trouble is not None:
        cure = (
            "name the database itself in TENURE_STORE_DSN, and a PgBouncer in transaction mode, behind which nobody hears, in "
            "TENURE_STORE_POOLED_DSN; meanwhile work waits up to 5 s"
        )
        yield wrong("hints", facts.hints_trouble, cure)
    else:
        yield well("hints", "LISTEN and NOTIFY work")
    yield _judge_connections(facts, pool_size + 1)
    yield _judge_vacuum(facts)
    yield from _judge_moves(facts.moves)


def _judge_roles(roles: RoleFacts) -> Finding:
    if roles.missing:
        return wrong(
            "roles", f"{', '.join(roles.missing)}: not there", "run `tenure-store migrate` as one who may create roles"
        )
    if not roles.is_store:
        cure = f'an administrator runs: GRANT tenure_app TO "{roles.login}"'
        return wrong("roles", f"{roles.login} is no member of tenure_app, so it may not act as the store", cure)
    if roles.is_above_rows:
        text = f"{roles.login} may see every row: whoever learns its password may, too"
        return doubtful(
            "roles", text, "let the store log in as a role of its own that is a member of tenure_app and nothing else"
        )
    return well("roles", f"{roles.login} may act as the store")


def _judge_connections(facts: DatabaseFacts, wanted: int) -> Finding:
    text = f"{facts.used} of {facts.connections} connections are used by {facts.stores} stores and others"
    if facts.connections - facts.used >= wanted:
        return well("pool", text)
    text += f"; one more store takes up to {wanted}"
    cure = "raise max_connections, or lower TENURE_STORE_POOL_SIZE"
    return doubtful("pool", text, cure) if facts.stores else wrong("pool", text, cure)


def _judge_vacuum(facts: DatabaseFacts) -> Finding:
    if "autovacuum" in facts.switched_off:
        return wrong("vacuum", "autovacuum is off: what is over is never cleared away", "set autovacuum to on")
    if facts.snapshot_seconds > LONG_SECONDS:
        text = f"a transaction is open for {facts.snapshot_seconds:.0f} s; nothing that went since is cleared away"
        return doubtful("vacuum", text, "end it, see pg_stat_activity and pg_prepared_xacts: claims become slow")
    if facts.idle_slots:
        text = f"{facts.idle_slots} replication slots are read by nobody and keep the log"
        return doubtful("vacuum", text, "drop those of pg_replication_slots that are not needed")
    return well("vacuum", "autovacuum is on, and no old snapshot is held")


def _judge_moves(moves: Sequence[UnfinishedMove] | None) -> Iterator[Finding]:
    """Of each tenant that moves between cells, whether anybody is at it, and what is refused meanwhile."""
    if moves is not None and not moves:
        yield well("moves", "no tenant is between two cells")
    for one in moves or ():
        name, meanwhile = f"tenant {one.tenant_id}", _MEANWHILE[one.state]
        again = f"run `tenure-store tenant move {one.tenant_id}` again, with both addresses as before: it goes on"
        if one.is_attended:
            text = f"it is {one.state} for {one.seconds:.0f} s, and a mover is at it: {meanwhile}"
            refuses = one.state in (MoveState.FROZEN, MoveState.ARRIVING)
            yield doubtful(name, text, "wait for its end, or see what the mover says") if refuses else well(name, text)
        elif one.state is MoveState.LEFT:
            yield doubtful(name, f"its move is done but for the end: {meanwhile}", again)
        else:
            text = f"its move broke off, it is {one.state} for {one.seconds:.0f} s: {meanwhile}"
            yield wrong(name, text, f"{again}; or `tenure-store tenant stay {one.tenant_id}` takes it back")


def _examine_callers(config: Config) -> Iterator[Finding]:
    if not config.tls_certificate:
        if config.allow_plaintext:
            text = f"whoever reaches {config.host}:{config.port} may do everything, and others may read along"
            yield doubtful("callers", text, "set TENURE_STORE_TLS_CERTIFICATE and what goes with it")
        else:
            yield well("callers", "nobody is asked, as only this machine reaches the store")
        return
    yield examine_certificates("TENURE_STORE_TLS_CERTIFICATE", config.tls_certificate)
    certificate, key = Path(config.tls_certificate), Path(config.tls_key)
    yield _try("TENURE_STORE_TLS_KEY", lambda: read_tls_files(certificate, key), "it is the certificate's")
    if config.tls_client_ca:
        yield examine_certificates("TENURE_STORE_TLS_CLIENT_CA", config.tls_client_ca)
    else:
        yield _try("TENURE_STORE_TOKEN_KEYS", lambda: read_keys(Path(config.token_keys)), "its keys can be used")
    yield _try("TENURE_STORE_POLICY", lambda: read_policy(Path(config.policy)), "it can be used")


def _try(setting: str, read: Callable[[], object], text: str) -> Finding:
    try:
        read()
    except (PolicyError, OSError, ValueError) as error:
        return wrong(setting, str(error), "correct the file; a store that runs keeps what it had")
    return well(setting, text)
