"""The settings of the store. The only reader of its environment."""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from store_service.archive.opening import LOCKS, ArchiveSettings
from store_service.settings import ConfigError, Settings, check_log

LOOPBACK: Final = frozenset({"localhost"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What a store is told. Each field is read from `TENURE_STORE_` and its name in capitals; the log's two from `TENURE_`."""

    dsn: str
    """Where Postgres is: `postgresql://user:password@host:port/database`. A direct address: LISTEN needs one."""
    pooled_dsn: str = ""
    """The same database behind a PgBouncer in transaction mode, for all but LISTEN and migrations; none if it is empty."""
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
    tls_certificate: str = ""
    """The file of the certificate, with its chain, that the store shows; PEM. With it, gRPC is spoken encrypted alone."""
    tls_key: str = ""
    """The file of its key."""
    tls_client_ca: str = ""
    """The file of the authorities whose certificates callers show. What a certificate names is who its caller is."""
    token_keys: str = ""
    """Instead of certificates: the JWKS file with the keys that callers' tokens are signed with."""
    token_issuer: str = ""
    """Who issued the tokens."""
    token_audience: str = "tenure-store"  # noqa: S105 (no secret)
    """Whom the tokens are for."""
    policy: str = ""
    """The file that says who the callers are: identities, their roles, tenants and workflows."""
    max_connection_age_seconds: float = 1800.0
    """After how long a connection is ended, gently, so that callers spread over new stores."""
    wait_for_database: bool = False
    """Whether `serve` waits, alive and not ready, until there is a database that it may run on, however long that takes."""
    batching: bool = True
    """Whether single calls that arrive while a statement is under way are written and read together by the next one."""
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
    cleanup: bool = False
    """Whether this store removes what is over by itself, as tenants' retention says. Any number of stores may."""
    cleanup_scan_seconds: float = 30.0
    """The pause between two looks at all tenants."""
    cleanup_lease_seconds: float = 30.0
    """How long a tenant waits for the next store when the one that cleaned it up died."""
    cleanup_tenants_at_once: int = 8
    """How many tenants at once, each with a connection to Postgres of its own."""
    cleanup_batch: int = 100
    """How many tasks in one step."""
    cleanup_batches_per_claim: int = 10
    """How many steps of one tenant before the next one's turn."""
    cleanup_shards: int = 1
    """Into how many parts tenants are cut, each cleaned up by other stores. It only saves contention."""
    cleanup_shard: int = 0
    """Which part this store cleans up."""
    archive: str = ""
    """Where tombstones are archived: the path of a folder, or `s3://bucket/prefix`. Nowhere, if it is empty."""
    archive_endpoint: str = ""
    """The address of the object storage, where it is not AWS's."""
    archive_region: str = "us-east-1"
    """Its region."""
    archive_lock: str = "COMPLIANCE"
    """How objects are locked: COMPLIANCE, GOVERNANCE or NONE."""
    archive_lock_days: int = 3_650
    """For how long."""
    archive_timeout_seconds: float = 30.0
    """How long one request to it may take."""
    reflection: bool = False
    """Whether grpcurl and its like may read the API from the server."""
    allow_test_clock: bool = False
    """Whether a database whose clock a test has moved is served. Never in production."""
    fault_points: str = ""
    """A folder in which a test says where in this store something is to go wrong. Only on a loopback address."""
    traces: bool = False
    """Whether calls that come with a trace context have spans, which are sent as the variables `OTEL_*` say."""
    log_level: str = "info"
    """debug, info, warning or error."""
    log_format: str = "json"
    """json or console."""

    def archive_settings(self) -> ArchiveSettings | None:
        """Where the archive is, if there is one."""
        if not self.archive:
            return None
        return ArchiveSettings(
            address=self.archive, endpoint=self.archive_endpoint, region=self.archive_region, lock=self.archive_lock,
            lock_days=self.archive_lock_days, timeout_seconds=self.archive_timeout_seconds,
        )  # fmt: skip


_SETTINGS: Final = Settings(Config, "TENURE_STORE_", "the store")
_variable: Final = _SETTINGS.variable


def read_config(environment: Mapping[str, str]) -> Config:
    """Reads the settings. Raises ConfigError for one that is missing or wrong, and for names that no setting has."""
    values = _SETTINGS.read(environment)
    if not values.get("dsn"):
        raise ConfigError(
            "TENURE_STORE_DSN is not set; it says where Postgres is, as postgresql://user:password@host:port/database"
        )
    config = Config(**values)
    _check(config)
    return config


def read_archive(environment: Mapping[str, str], address: str | None = None) -> ArchiveSettings | None:
    """Reads the settings of the archive alone, as operators have no database; at this address, if one is given."""
    named = {name: text for name, text in environment.items() if name.startswith("TENURE_STORE_ARCHIVE")}
    values = {**_SETTINGS.read(named), **({"archive": address} if address is not None else {})}
    config = Config(dsn="", **values)
    _check_archive(config)
    return config.archive_settings()


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveConfig:
    """Between which databases a tenant moves, for who moves it."""

    from_dsn: str
    """Where it lives: `postgresql://user:password@host:port/database`. `TENURE_MOVE_FROM_DSN`."""
    to_dsn: str
    """Where it goes. `TENURE_MOVE_TO_DSN`."""


def read_move(environment: Mapping[str, str]) -> MoveConfig:
    """Reads both addresses. Raises ConfigError for one that is missing."""
    found = [environment.get(name, "").strip() for name in ("TENURE_MOVE_FROM_DSN", "TENURE_MOVE_TO_DSN")]
    if not all(found):
        raise ConfigError(
            "set TENURE_MOVE_FROM_DSN and TENURE_MOVE_TO_DSN: the databases where the tenant lives and where it goes"
        )
    return MoveConfig(from_dsn=found[0], to_dsn=found[1])


def _check(config: Config) -> None:
    _check_callers(config)
    _check_archive(config)
    if not (config.allow_plaintext or config.tls_certificate or _is_loopback(config.host)):
        raise ConfigError(
            f"TENURE_STORE_HOST is {config.host}, which others can reach, and gRPC is not encrypted; set "
            "TENURE_STORE_TLS_CERTIFICATE and what goes with it, or bind to 127.0.0.1, or set "
            "TENURE_STORE_ALLOW_PLAINTEXT=true where only those you trust reach it"
        )
    if config.fault_points and not _is_loopback(config.host):
        raise ConfigError(f"{_variable('fault_points')} is for tests, and so for a loopback address alone")
    check_log(config.log_level, config.log_format)
    bounds: dict[str, tuple[float, float]] = {
        "port": (0, 65_535), "admin_port": (0, 65_535), "pool_size": (2, 500), "cancel_grace_seconds": (0, 86_400),
        "max_crashes": (0, 1_000), "max_connection_age_seconds": (10, 604_800),
        "drain_seconds": (0, 600), "drain_pause_seconds": (0, 600),
        "cleanup_scan_seconds": (0.01, 86_400), "cleanup_lease_seconds": (1, 900),
        "cleanup_tenants_at_once": (1, 100), "cleanup_batch": (1, 1_000),
        "cleanup_batches_per_claim": (1, 1_000), "cleanup_shards": (1, 1_000), "cleanup_shard": (0, config.cleanup_shards - 1),
    }  # fmt: skip
    _SETTINGS.check_bounds(config, bounds)


def _check_archive(config: Config) -> None:
    if config.archive_lock not in LOCKS:
        raise ConfigError(f"{_variable('archive_lock')} must be {', '.join(LOCKS[:-1])} or {LOCKS[-1]}")
    _SETTINGS.check_bounds(config, {"archive_lock_days": (1, 36_500), "archive_timeout_seconds": (1, 600)})


def _check_callers(config: Config) -> None:
    """Encryption, identities and policy come together or not at all."""
    if not config.tls_certificate:
        alone = ("tls_key", "tls_client_ca", "token_keys", "token_issuer", "policy")
        if given := [name for name in alone if getattr(config, name)]:
            raise ConfigError(f"{_variable(given[0])} is set without {_variable('tls_certificate')}")
        return
    for name in ("tls_key", "policy"):
        if not getattr(config, name):
            raise ConfigError(f"{_variable(name)} is missing, beside {_variable('tls_certificate')}")
    if bool(config.tls_client_ca) == bool(config.token_keys):
        raise ConfigError(
            f"set one of {_variable('tls_client_ca')}, for callers with certificates, and {_variable('token_keys')}, for "
            "callers with tokens"
        )
    if config.token_keys and not (config.token_issuer and config.token_audience):
        raise ConfigError(f"{_variable('token_issuer')} is missing, beside {_variable('token_keys')}")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host in LOOPBACK
