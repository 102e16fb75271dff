"""Bridge, store and worker with traces, over a real Postgres."""

import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace

from mcp_bridge.app import Bridge
from mcp_bridge.config import Config as BridgeConfig
from store_service.client import Context, SyncContext, ToolError, Worker
from store_service.config import Config
from store_service.server import Store
from tests.bridge.client import Client, client_of
from tests.conftest import started
from tests.telemetry.spans import Kept

ROUTES = """
version: 1
tenants:
  dev:
    tools:
      - {name: two_steps, workflow: two, task: optional, input_schema: {type: object}}
      - {name: in_a_thread, workflow: sync, task: optional, input_schema: {type: object}}
      - {name: breaks, workflow: breaks, task: optional, input_schema: {type: object}}
      - {name: nobody, workflow: nobody, task: required, input_schema: {type: object}}
"""


@pytest.fixture
async def kept() -> Kept:
    """All spans."""
    return Kept()


@pytest.fixture
async def traced_store(dsn: str, kept: Kept) -> AsyncIterator[Store]:
    """A store with traces."""
    async with started(
        Store(Config(dsn=dsn, port=0, admin_port=0, allow_test_clock=True, drain_seconds=2), traces=kept.traces("store"))
    ) as running:
        yield running


@pytest.fixture
async def user(traced_store: Store, kept: Kept, tmp_path: Path) -> AsyncIterator[Client]:
    """A client of a bridge with traces, over that store."""
    path = tmp_path / "routes.yaml"
    path.write_text(ROUTES)
    config = BridgeConfig(routes=str(path), port=0, admin_port=0, drain_seconds=0, store=f"127.0.0.1:{traced_store.port}")
    async with started(Bridge(config, traces=kept.traces("bridge"))) as bridge, client_of(bridge) as client:
        yield client


@pytest.fixture
async def worker(traced_store: Store, kept: Kept) -> AsyncIterator[Worker]:
    """A worker with traces, whose tools tell of the span that they see."""
    running = Worker(f"127.0.0.1:{traced_store.port}", traces=kept.traces("worker"))

    @running.workflow("two")
    async def two(ctx: Context, _: dict[str, Any]) -> dict[str, Any]:
        seen = await ctx.step("first of Ann", see)
        await ctx.step("second", see)
        return {"content": [], "structuredContent": {"step": seen, "run": see()}}

    @running.workflow("sync")
    def in_a_thread(ctx: SyncContext, _: dict[str, Any]) -> dict[str, Any]:
        assert threading.current_thread() is not threading.main_thread()
        return {"content": [], "structuredContent": {"step": ctx.step("s", see), "run": see()}}

    @running.workflow("breaks")
    async def breaks(ctx: Context, _: dict[str, Any]) -> None:
        await ctx.step("s", tell_secret)

    async with running:
        yield running


def see() -> str:
    """The span that code sees here."""
    return trace.format_span_id(trace.get_current_span().get_span_context().span_id)


def tell_secret() -> None:
    raise ToolError("a secret of Ann")
