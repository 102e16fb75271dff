"""How often a caller may look at one task. Source: contract, sections 5 and 10.17; decisions, 16."""

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from mcp_bridge.access.callers import Caller

BURST: Final = 10
"""Polls that are answered at once, however fast they come."""
TIMES_ADVERTISED: Final = 5
"""How many times faster than asked a caller may poll for long."""
UNTOLD_INTERVAL_MS: Final = 1_000
"""The interval of an id about which nothing was told yet; the same for those that exist and those that do not."""
MOST_BUCKETS: Final = 50_000
_ID_CHARACTERS: Final = 64


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_at: float
    interval_ms: int


class Polls:
    """A bucket of polls for each principal and task id, as it was sent. The least used ones are forgotten."""

    def __init__(self, clock: Callable[[], float], *, most: int = MOST_BUCKETS) -> None:
        self._clock = clock
        self._most = most
        self._buckets: OrderedDict[tuple[str, str, str, str], _Bucket] = OrderedDict()

    def take(self, caller: Caller, task_id: str) -> int | None:
        """Takes one poll. Returns None, or for how many seconds the caller must wait."""
        bucket, now = self._bucket(caller, task_id), self._clock()
        per_second = TIMES_ADVERTISED * 1000 / bucket.interval_ms
        bucket.tokens = min(BURST, bucket.tokens + (now - bucket.filled_at) * per_second)
        bucket.filled_at = now
        if bucket.tokens < 1:
            return max(1, math.ceil((1 - bucket.tokens) / per_second))
        bucket.tokens -= 1
        return None

    def advertise(self, caller: Caller, task_id: str, interval_ms: int) -> None:
        """Remembers what the caller was asked to keep to."""
        self._bucket(caller, task_id).interval_ms = max(1, interval_ms)

    def _bucket(self, caller: Caller, task_id: str) -> _Bucket:
        if len(task_id) > _ID_CHARACTERS:  # no id of ours: remembered for little
            task_id = sha256(task_id.encode()).hexdigest()
        key = (caller.tenant, caller.issuer, caller.subject, task_id)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(BURST, self._clock(), UNTOLD_INTERVAL_MS)
            if len(self._buckets) > self._most:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(key)
        return bucket
