"""What a run tells the store at its end, and how what the code raised becomes that."""

from dataclasses import dataclass

from taskstore.v1 import leases_pb2

from store_service.client.metrics import Outcome
from store_service.client.outcomes import Cancelled, ProtocolError
from store_service.client.steps import Suspension


@dataclass(frozen=True, slots=True)
class Complete:
    """The task ends with this result."""

    result: bytes
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Fail:
    """The task ends with this error, or rests and is tried again."""

    error: ProtocolError
    retry: leases_pb2.RetryPolicy | None = None


@dataclass(frozen=True, slots=True)
class Suspend:
    """The task waits, and is run again when the wait is over."""

    suspension: Suspension


@dataclass(frozen=True, slots=True)
class Release:
    """The task is given back."""

    delay_ms: int = 0
    outcome: Outcome = "released"


@dataclass(frozen=True, slots=True)
class Confirm:
    """The task ends as its caller wished."""


Ending = Complete | Fail | Suspend | Release | Confirm


def plain(error: BaseException | None) -> BaseException | None:
    """The error itself where a task group wrapped it alone, or wrapped Cancelled several times."""
    while isinstance(error, BaseExceptionGroup):
        first = error.exceptions[0]
        if len(error.exceptions) > 1 and not all(isinstance(other, Cancelled) for other in error.exceptions):
            return error
        error = first
    return error
