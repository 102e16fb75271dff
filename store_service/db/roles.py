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


async def act_as_store(connection: asyncpg.Connection) -> bool:
    """Gives the connection the rights of the store from here on; false where who is connected may not have them."""
    queries = Queries("roles.sql")
    if not await connection.fetchval(queries["is_member"]):
        return False
    await connection.execute(queries["act_as_store"])
    return True
