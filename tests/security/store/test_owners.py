"""Who migrates need not be a superuser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import asyncpg
import pytest
import yaml

from store_service.db import migrate as migrations
from store_service.db.migrate import Migration, SchemaError, check_schema, keep_epoch, list_migrations, migrate
from store_service.embedded import EmbeddedPostgres
from tests.conftest import serving
from tests.databases import database_at
from tests.store.builders import complete, create_and_lease

ROOT: Final = Path(__file__).parents[3]
ROLES: Final = ("tenure_app", "tenure_scheduler", "tenure_governance", "tenure_metrics", "tenure_mover")
GOVERNED: Final = """
SELECT pg_get_functiondef(p.oid) FROM pg_proc p JOIN pg_roles r ON r.oid = p.proowner
WHERE p.pronamespace = 'tenure'::regnamespace AND r.rolname = 'tenure_governance'
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A Postgres of its own, as roles belong to the whole of it, in which there are none of ours."""
    with EmbeddedPostgres(tmp_path / "postgres", durable=False) as running:
        yield running


def login(dsn: str, name: str) -> str:
    """The same address for another login."""
    return f"postgresql://{name}:{name}@{dsn.rpartition('@')[2]}"


async def execute(dsn: str, *statements: str) -> None:
    connection = await asyncpg.connect(dsn)
    for statement in statements:
        await connection.execute(statement)
    await connection.close()


@pytest.mark.parametrize("makes_roles", [True, False], ids=["makes the roles", "finds the roles made"])
async def test_an_owner_who_is_no_superuser_migrates_now_and_later_and_a_member_serves(
    server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch, makes_roles: bool
) -> None:
    power = "CREATEROLE" if makes_roles else "NOCREATEROLE"
    await execute(
        server.dsn, f"CREATE ROLE owner LOGIN {power} PASSWORD 'owner'", "CREATE ROLE store LOGIN NOINHERIT PASSWORD 'store'",
        "CREATE DATABASE work OWNER owner",
    )  # fmt: skip
    work = database_at(server.dsn, "work")
    owner, store = login(work, "owner"), login(work, "store")
    if not makes_roles:
        with pytest.raises(SchemaError, match="Roles in the store's README"):
            await migrate(owner)
        for role in ROLES:
            await execute(server.dsn, f"CREATE ROLE {role} NOLOGIN NOINHERIT", f"GRANT {role} TO owner")
    assert len(await migrate(owner)) == len(list_migrations())
    with pytest.raises(SchemaError, match="GRANT tenure_app TO"):
        await check_schema(store, allow_test_clock=False)
    await execute(owner if makes_roles else server.dsn, "GRANT tenure_app TO store")
    async with serving(store) as stubs:
        await stubs.leases.CompleteTask(complete((await create_and_lease(stubs)).lease))
    with pytest.raises(SchemaError, match="must name who migrates"):
        await keep_epoch(store)
    assert await keep_epoch(owner) == 1

    connection = await asyncpg.connect(owner)
    function = (await connection.fetch(GOVERNED))[0][0]
    await connection.close()
    later = Migration(9_000, "pre", "later", function)
    monkeypatch.setattr(migrations, "list_migrations", lambda known=list_migrations: [*known(), later])
    assert await migrate(owner) == [later]


async def test_the_postgres_of_the_overlay_lets_its_owner_migrate_and_its_login_serve(server: EmbeddedPostgres) -> None:
    cluster = yaml.safe_load((ROOT / "k8s" / "components" / "postgres-cnpg" / "cluster.yaml").read_text())["spec"]
    begin, (role,) = cluster["bootstrap"]["initdb"], cluster["managed"]["roles"]
    owner = begin["owner"]
    await execute(server.dsn, f"CREATE ROLE {owner} LOGIN PASSWORD '{owner}'", f"CREATE DATABASE work OWNER {owner}")
    work = database_at(server.dsn, "work")
    await execute(work, *begin["postInitApplicationSQL"])
    await execute(work, f"CREATE ROLE served LOGIN PASSWORD 'served' IN ROLE {', '.join(role['inRoles'])}")
    assert len(await migrate(login(work, owner))) == len(list_migrations())
    async with serving(login(work, "served")) as stubs:
        await stubs.leases.CompleteTask(complete((await create_and_lease(stubs)).lease))
