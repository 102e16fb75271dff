"""The wiring of the bridge: what it is made of, how it starts, and how it stops."""

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Final
from urllib.parse import urlsplit

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from mcp_bridge.access.bearer import bearer_access
from mcp_bridge.access.callers import Authenticate, development_access
from mcp_bridge.access.config_files import ConfigFileError, read_file
from mcp_bridge.access.hosts import Guard, is_loopback
from mcp_bridge.access.issuers import Issuers, load_issuers
from mcp_bridge.access.keys import Keys, reader
from mcp_bridge.access.limits import Limiter
from mcp_bridge.access.polls import Polls
from mcp_bridge.access.proxies import Proxies, read_networks
from mcp_bridge.access.resource import Resource
from mcp_bridge.access.route_watch import RouteWatch
from mcp_bridge.access.routes import CurrentRoutes, Routes
from mcp_bridge.access.routes_file import parse_routes
from mcp_bridge.access.tokens import Tokens
from mcp_bridge.access.yaml_lines import Problem
from mcp_bridge.config import Config, read_state_keys, store_tls
from mcp_bridge.connections import Server
from mcp_bridge.dispatch import Dispatcher
from mcp_bridge.http import Endpoint
from mcp_bridge.methods.held import HeldCalls
from mcp_bridge.methods.listen import Subscriptions
from mcp_bridge.methods.table import LEGACY_METHODS, METHODS, make_methods
from mcp_bridge.metrics import Metrics
from mcp_bridge.wire.results import Results
from mcp_bridge.wire.state import KEY_BYTES, StateKeys
from store_service.client import StoreError, TaskStore
from store_service.telemetry import AdminServer

NAME: Final = "tenure"
ASK_STORE_SECONDS: Final = 2.0
"""How often the store is asked whether it is there, and how long it may take to answer."""
FAREWELL_SECONDS: Final = 2.0
"""How long calls may take that were told, at the end of the drain, that the bridge stops."""
BACKLOG: Final = 1024


@dataclass(slots=True)
class _Parts:
    """What a bridge is made of, once it is put together."""

    store: TaskStore
    held: HeldCalls
    subscriptions: Subscriptions
    routes: RouteWatch
    endpoint: Endpoint
    runner: web.ServerRunner
    site: web.TCPSite
    keys: tuple[Keys, ...]
    background: list[asyncio.Task[None]]

    async def take_apart(self) -> None:
        """Closes what is open."""
        await self.runner.cleanup()
        for task in self.background:
            task.cancel()
        await asyncio.gather(*self.background, return_exceptions=True)
        await self.store.close()


@dataclass(slots=True)
class _Access:
    """How callers are let in."""

    authenticate: Authenticate
    resource: Resource | None = None
    """None in development mode."""
    keys: tuple[Keys, ...] = ()


class Bridge:
    """One running bridge: `start`, then `port`, then `stop`."""

    def __init__(self, config: Config, *, connect: Callable[[str], TaskStore] | None = None) -> None:
        self._config = config
        self._registry = CollectorRegistry()
        self._connect = connect or partial(
            TaskStore.connect,
            tls=store_tls(config),
            retry_seconds=config.store_retry_seconds,
            batching=config.batching,
            registry=self._registry,
        )
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._registry)
        self._admin = AdminServer(
            host=config.admin_host, port=config.admin_port, registry=self._registry, ready=self._why_not_ready
        )
        self._parts: _Parts | None = None
        self._store_trouble: str | None = "the store was not reached yet"
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
        parts = await self._put_together(read_file(config.routes), issuers)
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
            self._parts.routes.reload_soon()

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
        parts.subscriptions.drain()
        await parts.endpoint.drain(self._config.drain_seconds)
        parts.held.drain()
        await parts.endpoint.drain(FAREWELL_SECONDS)
        await parts.take_apart()
        self._admin.stop()
        structlog.get_logger().info("bridge_stopped")

    async def _put_together(self, route_file: bytes, issuers: Issuers | None) -> _Parts:
        config = self._config
        routes = CurrentRoutes(self._read_routes(route_file))
        metrics = Metrics(self._registry, (*METHODS, *LEGACY_METHODS))
        store = self._connect(config.store)
        limiter = Limiter(routes.limits_of, time.monotonic)
        held = HeldCalls(store, metrics)
        results = Results(name=NAME, version=version("tenure"))
        subscriptions = Subscriptions(
            store,
            routes,
            results,
            metrics,
            limiter=limiter,
            per_principal=config.streams_per_principal,
            most=config.most_streams,
        )
        watch = RouteWatch(
            config.routes,
            route_file,
            read=self._read_routes,
            current=routes,
            changed=subscriptions.routes_changed,
            metrics=metrics,
        )
        keys = StateKeys(read_state_keys(config) or [os.urandom(KEY_BYTES)])
        methods = make_methods(
            store,
            routes,
            results,
            held=held,
            subscriptions=subscriptions,
            polls=Polls(time.monotonic),
            limiter=limiter,
            keys=keys,
        )
        access = self._let_in(routes, issuers, limiter, metrics)
        endpoint = Endpoint(
            Dispatcher(methods, keys, metrics, strict_headers=config.strict_headers),
            guard=self._guard(),
            proxies=Proxies(read_networks(config.trusted_proxies)),
            authenticate=access.authenticate,
            resource=access.resource,
            limiter=limiter,
            metrics=metrics,
        )
        runner = web.ServerRunner(Server(endpoint, handler_cancellation=True), shutdown_timeout=FAREWELL_SECONDS)
        await runner.setup()
        site = web.TCPSite(runner, config.host, config.port, backlog=BACKLOG)
        background = [
            asyncio.create_task(work)
            for work in (self._ask_store(store), watch.run(), *(one.keep_fresh() for one in access.keys))
        ]
        return _Parts(store, held, subscriptions, watch, endpoint, runner, site, access.keys, background)

    def _read_routes(self, data: bytes) -> Routes:
        """The routes that are written in `data`. Raises ConfigFileError where they cannot be served."""
        path, tenant = self._config.routes, self._config.dev_tenant
        routes = parse_routes(path, data)
        if not self._config.issuers and tenant not in routes.tenants:
            raise ConfigFileError(path, [Problem(1, (), f"TENURE_BRIDGE_DEV_TENANT is {tenant}, which has no tools here")])
        return routes

    def _guard(self) -> Guard:
        config = self._config
        public = urlsplit(config.public_url)
        return Guard(
            loopback=is_loopback(config.host),
            allowed_hosts=frozenset(host.lower() for host in (*config.allowed_hosts, public.netloc, public.hostname) if host),
            allowed_origins=frozenset(config.allowed_origins),
            requires_tls=public.scheme == "https" and bool(config.trusted_proxies),
        )

    def _let_in(self, routes: CurrentRoutes, issuers: Issuers | None, limiter: Limiter, metrics: Metrics) -> _Access:
        config = self._config
        if issuers is None:
            return _Access(development_access(config.dev_tenant))
        believed = {one.issuer: (one, Keys(one.issuer, reader(one), clock=time.monotonic)) for one in issuers.all}
        resource = Resource(public_url=config.public_url, issuers=tuple(believed), scopes=issuers.scopes)
        authenticate = bearer_access(
            Tokens(believed, leeway_seconds=config.clock_leeway_seconds),
            resource,
            is_tenant=routes.is_tenant,
            limiter=limiter,
            metrics=metrics,
            clock=time.time,
        )
        return _Access(authenticate, resource, tuple(keys for _, keys in believed.values()))

    def _why_not_ready(self) -> str | None:
        return "draining" if self._is_draining else self._store_trouble

    async def _ask_store(self, store: TaskStore) -> None:
        """Asks the store from time to time whether it is there. Whether its database is, is for its own readiness to say; and
        one that stops says so to its load balancer, behind which there are others."""
        while True:
            try:
                await store.check(timeout_seconds=ASK_STORE_SECONDS)
                self._store_trouble = None
            except StoreError:
                self._store_trouble = "the store cannot be reached"
            await asyncio.sleep(ASK_STORE_SECONDS)
