"""The definitions that a worker can run."""

import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from taskstore.v1 import leases_pb2

from store_service.client.usage import BudgetAmounts

MOST_WORKFLOWS: Final = 500
_MOST_NAME_BYTES: Final = 256
_DAY_SECONDS: Final = 86_400
_MOST_LEASE_SECONDS: Final = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When work that raised is tried again.

    The wait is random, between 0 and `initial_backoff_seconds` times two to the number of earlier retries, at most
    `max_backoff_seconds`. `max_attempts` counts the first time too; 1 means that it is not tried again.
    """

    max_attempts: int = 3
    initial_backoff_seconds: float = 1.0
    max_backoff_seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError("max_attempts must be at least 1")
        if not 0.001 <= self.initial_backoff_seconds <= self.max_backoff_seconds <= _DAY_SECONDS:
            raise ValueError("backoffs must be at least 1 ms, at most a day, and the first no longer than the longest")

    def backoff_seconds(self, retries: int) -> float:
        """A random time to wait for, after so many earlier retries."""
        longest = min(self.max_backoff_seconds, self.initial_backoff_seconds * 2 ** min(retries, 32))
        return random.uniform(0, longest)  # noqa: S311 (spreads tries out; nothing secret)

    def to_message(self) -> leases_pb2.RetryPolicy:
        """The policy as the store takes it."""
        return leases_pb2.RetryPolicy(
            max_attempts=self.max_attempts,
            initial_backoff_ms=round(self.initial_backoff_seconds * 1000),
            max_backoff_ms=round(self.max_backoff_seconds * 1000),
        )


@dataclass(frozen=True, slots=True)
class Retrying:
    """When a step is tried again within its run, and after which exceptions."""

    policy: RetryPolicy
    on: tuple[type[Exception], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflow:
    """One definition: a name, a version, and the function that runs it; and what a task of it may use and how long its leases
    last, where that is said."""

    name: str
    version: int
    retry: RetryPolicy
    function: Callable[..., Any]
    limits: BudgetAmounts | None = None
    lease_seconds: float | None = None
    is_async: bool = field(init=False)
    """Whether the function runs in the event loop; otherwise it runs in a thread."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_async", inspect.iscoroutinefunction(self.function))


class Workflows:
    """What one worker can run, found by exact name and version."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], Workflow] = {}

    def add(self, workflow: Workflow) -> None:
        """Takes one definition. Raises ValueError when its name or version breaks a rule, or is taken."""
        name, version = workflow.name, workflow.version
        if not name.strip() or "\0" in name or len(name.encode()) > _MOST_NAME_BYTES:
            raise ValueError(f"the name of a workflow must be 1 to {_MOST_NAME_BYTES} bytes and not blank: {name!r}")
        if not 1 <= version < 2**31:
            raise ValueError(f"the version of workflow {name!r} must be at least 1")
        if workflow.lease_seconds is not None:
            check_lease_seconds(workflow.lease_seconds)
        if (name, version) in self._found:
            raise ValueError(f"workflow {name!r} version {version} is registered already")
        if len(self._found) >= MOST_WORKFLOWS:
            raise ValueError(f"a worker runs at most {MOST_WORKFLOWS} workflow versions")
        self._found[name, version] = workflow

    def find(self, name: str, version: int) -> Workflow | None:
        """The definition, or None."""
        return self._found.get((name, version))

    def to_messages(self) -> list[leases_pb2.WorkflowVersion]:
        """All of them, as the store takes them."""
        return [
            leases_pb2.WorkflowVersion(workflow=one.name, version=one.version, lease_ms=round((one.lease_seconds or 0) * 1000))
            for one in self._found.values()
        ]


def check_lease_seconds(seconds: float) -> None:
    """Raises ValueError where a lease cannot last so long."""
    if not 1 <= seconds <= _MOST_LEASE_SECONDS:
        raise ValueError(f"lease_seconds must be 1 to {_MOST_LEASE_SECONDS}")
