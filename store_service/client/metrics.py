"""What a worker counts. No label has a value that user data decides."""

from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

Outcome = Literal["completed", "tool_error", "failed", "retried", "suspended", "released", "denied", "cancelled", "lease_lost"]
"""How one run of a task ended."""

OUTCOMES: Final[tuple[Outcome, ...]] = (
    "completed",
    "tool_error",
    "failed",
    "retried",
    "suspended",
    "released",
    "denied",
    "cancelled",
    "lease_lost",
)
_SECONDS: Final = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 300, 1800, 3600)


class WorkerMetrics:
    """The figures of one worker, in the registry given."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.tasks = Counter("tenure_worker_tasks", "Runs of tasks that ended.", ["outcome"], registry=registry)
        self.task_seconds = Histogram(
            "tenure_worker_task_seconds", "How long a run of a task took.", registry=registry, buckets=_SECONDS
        )
        self.running = Gauge("tenure_worker_running", "Tasks being run now.", registry=registry)
        self.slots = Gauge("tenure_worker_slots", "Tasks that may be run at once.", registry=registry)
        self.allowance = Gauge(
            "tenure_worker_allowance", "Of its slots, those that it fills now: fewer while it loses leases.", registry=registry
        )
        self.lease_calls = Counter(
            "tenure_worker_lease_calls", "Calls for work, by what they brought.", ["outcome"], registry=registry
        )
        self.heartbeat_failures = Counter(
            "tenure_worker_heartbeat_failures", "Heartbeats that were not answered.", registry=registry
        )
        self.heartbeat_gap_seconds = Histogram(
            "tenure_worker_heartbeat_gap_seconds",
            "Time between two extensions of a lease.",
            registry=registry,
            buckets=(0.1, 0.5, 1, 2, 3, 5, 10, 30),
        )
        self.steps = Counter(
            "tenure_worker_steps", "Steps, by whether they ran, waited or were remembered.", ["outcome"], registry=registry
        )
        self.ended = {outcome: self.tasks.labels(outcome) for outcome in OUTCOMES}
        """The counter of each outcome."""
        for brought in ("work", "idle", "error"):
            self.lease_calls.labels(brought)
        for how in ("ran", "remembered", "waited"):
            self.steps.labels(how)
