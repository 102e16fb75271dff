"""P9: a claim where a million tasks of ten thousand tenants wait, against one where a thousand of ten wait."""

import statistics
import time
from typing import Final

import asyncpg
from taskstore.v1 import tasks_pb2

from tests.benchmarks import peer
from tests.benchmarks.api import Api, api, new_task
from tests.benchmarks.figures import Figure, Target
from tests.benchmarks.plan import Plan
from tests.benchmarks.world import World

WORKFLOW: Final = "queued"
EACH: Final = 100
FEW: Final = 10
MANY: Final = 10_000
_BATCHES: Final = (1, 100)
_LEAST: Final = 5
_FILL_SECONDS: Final = 150
_QUICK_FILL_SECONDS: Final = 5
_STEP: Final = 500


async def p9(world: World, plan: Plan) -> list[Figure]:
    """Claims of one and of a hundred, by turns at two stores, each with a database of its own on the same Postgres. A slow
    machine is filled for as long as there is patience: the figure says with how many."""
    addresses, many = {}, MANY
    for name, tenants in (("few", FEW), ("many", MANY)):
        with plan.part("stores"):
            dsn = await peer.fresh_database(world.dsn, name)
            addresses[name], _ = await world.start_store(f"store-{name}", dsn)
        with plan.part("fill"):
            async with api(addresses[name]) as store:
                await store.create(EACH, workflow=WORKFLOW, tenant_id="t0")
            many = await _multiply(dsn, tenants, _QUICK_FILL_SECONDS if plan.is_quick else _FILL_SECONDS)
        plan.tell(f"P9: {many * EACH:,} tasks wait in {name}")
    figures = {
        batch: Figure(
            "P9", f"p50 of a claim of {batch} of {many * EACH:,} waiting tasks", f"of {FEW * EACH:,}", "itself",
            Target("at most", 1.3), "ms",
        )
        for batch in _BATCHES
    }  # fmt: skip
    async with api(addresses["few"]) as few, api(addresses["many"]) as lots:
        for number in range(plan.rounds + 1):  # the first warms up
            for batch, figure in figures.items():
                theirs, ours = [await _claim_ms(store, batch, plan.seconds / 4) for store in (few, lots)]
                if number:
                    figure.ours, figure.theirs = [*figure.ours, ours], [*figure.theirs, theirs]
                    plan.tell(f"P9 round {number}: a claim of {batch}: {ours:.2f} ms against {theirs:.2f} ms")
    return list(figures.values())


async def _claim_ms(store: Api, batch: int, seconds: float) -> float:
    """The median of some claims. What is taken is ended, and as much is created again for the same tenants."""
    took: list[float] = []
    while len(took) < _LEAST or sum(took) < seconds * 1000:
        began = time.perf_counter()
        taken = await store.claim(batch, workflow=WORKFLOW)
        took.append((time.perf_counter() - began) * 1000)
        assert len(taken) == batch
        await store.finish(taken)
        items = [new_task(WORKFLOW, task.lease.tenant_id) for task in taken]
        await store.tasks.CreateTasks(tasks_pb2.CreateTasksRequest(items=items))
    return statistics.median(took)


async def _multiply(dsn: str, tenants: int, seconds: float) -> int:
    """Copies what the store wrote of tenant t0, in every table, for so many tenants in all, or as many as the seconds allow;
    the store's audit finds it right. To create a million tasks by the API would take minutes."""
    database = await asyncpg.connect(dsn, server_settings={"synchronous_commit": "off"})
    tables = await database.fetch(
        "SELECT c.table_name AS name, array_agg(c.column_name::text) AS columns FROM information_schema.columns c"
        " JOIN information_schema.tables t USING (table_schema, table_name)"
        " WHERE c.table_schema = 'tenure' AND t.table_type = 'BASE TABLE' AND c.is_generated = 'NEVER' GROUP BY 1"
        " HAVING bool_or(c.column_name = 'tenant_id') ORDER BY c.table_name <> 'tenant'"
    )
    other = {"tenant_id": "'t' || n", "task_id": "md5(task_id::text || n)::uuid"}
    made, until = 1, time.perf_counter() + seconds
    while made < tenants and time.perf_counter() < until:
        upto = min(made + _STEP, tenants)
        async with database.transaction():
            for table in tables:
                columns = ", ".join(table["columns"])
                values = ", ".join(other.get(column, column) for column in table["columns"])
                await database.execute(
                    f"INSERT INTO tenure.{table['name']} ({columns}) SELECT {values} FROM tenure.{table['name']},"
                    f" generate_series({made}, {upto - 1}) n WHERE tenant_id = 't0'"
                )
        made = upto
    await database.execute("VACUUM ANALYZE")
    assert not await database.fetch("SELECT * FROM tenure.audit LIMIT 1"), "the copies are not as the store writes them"
    await database.close()
    return made
