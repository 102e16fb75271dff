"""How many statements the stores of this process run, by name."""

from collections import Counter
from typing import Any

import asyncpg
import pytest

from store_service.db.pool import Database
from store_service.db.queries import name_of


def count_statements(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts from now on, also what chores do."""
    counts: Counter[str] = Counter()
    run = Database._run_once

    async def run_counted(self: Database, query: str, *arguments: Any) -> list[asyncpg.Record]:
        counts[name_of(query)] += 1
        return await run(self, query, *arguments)

    monkeypatch.setattr(Database, "_run_once", run_counted)
    return counts
