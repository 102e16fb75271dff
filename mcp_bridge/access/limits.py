"""How much a caller, and all callers of its tenant together, may ask for. Source: checklist T12, T13, H19, H28.

Everything is counted by who the caller is, and what one tenant uses up is missing to no other. Nobody is counted in
development mode. Counts are those of one bridge.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from mcp_bridge.access.callers import Caller
from mcp_bridge.wire.failures import too_many

MOST_BUCKETS: Final = 50_000
_BURST_SECONDS: Final = 2.0
_LEAST_BURST: Final = 10.0
Rate = tuple[float, float]
"""How much comes a second, and how much may be taken at once."""
_FAILURES: Final[Rate] = (10.0, 100.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one caller, or one tenant, may ask for."""

    requests_per_second: int
    creates_per_second: int
    body_bytes_per_second: int
    streams: int
    """Calls that are held, and subscriptions, at the same time."""

    def rate(self, kind: str) -> Rate:
        """How fast one kind comes."""
        per_second = {
            "request": self.requests_per_second,
            "create": self.creates_per_second,
            "body": self.body_bytes_per_second,
        }[kind]
        return float(per_second), max(_LEAST_BURST, per_second * _BURST_SECONDS)


CALLER: Final = Limits(requests_per_second=100, creates_per_second=50, body_bytes_per_second=4 * 1024 * 1024, streams=100)
TENANT: Final = Limits(requests_per_second=1000, creates_per_second=500, body_bytes_per_second=40 * 1024 * 1024, streams=1000)


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """The limits of one tenant."""

    caller: Limits = CALLER
    tenant: Limits = TENANT
    rates: Mapping[str, tuple[Rate, Rate]] = field(init=False, repr=False, compare=False)
    """By kind, those of a caller and those of the tenant, worked out once."""

    def __post_init__(self) -> None:
        rates = {kind: (self.caller.rate(kind), self.tenant.rate(kind)) for kind in ("request", "create", "body")}
        object.__setattr__(self, "rates", rates)


class Buckets:
    """Buckets that fill with time; the least used ones are forgotten."""

    def __init__(self, clock: Callable[[], float], *, most: int = MOST_BUCKETS) -> None:
        self._clock = clock
        self._most = most
        self._filled: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def wait_seconds(self, key: Hashable, rate: Rate) -> float:
        """For how long the bucket has nothing to give; 0 if it has."""
        return max(0.0, -self.level(key, rate, self._clock()) / rate[0])

    def take(self, key: Hashable, rate: Rate) -> None:
        """Takes one out. What is not there is owed."""
        now = self._clock()
        self.set(key, rate, self.level(key, rate, now) - 1.0, now)

    def level(self, key: Hashable, rate: Rate, now: float) -> float:
        """What there is, less than one being nothing."""
        full = rate[1] - 1.0
        filled = self._filled.get(key)
        return full if filled is None else min(full, filled[0] + (now - filled[1]) * rate[0])

    def set(self, key: Hashable, rate: Rate, level: float, now: float) -> None:
        """There is that much from now on; no more is ever owed than may be taken at once."""
        self._filled[key] = max(level, -rate[1]), now
        self._filled.move_to_end(key)
        if len(self._filled) > self._most:
            self._filled.popitem(last=False)


class Limiter:
    """Counts. `limits_of` tells the limits of a tenant as they are now."""

    def __init__(self, limits_of: Callable[[str], TenantLimits], clock: Callable[[], float]) -> None:
        self._limits_of = limits_of
        self._clock = clock
        self._callers = Buckets(clock)
        self._tenants = Buckets(clock)
        self._addresses = Buckets(clock)
        self._streams: dict[Hashable, int] = {}

    def check_address(self, address: str) -> None:
        """Raises Failure 429 for an address from which too many came whom nobody believed."""
        if seconds := self._addresses.wait_seconds(address, _FAILURES):
            raise too_many("Too many requests without a good token", seconds)

    def blame_address(self, address: str) -> None:
        """Counts one whom nobody believed."""
        self._addresses.take(address, _FAILURES)

    def take_request(self, caller: Caller) -> None:
        """Counts a request, before its body is read. Raises Failure 429 if there were too many, or too large ones."""
        self._take("body", caller, 0.0)
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
        now, (rate, rate_of_all) = self._clock(), self._limits_of(caller.tenant).rates[kind]
        one, all_ = (caller.tenant, caller.issuer, caller.subject, kind), (caller.tenant, kind)
        left, left_to_all = self._callers.level(one, rate, now), self._tenants.level(all_, rate_of_all, now)
        if checks and (left < 0 or left_to_all < 0):
            raise too_many("Too much at once", max(-left / rate[0], -left_to_all / rate_of_all[0]))
        if amount:
            self._callers.set(one, rate, left - amount, now)
            self._tenants.set(all_, rate_of_all, left_to_all - amount, now)


def _principal(caller: Caller) -> tuple[str, str, str]:
    return caller.tenant, caller.issuer, caller.subject
