"""Calls, counted and measured for as little as each of them can bear."""

import bisect
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class CallFigures(Collector):
    """`{name}_calls`, by method and outcome, and `{name}_call_seconds`, by method.

    The library's own counters take a lock for each figure, twenty times the work. These belong to one event loop; whoever
    reads them from another thread may see a call in one figure that is not yet in the next.
    """

    def __init__(self, name: str, *, buckets: Sequence[float], registry: CollectorRegistry) -> None:
        self._name = name
        self._bounds = tuple(buckets)
        self._counts: dict[tuple[str, str], int] = {}
        self._times: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}
        registry.register(self)

    def tell(self, method: str, outcome: str, seconds: float) -> None:
        """Counts one call that has ended."""
        key = method, outcome
        try:
            self._counts[key] += 1
        except KeyError:
            self._counts[key] = 1
        if method not in self._times:
            self._times[method], self._seconds[method] = [0] * (len(self._bounds) + 1), 0.0
        self._times[method][bisect.bisect_left(self._bounds, seconds)] += 1
        self._seconds[method] += seconds

    def describe(self) -> Iterable[Metric]:
        """See the base class."""
        return self._families()

    def collect(self) -> Iterable[Metric]:
        """See the base class."""
        calls, times = self._families()
        for (method, outcome), count in list(self._counts.items()):
            calls.add_metric([method, outcome], count)
        for method, counts in list(self._times.items()):
            total, buckets = 0, []
            for bound, count in zip((*map(str, self._bounds), "+Inf"), list(counts), strict=True):
                total += count
                buckets.append((bound, float(total)))
            times.add_metric([method], buckets, self._seconds[method])
        return calls, times

    def _families(self) -> tuple[CounterMetricFamily, HistogramMetricFamily]:
        return (
            CounterMetricFamily(f"{self._name}_calls", "Calls by method and outcome.", labels=["method", "outcome"]),
            HistogramMetricFamily(f"{self._name}_call_seconds", "Time of a call, waits included.", labels=["method"]),
        )
