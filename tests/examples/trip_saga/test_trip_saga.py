"""All bookings or none, without services."""

from collections.abc import Iterator
from itertools import count

import pytest

from store_service.client import RetryPolicy, ToolError
from store_service.client.testing import WorkflowTest
from tests.examples.trip_saga import trip
from tests.examples.trip_saga.trip import Trips

CITY = {"city": "Oslo"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trip, "PATIENT", RetryPolicy(max_attempts=3, initial_backoff_seconds=0.001, max_backoff_seconds=0.001))


class Agency:
    """What is booked at this moment; the same key books once."""

    def __init__(self, *, full: str = "", away: str = "", cancel_fails: int = 0) -> None:
        self.booked: dict[str, str] = {}
        self.asked: list[str] = []
        self._full = full
        self._away = away
        self._cancels: Iterator[int] = count()
        self._cancel_fails = cancel_fails

    async def book(self, part: str, city: str, key: str) -> str:
        self.asked.append(part)
        if part == self._full:
            raise ToolError(f"no {part} in {city}")
        if part == self._away:
            raise ConnectionError("hunter2")
        self.booked[key] = part
        return key

    async def cancel(self, booking: str) -> None:
        if next(self._cancels) < self._cancel_fails:
            raise OSError("down")
        self.booked.pop(booking, None)


@pytest.mark.parametrize("where", ["during", "after"])
@pytest.mark.parametrize("step", ["book flight", "book hotel", "book car"])
async def test_a_crash_books_nothing_twice(step: str, where: str) -> None:
    agency = Agency()
    async with WorkflowTest(Trips(agency).book_trip) as t:
        t.crash(**{where: step})
        await t.run(CITY)
    assert sorted(agency.booked.values()) == ["car", "flight", "hotel"]


@pytest.mark.parametrize("where", ["during", "after"])
@pytest.mark.parametrize("step", ["book car", "cancel hotel", "cancel flight"])
async def test_what_was_booked_is_undone_even_if_workers_die_while_they_undo(step: str, where: str) -> None:
    agency = Agency(full="car")
    async with WorkflowTest(Trips(agency).book_trip) as t:
        t.crash(**{where: step})
        result = await t.run(CITY)
    assert result["isError"] is True
    assert result["content"][0]["text"] == "The trip was not booked, and nothing is left of it: no car in Oslo"
    assert agency.booked == {}
    assert t.steps == ["book flight", "book hotel", "book car", "cancel hotel", "cancel flight"]


async def test_an_agency_that_stays_away_is_given_up_after_a_few_tries() -> None:
    agency = Agency(away="hotel")
    async with WorkflowTest(Trips(agency).book_trip) as t:
        result = await t.run(CITY)
    assert agency.asked == ["flight", "hotel", "hotel", "hotel"]
    assert agency.booked == {}
    assert "could not be reached" in result["content"][0]["text"]


async def test_undoing_is_tried_until_it_is_done() -> None:
    agency = Agency(full="car", cancel_fails=4)
    async with WorkflowTest(Trips(agency).book_trip, retry=RetryPolicy(max_attempts=100)) as t:
        await t.run(CITY)
    assert agency.booked == {}
    assert t.runs == ["retried"] * 4 + ["tool_error"]
