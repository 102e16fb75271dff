"""What the bridge counts. No label names a tenant, a caller, a tool or a task."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

from store_service.telemetry import CallFigures

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_OTHER = "other"


class Metrics:
    """The figures of one bridge. `methods` are those that get a label of their own."""

    def __init__(self, registry: CollectorRegistry, methods: Iterable[str]) -> None:
        self._methods = frozenset(methods)
        self._calls = CallFigures("tenure_bridge", buckets=_BUCKETS, registry=registry)
        self.missing_names = Counter(
            "tenure_bridge_missing_mcp_name", "Calls of tasks/* that were served without Mcp-Name.", registry=registry
        )
        self._authentications = Counter(
            "tenure_bridge_authentications",
            "Requests by whether their token was believed, or why not.",
            ["outcome"],
            registry=registry,
        )
        self._believed = self._authentications.labels("ok")
        self.held_calls = Gauge("tenure_bridge_held_calls", "Calls that wait for their work right now.", registry=registry)
        self.subscriptions = Gauge("tenure_bridge_subscriptions", "Subscriptions that are open right now.", registry=registry)
        self.snapshots_sent = Counter(
            "tenure_bridge_snapshots_sent", "Snapshots of tasks that were sent, or wait for their reader.", registry=registry
        )
        self.snapshots_coalesced = Counter(
            "tenure_bridge_snapshots_coalesced", "Snapshots that a later one replaced before they were read.", registry=registry
        )
        self.route_reloads = Counter(
            "tenure_bridge_route_reloads", "Looks at a changed route file, by outcome.", ["outcome"], registry=registry
        )

        self.cells_reached = Gauge(
            "tenure_bridge_cell_reached",
            "Whether a cell's stores answered when they were asked last.",
            ["cell"],
            registry=registry,
        )
        self.cell_failures = Counter(
            "tenure_bridge_cell_failures", "Calls that a cell could not answer just then.", ["cell"], registry=registry
        )

    def tell(self, method: str, outcome: str, seconds: float) -> None:
        """Counts one call that has ended."""
        self._calls.tell(method if method in self._methods else _OTHER, outcome, seconds)

    def tell_authentication(self, outcome: str) -> None:
        """Counts one request whose token was looked at."""
        (self._believed if outcome == "ok" else self._authentications.labels(outcome)).inc()
