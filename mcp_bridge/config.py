"""The settings of the bridge. The only reader of its environment."""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from mcp_bridge.access.hosts import is_loopback
from mcp_bridge.access.proxies import read_networks
from store_service.client import Tls
from store_service.settings import ConfigError, Settings, check_log

_KEY_BYTES: Final = 32
_PUBLIC_URL = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9.-]+)(:[0-9]{1,5})?(/[A-Za-z0-9._~-]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What a bridge is told. Each field is read from `TENURE_BRIDGE_` and its name in capitals; the log's two from
    `TENURE_`."""

    routes: str
    """The route file."""
    host: str = "127.0.0.1"
    """The address that MCP is served on. In development mode a loopback address."""
    port: int = 8080
    """The port that MCP is served on, under `/mcp`; 0 takes a free one."""
    admin_host: str = "127.0.0.1"
    """The address of probes and metrics."""
    admin_port: int = 8081
    """The port of `/livez`, `/readyz` and `/metrics`; 0 takes a free one."""
    store: str = "127.0.0.1:7233"
    """Where the store is: `host:port`, or `dns:///name:port` for many."""
    store_ca: str = ""
    """The file of the authorities that the store's certificate is checked against. With it, the way there is encrypted."""
    store_certificate: str = ""
    """The file of the certificate that the bridge shows the store."""
    store_key: str = ""
    """The file of its key."""
    store_token: str = ""
    """Instead of a certificate: the file of a token, as Kubernetes projects one."""
    store_retry_seconds: float = 2.5
    """How long a call is tried again while the store is away, before its caller is told to come back."""
    batching: bool = True
    """Whether calls to the store that are wanted at the same time travel together."""
    allowed_origins: tuple[str, ...] = ()
    """Origins that web pages may call from, besides loopback ones: exactly as browsers send them, with commas between."""
    allowed_hosts: tuple[str, ...] = ()
    """Names by which the bridge may be called, besides loopback ones: `name` or `name:port`, with commas between."""
    issuers: str = ""
    """The issuer file: whose access tokens are believed. Without it the bridge is in development mode."""
    public_url: str = ""
    """The URL under which clients reach the bridge, without `/mcp`: tokens must be issued for it."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of proxies whose X-Forwarded-For, -Host and -Proto are believed, with commas between."""
    clock_leeway_seconds: float = 5.0
    """How far in the future a token may begin, by the clock of its issuer. Its end has no leeway."""
    strict_headers: bool = False
    """Whether `tasks/*` without `Mcp-Name` is refused, as the Tasks extension has it. Some deployed clients send none."""
    streams_per_principal: int = 20
    """How many subscriptions one principal may have open at a time."""
    most_streams: int = 10_000
    """How many subscriptions may be open at a time in all."""
    state_keys: tuple[str, ...] = field(default=(), repr=False)
    """Keys of 32 bytes in base64, with commas between, that seal what clients carry from round to round. The first seals,
    all of them open. In development mode none means one that is drawn at each start."""
    dev_tenant: str = "dev"
    """The tenant whose tools everybody may call in development mode."""
    stdio_tenant: str = ""
    """Whom `tenure-bridge stdio` serves: tenant, issuer and subject, as a token would say them. Without, as in development
    mode."""
    stdio_issuer: str = ""
    """See stdio_tenant."""
    stdio_subject: str = ""
    """See stdio_tenant."""
    stdio_scopes: tuple[str, ...] = ()
    """The scopes of whom `tenure-bridge stdio` serves, with commas between."""
    stdio_groups: tuple[str, ...] = ()
    """Their groups, with commas between."""
    drain_seconds: float = 10.0
    """How long calls under way may take after SIGTERM."""
    drain_pause_seconds: float = 0.0
    """How long to answer as usual after SIGTERM, while load balancers notice. On Kubernetes about 5."""
    fault_points: str = ""
    """A folder in which a test says where in this bridge something is to go wrong. Only in development mode."""
    traces: bool = False
    """Whether calls have spans, which are sent as the variables `OTEL_*` say."""
    log_level: str = "info"
    """debug, info, warning or error."""
    log_format: str = "json"
    """json or console."""


_SETTINGS: Final = Settings(Config, "TENURE_BRIDGE_", "the bridge")
_variable: Final = _SETTINGS.variable


def read_config(environment: Mapping[str, str]) -> Config:
    """Reads the settings. Raises ConfigError for one that is missing or wrong, and for names that no setting has."""
    values = _SETTINGS.read(environment)
    if not values.get("routes"):
        raise ConfigError("TENURE_BRIDGE_ROUTES is not set; it is the path of the route file")
    config = Config(**values)
    _check(config)
    return config


def read_state_keys(config: Config) -> list[bytes]:
    """The keys that seal states, decoded. Raises ConfigError, which does not show them."""
    keys = []
    for number, text in enumerate(config.state_keys, start=1):
        try:
            key = base64.b64decode(text, validate=True)
        except binascii.Error:
            key = b""
        if len(key) != _KEY_BYTES:
            raise ConfigError(f"{_variable('state_keys')}: key {number} must be {_KEY_BYTES} bytes in base64")
        keys.append(key)
    return keys


def store_tls(config: Config) -> Tls | None:
    """How the store is spoken to; None for unencrypted. Raises ConfigError for files that do not go together."""
    certificate, key, token = (
        Path(file) if file else None for file in (config.store_certificate, config.store_key, config.store_token)
    )
    if not config.store_ca and (certificate, key, token) == (None, None, None):
        return None
    try:
        if not config.store_ca:
            raise ValueError
        return Tls(ca=Path(config.store_ca), certificate=certificate, key=key, token=token)
    except ValueError:
        raise ConfigError(
            f"{_variable('store_ca')} goes with either {_variable('store_certificate')} and {_variable('store_key')}, or "
            f"{_variable('store_token')}"
        ) from None


def read_log_settings(environment: Mapping[str, str]) -> tuple[str, str]:
    """The log's level and form alone, for commands that need no other setting. Raises ConfigError."""
    level, form = environment.get("TENURE_LOG_LEVEL", "info"), environment.get("TENURE_LOG_FORMAT", "json")
    check_log(level, form)
    return level, form


def check_development(environment: Mapping[str, str]) -> None:
    """Raises ConfigError where the settings are those of a bridge that others can reach."""
    for name in ("host", "public_url"):
        text = environment.get(_variable(name), "")
        if text and not is_loopback(urlsplit(text).hostname or text):
            raise ConfigError(f"{_variable(name)} is {text}, which is not for trials on this machine")


def _check(config: Config) -> None:
    _check_access(config)
    check_log(config.log_level, config.log_format)
    read_state_keys(config)
    store_tls(config)
    identity = [bool(text.strip()) for text in (config.stdio_tenant, config.stdio_issuer, config.stdio_subject)]
    if any(identity) != all(identity) or (not any(identity) and (config.stdio_scopes or config.stdio_groups)):
        names = ", ".join(_variable(name) for name in ("stdio_tenant", "stdio_issuer", "stdio_subject"))
        raise ConfigError(f"{names}: all are set, or none of the stdio settings is")
    bounds: dict[str, tuple[float, float]] = {
        "port": (0, 65_535), "admin_port": (0, 65_535), "drain_seconds": (0, 600), "drain_pause_seconds": (0, 600),
        "store_retry_seconds": (0, 10), "clock_leeway_seconds": (0, 60), "streams_per_principal": (1, 100_000),
        "most_streams": (1, 100_000),
    }  # fmt: skip
    _SETTINGS.check_bounds(config, bounds)
    for name in ("host", "admin_host", "store", "dev_tenant"):
        if not getattr(config, name).strip():
            raise ConfigError(f"{_variable(name)} must not be empty")
    for origin in config.allowed_origins:
        scheme, separator, authority = origin.partition("://")
        if not (scheme and separator and authority) or "/" in authority or "*" in origin:
            raise ConfigError(f"{_variable('allowed_origins')} has {origin!r}; an origin is like https://app.example:8443")


def _check_access(config: Config) -> None:
    """Whoever can reach the bridge is asked who they are, over TLS; on loopback, trials need not be."""
    on_loopback = is_loopback(config.host)
    try:
        read_networks(config.trusted_proxies)
    except ValueError as error:
        raise ConfigError(f"{_variable('trusted_proxies')}: {error}") from None
    if config.fault_points and (config.issuers or not on_loopback):
        raise ConfigError(f"{_variable('fault_points')} is for tests, and so for development mode on a loopback address alone")
    if not config.issuers:
        if not on_loopback:
            raise ConfigError(
                f"TENURE_BRIDGE_HOST is {config.host}, which others can reach, and the bridge is in development mode, in "
                "which nobody is asked who they are; bind to 127.0.0.1, ::1 or localhost, or set TENURE_BRIDGE_ISSUERS"
            )
        if config.public_url:
            raise ConfigError(f"{_variable('public_url')} is for a bridge that checks tokens; set TENURE_BRIDGE_ISSUERS")
        return
    url, name = urlsplit(config.public_url), _variable("public_url")
    if not _PUBLIC_URL.fullmatch(config.public_url) or url.hostname is None:
        raise ConfigError(f"{name} must be a URL such as https://mcp.example.com, in small letters, without a slash at its end")
    if url.scheme == "http" and not is_loopback(url.hostname):
        raise ConfigError(f"{name} must be an https URL: tokens must not travel in the clear")
    if not on_loopback and not (url.scheme == "https" and config.trusted_proxies):
        raise ConfigError(
            f"TENURE_BRIDGE_HOST is {config.host}, which others can reach: {name} must be an https URL, and "
            f"{_variable('trusted_proxies')} must name the proxy in front that ends TLS"
        )
    if not config.state_keys:
        raise ConfigError(f"{_variable('state_keys')} is not set; all bridges must have the same key, see the README")
