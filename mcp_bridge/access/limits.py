"""How much a caller, and all callers of its tenant together, may ask for. Source: checklist T12, T13, H19, H28.

Everything is counted by who the caller is, and what one tenant uses up is missing to no other. Nobody is counted in
development mode. Counts are those of one bridge.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from mcp_bridge.access.callers import Caller
from mcp_bridge.wire.failures import too_many

MOST_BUCKETS: Final = 50_000
_BURST_SECONDS: Final = 2.0
_LEAST_BURST: Final = 10.0
_FAILURES_PER_SECOND: Final = 10.0
_FAILURES_BURST: Final = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one caller, or one tenant, may ask for."""

    requests_per_second: int
    creates_per_second: int
    body_bytes_per_second: int
    streams: int
    """Calls that are held, and subscriptions, at the same time."""


CALLER: Final = Limits(requests_per_second=100, creates_per_second=50, body_bytes_per_second=4 * 1024 * 1024, streams=100)
TENANT: Final = Limits(requests_per_second=1000, creates_per_second=500, body_bytes_per_second=40 * 1024 * 1024, streams=1000)


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """The limits of one tenant."""

    caller: Limits = CALLER
    tenant: Limits = TENANT


class Buckets:
    """Buckets that fill with time; the least used ones are forgotten."""

    def __init__(self, clock: Callable[[], float], *, most: int = MOST_BUCKETS) -> None:
        self._clock = clock
        self._most = most
        self._filled: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def wait_seconds(self, key: Hashable, per_second: float, burst: float) -> float:
        """For how long the bucket has nothing to give; 0 if it has."""
        return max(0.0, -self._level(key, per_second, burst) / per_second)

    def take(self, key: Hashable, per_second: float, burst: float, amount: float = 1.0) -> None:
        """Takes that much out. What is not there is owed."""
        level = self._level(key, per_second, burst)
        self._filled[key] = max(level - amount, -burst), self._clock()
        self._filled.move_to_end(key)
        if len(self._filled) > self._most:
            self._filled.popitem(last=False)

    def _level(self, key: Hashable, per_second: float, burst: float) -> float:
        """What there is, less than one being nothing."""
        level, at = self._filled.get(key, (burst - 1.0, self._clock()))
        return min(burst - 1.0, level + (self._clock() - at) * per_second)


class Limiter:
    """Counts. `limits_of` tells the limits of a tenant as they are now."""

    def __init__(self, limits_of: Callable[[str], TenantLimits], clock: Callable[[], float]) -> None:
        self._limits_of = limits_of
        self._callers = Buckets(clock)
        self._tenants = Buckets(clock)
        self._addresses = Buckets(clock)
        self._streams: dict[Hashable, int] = {}

    def check_address(self, address: str) -> None:
        """Raises Failure 429 for an address from which too many came whom nobody believed."""
        if seconds := self._addresses.wait_seconds(address, _FAILURES_PER_SECOND, _FAILURES_BURST):
            raise too_many("Too many requests without a good token", seconds)

    def blame_address(self, address: str) -> None:
        """Counts one whom nobody believed."""
        self._addresses.take(address, _FAILURES_PER_SECOND, _FAILURES_BURST)

    def take_request(self, caller: Caller) -> None:
        """Counts a request, before its body is read. Raises Failure 429 if there were too many, or too large ones."""
        self._check("body", caller)
        self._take("request", caller)

    def take_body(self, caller: Caller, size_bytes: int) -> None:
        """Counts a body that was read. One that is too much is paid for by the next requests."""
        self._take("body", caller, size_bytes, checks=False)

    def take_create(self, caller: Caller) -> None:
        """Counts a task that is about to be created. Raises Failure 429 if there were too many."""
        self._take("create", caller)

    @contextmanager
    def stream(self, caller: Caller) -> Iterator[None]:
        """Counts an answer that stays open. Raises Failure 429 if there are too many already."""
        if caller.is_development:
            yield
            return
        limits = self._limits_of(caller.tenant)
        keys = ((_principal(caller), limits.caller.streams), (caller.tenant, limits.tenant.streams))
        if any(self._streams.get(key, 0) >= most for key, most in keys):
            raise too_many("Too many calls that are held and subscriptions at the same time", 1.0)
        for key, _ in keys:
            self._streams[key] = self._streams.get(key, 0) + 1
        try:
            yield
        finally:
            for key, _ in keys:
                self._streams[key] -= 1
                if not self._streams[key]:
                    del self._streams[key]

    def _take(self, kind: str, caller: Caller, amount: float = 1.0, *, checks: bool = True) -> None:
        if caller.is_development:
            return
        if checks:
            self._check(kind, caller)
        for buckets, key, per_second, burst in self._rates(kind, caller):
            buckets.take(key, per_second, burst, amount)

    def _check(self, kind: str, caller: Caller) -> None:
        if caller.is_development:
            return
        waits = (buckets.wait_seconds(key, per_second, burst) for buckets, key, per_second, burst in self._rates(kind, caller))
        if seconds := max(waits):
            raise too_many("Too much at once", seconds)

    def _rates(self, kind: str, caller: Caller) -> Iterator[tuple[Buckets, Hashable, float, float]]:
        limits = self._limits_of(caller.tenant)
        for buckets, key, most in (
            (self._callers, (*_principal(caller), kind), limits.caller),
            (self._tenants, (caller.tenant, kind), limits.tenant),
        ):
            per_second = {
                "request": most.requests_per_second,
                "create": most.creates_per_second,
                "body": most.body_bytes_per_second,
            }[kind]
            yield buckets, key, float(per_second), max(_LEAST_BURST, per_second * _BURST_SECONDS)


def _principal(caller: Caller) -> tuple[str, str, str]:
    return caller.tenant, caller.issuer, caller.subject
