"""Every graph of k8s/ shows something of a pair at work, and no alarm rings, by Prometheus itself."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

from mcp_bridge.client import HandleExpired, ProtocolFailure, TaskClient, TaskHandle
from store_service.client import BudgetAmounts, Context, Worker
from tests.conftest import bridge_on, serving, started
from tests.security.authority import PUBLIC_URL, Authority
from tests.store.budgets import Amounts, set_budget
from tests.store.builders import TENANT
from tests.telemetry.prometheus import PROGRAM, Prometheus, scraping
from tests.telemetry.test_dashboard import alarms, graphs

ROUTES: Final = f"""
version: 1
tenants:
  {TENANT}:
    grants: {{call: anyone}}
    tools:
      - {{name: work, workflow: work, task: optional, poll_interval: 10ms, input_schema: {{type: object}}}}
"""
PATIENCE_SECONDS: Final = 120.0
RANGE: Final = "10s"
"""The range of a rate, for Grafana's own: some twenty scrapes."""
ALARMS_FOR_FAILURES: Final = {"TenureStoreFailing", "TenureStoreDown", "TenureBridgeDown"}
"""What these look at is not there unless something fails."""

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="Prometheus is not installed: make k8s-tools")


@contextlib.asynccontextmanager
async def at_work(url: str, authority: Authority) -> AsyncIterator[None]:
    """Clients that call, look, listen and are refused, again and again."""

    async def call() -> None:
        while True:
            outcome = await client.call_tool_outcome("work")
            assert isinstance(outcome, TaskHandle)
            async for _ in client.listen_tasks([outcome]):
                pass
            await client.wait_task(outcome)
            with contextlib.suppress(ProtocolFailure):
                await client.call_tool("no such tool")
            with contextlib.suppress(HandleExpired):
                await client.get_task(TaskHandle(str(uuid4()), url))

    token = authority.token(aud=f"{PUBLIC_URL}/mcp", tenant=TENANT)
    async with TaskClient(url, token=token) as client, asyncio.TaskGroup() as group:
        callers = [group.create_task(call()) for _ in range(4)]
        yield
        for caller in callers:
            caller.cancel()


@contextlib.asynccontextmanager
async def observed(dsn: str, folder: Path) -> AsyncIterator[Prometheus]:
    """The pair and a worker, at work, with everything on that is measured, seen by Prometheus."""
    (folder / "archive").mkdir()
    (folder / "routes.yaml").write_text(ROUTES)
    authority = Authority(folder)
    async with serving(dsn, cleanup=True, archive=str(folder / "archive")) as store:
        await set_budget(store, Amounts(tokens=1_000_000))
        async with started(bridge_on(folder / "routes.yaml", store=store.address, **authority.settings)) as bridge:
            worker = Worker(store.address, admin_port=0, lease_seconds=10, tenants=[TENANT])

            @worker.workflow("work", limits=BudgetAmounts(tokens=10))
            async def work(ctx: Context, args: dict[str, Any]) -> dict[str, Any]:
                await ctx.sleep(0.1)  # it falls due
                await ctx.step("takes longer than the pause between two heartbeats", asyncio.sleep, 2.5)
                return args

            async with worker, at_work(f"http://127.0.0.1:{bridge.port}/mcp", authority):
                assert worker.admin_port is not None
                ports = {"tenure-store": store.admin_port, "tenure-bridge": bridge.admin_port, "worker": worker.admin_port}
                async with scraping(folder, ports) as prometheus:
                    yield prometheus


@pytest.mark.batching("four queries of graphs are of batches")
async def test_every_graph_shows_something_of_a_pair_at_work_and_no_alarm_rings(dsn: str, tmp_path: Path) -> None:
    wanted = [query.replace("$__rate_interval", RANGE) for query in graphs()]
    wanted += [looked_at(query) for name, query in alarms().items() if name not in ALARMS_FOR_FAILURES]
    async with observed(dsn, tmp_path) as prometheus:
        ringing = dict(alarms())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while wanted or ringing:  # one that rings for a moment, as a scrape came late, is none: each has to hold
                    wanted = [query for query in wanted if not await prometheus.ask(query)]
                    ringing = {name: query for name, query in alarms().items() if await prometheus.ask(query)}
                    await asyncio.sleep(0.2)
        assert wanted == [], "these show nothing"
        assert ringing == {}, "these ring all the time"


def looked_at(alarm: str) -> str:
    """What an alarm compares with its bound."""
    query, bound = re.subn(r"\s*(>|==) [0-9.]+\s*$", "", alarm)
    assert bound == 1, alarm
    return query
