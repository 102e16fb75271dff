"""A saga: a trip of several bookings, each of which is undone when a later one fails.

Nothing here is held open by a transaction. Each booking is a step; what was booked is known to every later run. A failure
that is final is remembered too, so that a worker which takes over in the middle of the undoing goes on with the undoing.

Run it beside a store: `python -m tests.examples.trip_saga.trip 127.0.0.1:7233`.
"""

import sys
from typing import Any, Protocol

from store_service.client import Context, RetryPolicy, StepFailed, ToolError, Worker

PARTS = ("flight", "hotel", "car")
PATIENT = RetryPolicy(max_attempts=5, initial_backoff_seconds=0.5, max_backoff_seconds=10)


class Agency(Protocol):
    """Where trips are booked. Both calls may be repeated under the same key."""

    async def book(self, part: str, city: str, key: str) -> str:
        """Books a part, and returns the booking. Raises ToolError when there is none to be had."""

    async def cancel(self, booking: str) -> None:
        """Gives a booking back. Safe to repeat."""


class Trips:
    """The workflow, with the agency that it books at."""

    def __init__(self, agency: Agency) -> None:
        self._agency = agency

    async def book_trip(self, ctx: Context, arguments: dict[str, Any]) -> dict[str, Any]:
        """Books all parts of a trip, or none."""
        bookings: dict[str, str] = {}
        # Calls to the outside fail for a moment now and then. They are tried again a few times within the run; after
        # that the step has failed for good, which StepFailed says. A ToolError is final at once.
        calling = ctx.with_retry(PATIENT, on=(ConnectionError, TimeoutError))
        try:
            for part in PARTS:
                key = ctx.idempotency_key(part)
                bookings[part] = await calling.step(f"book {part}", self._agency.book, part, arguments["city"], key)
        except (ToolError, StepFailed) as failure:
            for part, booking in reversed(bookings.items()):
                # Undoing must not fail: whatever is raised here ends the run, which is tried again from this step on.
                await ctx.step(f"cancel {part}", self._agency.cancel, booking)
            raise ToolError(f"The trip was not booked, and nothing is left of it: {reason_of(failure)}") from failure
        return {"bookings": bookings}


def reason_of(failure: ToolError | StepFailed) -> str:
    """What the caller may read."""
    return failure.text if isinstance(failure, ToolError) else "an agency could not be reached"


class PaperAgency:
    """An agency that only writes down what it was asked for."""

    async def book(self, part: str, city: str, key: str) -> str:
        """See Agency."""
        return f"{part} to {city} ({key[:8]})"

    async def cancel(self, booking: str) -> None:
        """See Agency."""


def main(store: str) -> None:
    """Runs a worker until it is told to stop."""
    worker = Worker(store)
    worker.workflow("book-trip", retry=RetryPolicy(max_attempts=100))(Trips(PaperAgency()).book_trip)
    worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
