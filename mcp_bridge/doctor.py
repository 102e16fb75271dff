"""`tenure-bridge doctor`: what is wrong with what a bridge is told and stands on, and what to do."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import msgspec
from taskstore.v1 import tenants_pb2

from mcp_bridge.access.config_files import ConfigFileError
from mcp_bridge.access.hosts import is_loopback
from mcp_bridge.access.issuers import DEVELOPMENT_ISSUER, Issuer, load_issuers
from mcp_bridge.access.keys import READ_SECONDS, fetch, read_keys, reader, trust_for
from mcp_bridge.access.routes import DEFAULT_CELL, Route, Routes
from mcp_bridge.access.routes_file import load_routes
from mcp_bridge.config import Config, store_tls
from store_service.client import StoreError, TaskStore, TenantStore
from store_service.telemetry.certificates import examine_certificates
from store_service.telemetry.findings import Finding, doubtful, well, wrong

UNHEARD: Final = timedelta(minutes=1)
"""After how long without a question for work no worker is taken to be there."""


async def examine(config: Config) -> AsyncIterator[Finding]:
    """Looks at one thing after the other and changes nothing."""
    routes = Routes({})
    try:
        routes = load_routes(config.routes)
        tools = sum(map(len, routes.tenants.values()))
        yield well("TENURE_BRIDGE_ROUTES", f"{tools} tools of {len(routes.tenants)} tenants")
    except (ConfigFileError, OSError) as error:
        yield wrong("TENURE_BRIDGE_ROUTES", str(error), "correct the file; a bridge that runs keeps the routes that it had")
    for finding in _examine_settings(config):
        yield finding
    async for finding in _examine_issuers(config):
        yield finding
    for cell in sorted(routes.used_cells() or {DEFAULT_CELL}):
        tenants = {tenant: tools for tenant, tools in routes.tenants.items() if routes.cell_of(tenant) == cell}
        async for finding in _examine_cell(config, cell, routes.cells.get(cell, config.store), tenants):
            yield finding


def _examine_settings(config: Config) -> Iterator[Finding]:
    if not config.issuers:
        text = f"development mode: whoever reaches {config.host}:{config.port} is tenant {config.dev_tenant}"
        yield doubtful("callers", text, "set TENURE_BRIDGE_ISSUERS and TENURE_BRIDGE_PUBLIC_URL where others are let in")
    elif not config.state_keys:
        text = "none are set: a round that began at one bridge cannot go on at another, nor after a restart"
        yield doubtful("TENURE_BRIDGE_STATE_KEYS", text, "give all bridges the same 32 bytes in base64")
    for setting, file in (("STORE_CA", config.store_ca), ("STORE_CERTIFICATE", config.store_certificate)):
        if file:
            yield examine_certificates(f"TENURE_BRIDGE_{setting}", file)


async def _examine_issuers(config: Config) -> AsyncIterator[Finding]:
    if not config.issuers:
        return
    try:
        issuers = load_issuers(config.issuers, on_loopback=is_loopback(config.host))
    except (ConfigFileError, OSError) as error:
        yield wrong("TENURE_BRIDGE_ISSUERS", str(error), "correct the file")
        return
    for issuer in issuers.all:
        try:
            async with asyncio.timeout(READ_SECONDS):
                keys = read_keys(await reader(issuer)())
        except (OSError, TimeoutError, aiohttp.ClientError, ValueError) as error:
            text = f"its keys at {issuer.jwks} cannot be read: {type(error).__name__}: {error}"
            yield wrong(issuer.issuer, text, "without keys each of its tokens is refused with 503")
        else:
            yield well(issuer.issuer, f"{len(keys)} keys at {issuer.jwks}")
        if issuer.issuer != DEVELOPMENT_ISSUER:
            yield await _examine_metadata(issuer)


async def _examine_metadata(issuer: Issuer) -> Finding:
    """Whether clients find the authorization server: they are told its name and look for its metadata themselves."""
    name = issuer.issuer
    parts = urlsplit(name)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    urls = [f"{origin}/.well-known/{kind}{path}" for kind in ("oauth-authorization-server", "openid-configuration")]
    urls.append(f"{origin}{path}/.well-known/openid-configuration")
    for url in dict.fromkeys(urls):
        try:
            found = msgspec.json.decode(await fetch(url, trust_for(url, issuer)), type=dict[str, Any])
        except (OSError, TimeoutError, aiohttp.ClientError, ValueError):
            continue
        if found.get("issuer") != name:
            cure = "write the issuer as its tokens have it, to the letter; clients refuse metadata of another name"
            return wrong(name, f"{url} is the metadata of {found.get('issuer')}", cure)
        if "S256" not in found.get("code_challenge_methods_supported", ()):
            cure = "turn on PKCE with S256 there; MCP clients must refuse to go on without"
            return doubtful(name, f"{url} does not say that it supports PKCE with S256", cure)
        return well(name, f"its metadata is at {url}")
    cure = "clients find where to get tokens by it; it may be reachable for them though not from here"
    return doubtful(name, "it serves no metadata of an authorization server that is read from here", cure)


async def _examine_cell(
    config: Config, cell: str, address: str, routes: Mapping[str, Mapping[str, Route]]
) -> AsyncIterator[Finding]:
    tls, name = store_tls(config), "store" if cell == DEFAULT_CELL else f"cell {cell}"
    try:
        async with TaskStore.connect(address, tls=tls) as store:
            serves = await store.check()
    except (StoreError, OSError) as error:
        where = "TENURE_BRIDGE_STORE" if cell == DEFAULT_CELL else "the `cells` of the route file"
        cure = f"see {where}, and TENURE_BRIDGE_STORE_CA where it speaks TLS; try `tenure-store doctor` there"
        yield wrong(name, f"{address} is not reached: {error}", cure)
        return
    if not serves:
        yield doubtful(name, f"{address} is about to stop", "look again")
        return
    yield well(name, f"{address} serves")
    async with TenantStore.connect(address, tls=tls) as tenants:
        for tenant, tools in routes.items():
            async for finding in _examine_tenant(tenants, tenant, tools.values()):
                yield finding


async def _examine_tenant(tenants: TenantStore, tenant: str, routes: Iterable[Route]) -> AsyncIterator[Finding]:
    """Whether workers ask for what a tenant's tools run."""
    try:
        answer = await tenants.list_registrations(tenants_pb2.ListRegistrationsRequest(tenant_id=tenant))
    except StoreError as error:
        if error.reason == "TENANT_MOVED":
            cure = "see `tenure-store doctor` there: let the move end, or take it back; then name its cell in the route file"
            yield wrong(f"tenant {tenant}", "it moves to another cell, or has moved, and is refused in this one", cure)
        else:
            text = f"the store does not let this bridge read it: {error}"
            yield wrong(f"tenant {tenant}", text, "see the store's policy file")
        return
    asked = {(one.workflow, one.workflow_version): one.asked_at.ToDatetime(UTC) for one in answer.registrations}
    now, is_well = datetime.now(UTC), True
    for route in routes:
        last = asked.get((route.workflow, route.workflow_version))
        if last is not None and now - last < UNHEARD:
            continue
        is_well = False
        since = "during the last day" if last is None else f"since {last:%Y-%m-%dT%H:%M:%SZ}"
        text = f"tool {route.tool}: no worker asked for {route.workflow} version {route.workflow_version} {since}"
        cure = "start a worker that has it, of exactly this version; or it is there and has as much as it can hold"
        yield doubtful(f"tenant {tenant}", text, cure)
    if is_well:
        yield well(f"tenant {tenant}", "workers ask for what its tools run")
