"""Databases for tests: made from a template once, and emptied for the next test, which takes a tenth of the time."""

from typing import Final
from uuid import uuid4

import asyncpg

# What a database is made of. Whoever changed it gets it for himself alone.
_FINGERPRINT: Final = """
SELECT md5(concat_ws(';',
  (SELECT string_agg(p.oid || ':' || p.xmin, ',' ORDER BY p.oid) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
   WHERE n.nspname IN ('tenure', 'clock')),
  (SELECT string_agg(c.oid || ':' || c.xmin, ',' ORDER BY c.oid) FROM pg_constraint c
   WHERE c.connamespace = 'tenure'::regnamespace),
  (SELECT string_agg(c.oid::text, ',' ORDER BY c.oid) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
   WHERE n.nspname !~ '^(pg_|information_)'),
  (SELECT string_agg(m::text, ',' ORDER BY m.number) FROM public.tenure_migration m),
  (SELECT string_agg(r::text, ',') FROM pg_db_role_setting r JOIN pg_database d ON d.oid = r.setdatabase
   WHERE d.datname = current_database())))
"""
_HANG_UP: Final = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
EMPTY: Final = """
DO $$
DECLARE name text;
BEGIN
  FOR name IN SELECT oid::regclass FROM pg_class WHERE relnamespace = 'tenure'::regnamespace AND relkind = 'r' LOOP
    EXECUTE 'DELETE FROM ' || name;
  END LOOP;
  INSERT INTO tenure.epoch (epoch) VALUES (1);
  PERFORM setval('tenure.turn', 1, false);
  UPDATE clock.shift SET by = '0';
END $$;
"""
_COPY: Final = "template STRATEGY FILE_COPY"
_UNVISITED: Final = """
DO $$ DECLARE name text; BEGIN
  FOR name IN SELECT oid::regclass FROM pg_class WHERE relnamespace = 'tenure'::regnamespace AND relkind = 'r' LOOP
    EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = false)', name);
  END LOOP;
END $$"""


class Databases:
    """The databases of one run of the tests."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._free: list[str] = []
        self._fingerprints: dict[str, str] = {}

    async def take(self) -> str:
        """The address of a database in which nothing has happened."""
        if self._free:
            return self._free.pop()
        dsn = await self._create("test", _COPY)
        connection = await asyncpg.connect(dsn)
        self._fingerprints[dsn] = await connection.fetchval(_FINGERPRINT)
        await connection.close()
        return dsn

    async def take_unvisited(self) -> str:
        """The address of one in which nothing ever happened, and that Postgres looks at only when told to. To be dropped."""
        dsn = await self._create("unvisited", _COPY)
        connection = await asyncpg.connect(dsn)
        await connection.execute(_UNVISITED)
        await connection.close()
        return dsn

    async def take_empty(self) -> str:
        """The address of a database with nothing in it, which is not given back."""
        return await self._create("empty", "template0")

    async def give_back(self, dsn: str) -> None:
        """Empties a database for the next test, or drops it where the last one changed more than rows."""
        connection = await asyncpg.connect(dsn)
        is_same = await connection.fetchval(_FINGERPRINT) == self._fingerprints[dsn]
        if is_same:
            await connection.execute(_HANG_UP)
            await connection.execute(EMPTY)
            self._free.append(dsn)
        await connection.close()
        if not is_same:
            await self.drop(dsn)

    async def drop(self, dsn: str) -> None:
        """Drops a database, whoever is connected."""
        await self._execute(f"DROP DATABASE {dsn.rpartition('/')[2]} WITH (FORCE)")

    async def _create(self, kind: str, source: str) -> str:
        name = f"{kind}_{uuid4().hex}"
        await self._execute(f"CREATE DATABASE {name} TEMPLATE {source}")
        return database_at(self._dsn, name)

    async def _execute(self, statement: str) -> None:
        admin = await asyncpg.connect(self._dsn)
        await admin.execute(statement)
        await admin.close()


def database_at(dsn: str, name: str) -> str:
    """The address of another database of the same server."""
    return f"{dsn.rpartition('/')[0]}/{name}"
