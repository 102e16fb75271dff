"""The wiring of the bridge: what it is made of, how it starts, and how it stops."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from mcp_bridge.access.bearer import bearer_access
from mcp_bridge.access.callers import Authenticate, Caller, development_access, development_caller
from mcp_bridge.access.hosts import Guard, is_loopback
from mcp_bridge.access.issuers import Issuers, load_issuers
from mcp_bridge.access.keys import Keys, reader
from mcp_bridge.access.proxies import Proxies, read_networks
from mcp_bridge.access.resource import Resource
from mcp_bridge.access.tokens import Tokens
from mcp_bridge.cells import Connect
from mcp_bridge.config import Config
from mcp_bridge.connections import Server
from mcp_bridge.core import Core, end_all, make_core
from mcp_bridge.fault_points import cutting, stream_class
from mcp_bridge.http import Endpoint
from mcp_bridge.lines import Lines
from mcp_bridge.stdio import Stdio
from store_service.fault_points import FaultPoints
from store_service.telemetry import AdminServer, open_traces

if TYPE_CHECKING:
    from store_service.telemetry.traces import Traces

SERVICE: Final = "tenure-bridge"
"""Who sends its traces."""
FAREWELL_SECONDS: Final = 2.0
"""How long calls may take that were told, at the end of the drain, that the bridge stops."""
BACKLOG: Final = 1024


@dataclass(slots=True)
class _Parts:
    """What a bridge is made of, once it is put together."""

    core: Core
    endpoint: Endpoint
    runner: web.ServerRunner
    site: web.TCPSite
    keys: tuple[Keys, ...]
    background: list[asyncio.Task[None]]

    async def take_apart(self) -> None:
        """Closes what is open."""
        await self.runner.cleanup()
        await end_all(self.background)
        await self.core.cells.close()


@dataclass(slots=True)
class _Access:
    """How callers are let in."""

    authenticate: Authenticate
    resource: Resource | None = None
    """None in development mode."""
    keys: tuple[Keys, ...] = ()


class Bridge:
    """One running bridge: `start`, then `port`, then `stop`."""

    def __init__(self, config: Config, *, connect: Connect | None = None, traces: "Traces | None" = None) -> None:
        self._config = config
        self._traces = open_traces(SERVICE) if traces is None and config.traces else traces
        self._registry = CollectorRegistry()
        self._connect = connect
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._registry)
        self._admin = AdminServer(
            host=config.admin_host, port=config.admin_port, registry=self._registry, ready=self._why_not_ready
        )
        self._parts: _Parts | None = None
        self._is_draining = False

    @property
    def port(self) -> int:
        """The port that MCP is served on."""
        assert self._parts is not None, "the bridge is not started"
        port: int = self._parts.runner.addresses[0][1]
        return port

    @property
    def admin_port(self) -> int:
        """The port of probes and metrics."""
        return self._admin.port

    async def start(self) -> None:
        """Reads the routes, puts the parts together, and serves. It does not wait for the store.

        Raises ConfigFileError for a configuration that cannot be served, OSError when a file is missing or a port is taken.
        """
        config = self._config
        issuers = load_issuers(config.issuers, on_loopback=is_loopback(config.host)) if config.issuers else None
        parts = await self._put_together(issuers)
        try:
            await parts.site.start()
            self._admin.start()
        except OSError:
            await parts.take_apart()
            raise
        self._parts = parts
        mode = "development" if issuers is None else "authorization"
        structlog.get_logger().info("bridge_started", port=self.port, admin_port=self.admin_port, mode=mode)

    def reload_routes(self) -> None:
        """Reads the route file again, soon. One that is wrong is logged, and changes nothing."""
        if self._parts is not None:
            self._parts.core.watch.reload_soon()

    async def stop(self) -> None:
        """Drains: says that it is not ready, waits for load balancers, ends subscriptions, lets calls end, answers those that
        do not.

        Of a bridge that does not run, it does nothing.
        """
        parts, self._parts = self._parts, None
        if parts is None:
            return
        self._is_draining = True
        await asyncio.sleep(self._config.drain_pause_seconds)
        await parts.site.stop()
        parts.core.subscriptions.drain()
        await parts.endpoint.drain(self._config.drain_seconds)
        parts.core.held.drain()
        await parts.endpoint.drain(FAREWELL_SECONDS)
        await parts.take_apart()
        self._admin.stop()
        structlog.get_logger().info("bridge_stopped")

    async def _put_together(self, issuers: Issuers | None) -> _Parts:
        config = self._config
        tenant_setting = "dev_tenant" if issuers is None else None
        points = FaultPoints(Path(config.fault_points)) if config.fault_points else None
        core = make_core(
            config,
            self._registry,
            tenant_setting=tenant_setting,
            connect=self._connect,
            points=points,
            traces=self._traces,
        )
        access = self._let_in(core, issuers)
        endpoint = Endpoint(
            core.dispatcher,
            guard=self._guard(),
            proxies=Proxies(read_networks(config.trusted_proxies)),
            authenticate=access.authenticate,
            resource=access.resource,
            limiter=core.limiter,
            metrics=core.metrics,
            stream_class=stream_class(points),
            spans=core.spans,
        )
        runner = web.ServerRunner(
            Server(cutting(points, endpoint), handler_cancellation=True), shutdown_timeout=FAREWELL_SECONDS
        )
        await runner.setup()
        site = web.TCPSite(runner, config.host, config.port, backlog=BACKLOG)
        background = [
            asyncio.create_task(work)
            for work in (core.cells.run(), core.watch.run(), *(one.keep_fresh() for one in access.keys))
        ]
        return _Parts(core, endpoint, runner, site, access.keys, background)

    def _guard(self) -> Guard:
        config = self._config
        public = urlsplit(config.public_url)
        return Guard(
            loopback=is_loopback(config.host),
            allowed_hosts=frozenset(host.lower() for host in (*config.allowed_hosts, public.netloc, public.hostname) if host),
            allowed_origins=frozenset(config.allowed_origins),
            requires_tls=public.scheme == "https" and bool(config.trusted_proxies),
        )

    def _let_in(self, core: Core, issuers: Issuers | None) -> _Access:
        config = self._config
        if issuers is None:
            return _Access(development_access(config.dev_tenant))
        believed = {one.issuer: (one, Keys(one.issuer, reader(one), clock=time.monotonic)) for one in issuers.all}
        resource = Resource(public_url=config.public_url, issuers=tuple(believed), scopes=issuers.scopes)
        authenticate = bearer_access(
            Tokens(believed, leeway_seconds=config.clock_leeway_seconds),
            resource,
            is_tenant=core.routes.is_tenant,
            limiter=core.limiter,
            metrics=core.metrics,
            clock=time.time,
        )
        return _Access(authenticate, resource, tuple(keys for _, keys in believed.values()))

    def _why_not_ready(self) -> str | None:
        if self._is_draining:
            return "draining"
        return "not started" if self._parts is None else self._parts.core.cells.why_not_ready()


class StdioBridge:
    """One bridge that serves the host that started it, over standard input and output."""

    def __init__(self, config: Config, *, connect: Connect | None = None, traces: "Traces | None" = None) -> None:
        self._config = config
        self._traces = open_traces(SERVICE) if traces is None and config.traces else traces
        self._connect = connect

    async def serve(self, lines: Lines, stop: asyncio.Event) -> None:
        """Answers until the input ends, nobody reads the output, or `stop` is set.

        Raises ConfigFileError for a configuration that cannot be served, OSError when a file is missing.
        """
        config = self._config
        tenant_setting = "stdio_tenant" if config.stdio_tenant else "dev_tenant"
        core = make_core(config, CollectorRegistry(), tenant_setting=tenant_setting, connect=self._connect, traces=self._traces)
        stdio = Stdio(core.dispatcher, lines, caller=_stdio_caller(config), metrics=core.metrics, spans=core.spans)
        background = [asyncio.create_task(core.watch.run())]
        serving, stopping = asyncio.create_task(stdio.serve()), asyncio.create_task(stop.wait())
        structlog.get_logger().info("bridge_started", transport="stdio", tenant=getattr(config, tenant_setting))
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():  # whoever still listens is told to come back
            core.subscriptions.drain()
            core.held.drain()
            await stdio.idle(FAREWELL_SECONDS)
        await end_all([serving, stopping])
        await stdio.detach()
        await end_all(background)
        await core.cells.close()
        structlog.get_logger().info("bridge_stopped")
        if not serving.cancelled():
            serving.result()


def _stdio_caller(config: Config) -> Caller:
    """Who the host of a bridge over stdio is, as it was configured."""
    if not config.stdio_tenant:
        return development_caller(config.dev_tenant)
    return Caller(
        tenant=config.stdio_tenant,
        issuer=config.stdio_issuer,
        subject=config.stdio_subject,
        scopes=frozenset(config.stdio_scopes),
        groups=frozenset(config.stdio_groups),
    )
