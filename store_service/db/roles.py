"""Who may touch what in the database: the rights of the store's roles, applied after every migration."""

import asyncpg

from store_service.db.queries import Queries


async def apply_roles(connection: asyncpg.Connection) -> None:
    """Makes the roles and gives them their rights. Raises InsufficientPrivilegeError where who migrates may make none."""
    queries = Queries("roles.sql")
    await connection.execute(queries["create_roles"])
    await connection.execute(queries["own_functions"])
    await connection.execute(queries["grant_rights"])
    await connection.execute(queries["guard_rows"])


async def is_member(connection: asyncpg.Connection) -> bool:
    """Whether who is connected may act as the store."""
    row = await connection.fetchrow(Queries("roles.sql")["is_member"])
    return bool(row["member"])
