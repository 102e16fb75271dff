"""The settings of the store. The only reader of its environment."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from ipaddress import ip_address
from typing import Any, Final

LOOPBACK: Final = frozenset({"localhost"})


class ConfigError(Exception):
    """A setting is missing or wrong. The message names its variable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What a store is told. Each field is read from `TENURE_STORE_` and its name in capitals; the log's two from `TENURE_`."""

    dsn: str
    """Where Postgres is: `postgresql://user:password@host:port/database`. A direct address: LISTEN needs one."""
    host: str = "127.0.0.1"
    """The address that gRPC listens on. Only a loopback one without `allow_plaintext`."""
    port: int = 7233
    """The port that gRPC listens on; 0 takes a free one."""
    admin_host: str = "127.0.0.1"
    """The address of probes and metrics."""
    admin_port: int = 7234
    """The port of `/livez`, `/readyz` and `/metrics`."""
    allow_plaintext: bool = False
    """Whether gRPC may be spoken unencrypted, by anyone, on an address that is not loopback: inside a network you trust."""
    pool_size: int = 10
    """How many connections to Postgres at most, besides the one for hints."""
    cancel_grace_seconds: float = 30.0
    """How long a worker that was asked to stop may take before its task is cancelled."""
    max_crashes: int = 20
    """How many times a task may lose its worker and be given to another."""
    drain_seconds: float = 10.0
    """How long calls under way may take after SIGTERM."""
    drain_pause_seconds: float = 0.0
    """How long to answer as usual after SIGTERM, while load balancers notice. On Kubernetes about 5."""
    reflection: bool = False
    """Whether grpcurl and its like may read the API from the server."""
    allow_test_clock: bool = False
    """Whether a database whose clock a test has moved is served. Never in production."""
    log_level: str = "info"
    """debug, info, warning or error."""
    log_format: str = "json"
    """json or console."""


def read_config(environment: Mapping[str, str]) -> Config:
    """Reads the settings. Raises ConfigError for one that is missing or wrong, and for names that no setting has."""
    values: dict[str, Any] = {}
    names = {_variable(field.name): field for field in fields(Config)}
    for variable, text in environment.items():
        if variable in names:
            values[names[variable].name] = _read(variable, text, names[variable].type)
        elif variable.startswith("TENURE_STORE_"):
            raise ConfigError(f"{variable} is no setting of the store; its settings are {', '.join(sorted(names))}")
    if not values.get("dsn"):
        raise ConfigError(
            "TENURE_STORE_DSN is not set; it says where Postgres is, as postgresql://user:password@host:port/database"
        )
    config = Config(**values)
    _check(config)
    return config


def _check(config: Config) -> None:
    if not config.allow_plaintext and not _is_loopback(config.host):
        raise ConfigError(
            f"TENURE_STORE_HOST is {config.host}, which others can reach, and gRPC is not encrypted; bind to 127.0.0.1, or set "
            "TENURE_STORE_ALLOW_PLAINTEXT=true where only those you trust reach it"
        )
    if config.log_level not in ("debug", "info", "warning", "error"):
        raise ConfigError("TENURE_LOG_LEVEL must be debug, info, warning or error")
    if config.log_format not in ("json", "console"):
        raise ConfigError("TENURE_LOG_FORMAT must be json or console")
    bounds: dict[str, tuple[float, float]] = {
        "port": (0, 65_535), "admin_port": (0, 65_535), "pool_size": (2, 500), "cancel_grace_seconds": (0, 86_400),
        "max_crashes": (0, 1_000), "drain_seconds": (0, 600), "drain_pause_seconds": (0, 600),
    }  # fmt: skip
    for name, (least, most) in bounds.items():
        if not least <= getattr(config, name) <= most:
            raise ConfigError(f"{_variable(name)} must be {least:g} to {most:g}")


def _variable(name: str) -> str:
    return f"TENURE_{name.upper()}" if name.startswith("log_") else f"TENURE_STORE_{name.upper()}"


def _read(variable: str, text: str, kind: object) -> Any:
    try:
        if kind is bool:
            return {"true": True, "1": True, "false": False, "0": False}[text.strip().lower()]
        return kind(text.strip()) if kind in (int, float) else text
    except (KeyError, ValueError):
        wanted = {bool: "true or false", int: "a whole number", float: "a number"}[kind]  # type: ignore[index]
        raise ConfigError(f"{variable} must be {wanted}") from None


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host in LOOPBACK
