"""The wiring of what every bridge is made of, whatever it is spoken to over."""

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry

from mcp_bridge.access.config_files import ConfigFileError, read_file
from mcp_bridge.access.limits import Limiter
from mcp_bridge.access.polls import Polls
from mcp_bridge.access.route_watch import RouteWatch
from mcp_bridge.access.routes import CurrentRoutes, Routes
from mcp_bridge.access.routes_file import parse_routes
from mcp_bridge.access.yaml_lines import Problem
from mcp_bridge.cells import Cells, Connect
from mcp_bridge.config import Config, read_state_keys, store_tls
from mcp_bridge.dispatch import Dispatcher
from mcp_bridge.fault_points import interceptors, reaching_methods
from mcp_bridge.methods.held import HeldCalls
from mcp_bridge.methods.listen import Subscriptions
from mcp_bridge.methods.table import LEGACY_METHODS, METHODS, make_methods
from mcp_bridge.metrics import Metrics
from mcp_bridge.spans import Spans
from mcp_bridge.wire.results import Results
from mcp_bridge.wire.state import KEY_BYTES, StateKeys
from store_service.client import TaskStore
from store_service.client.batches import BatchMetrics
from store_service.fault_points import FaultPoints

if TYPE_CHECKING:
    from store_service.telemetry.traces import Traces

NAME: Final = "tenure"


@dataclass(frozen=True, slots=True)
class Core:
    """What answers requests, once it is put together."""

    cells: Cells
    routes: CurrentRoutes
    watch: RouteWatch
    held: HeldCalls
    subscriptions: Subscriptions
    limiter: Limiter
    metrics: Metrics
    dispatcher: Dispatcher
    spans: Spans | None
    """None where calls have no spans."""


def make_core(
    config: Config,
    registry: CollectorRegistry,
    *,
    tenant_setting: str | None,
    connect: Connect | None = None,
    points: FaultPoints | None = None,
    traces: "Traces | None" = None,
) -> Core:
    """Reads the route file and puts everything together; nothing runs yet. `tenant_setting` names a tenant that must have
    tools.

    Raises ConfigFileError for routes that cannot be served, OSError for a file that is not there.
    """

    def read_routes(data: bytes) -> Routes:
        routes = parse_routes(config.routes, data)
        tenant = None if tenant_setting is None else getattr(config, tenant_setting)
        if tenant is not None and tenant not in routes.tenants:
            variable = f"TENURE_BRIDGE_{tenant_setting}".upper()
            raise ConfigFileError(config.routes, [Problem(1, (), f"{variable} is {tenant}, which has no tools here")])
        return routes

    route_file = read_file(config.routes)
    routes = CurrentRoutes(read_routes(route_file))
    metrics = Metrics(registry, (*METHODS, *LEGACY_METHODS))
    connect = connect or _connection(config, registry, points, traces)
    cells = Cells(routes, connect, metrics, default_address=config.store)
    limiter = Limiter(routes.limits_of, time.monotonic)
    held = HeldCalls(cells, metrics)
    results = Results(name=NAME, version=version("tenure"))
    subscriptions = Subscriptions(
        cells,
        routes,
        results,
        metrics,
        limiter=limiter,
        per_principal=config.streams_per_principal,
        most=config.most_streams,
    )

    def routes_changed(before: Routes, after: Routes) -> None:
        cells.routes_changed()
        subscriptions.routes_changed(before, after)

    watch = RouteWatch(
        config.routes,
        route_file,
        read=read_routes,
        current=routes,
        changed=routes_changed,
        metrics=metrics,
    )
    keys = StateKeys(read_state_keys(config) or [os.urandom(KEY_BYTES)])
    methods = make_methods(
        cells,
        routes,
        results,
        held=held,
        subscriptions=subscriptions,
        polls=Polls(time.monotonic),
        limiter=limiter,
        keys=keys,
    )
    dispatcher = Dispatcher(reaching_methods(points, methods), keys, metrics, strict_headers=config.strict_headers)
    spans = None if traces is None else Spans(traces, (*METHODS, *LEGACY_METHODS))
    return Core(cells, routes, watch, held, subscriptions, limiter, metrics, dispatcher, spans)


async def end_all(tasks: Sequence[asyncio.Task[object]]) -> None:
    """Ends tasks that go on for ever."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _connection(config: Config, registry: CollectorRegistry, points: FaultPoints | None, traces: "Traces | None") -> Connect:
    return partial(
        TaskStore.connect,
        tls=store_tls(config),
        retry_seconds=config.store_retry_seconds,
        batching=config.batching,
        batch_metrics=BatchMetrics(registry, traces),
        interceptors=interceptors(points),
    )
