"""How often one may look. Contract, section 10.17; decisions, 16."""

import pytest

from mcp_bridge.access.callers import Caller
from mcp_bridge.access.polls import BURST, Polls

ANN = Caller(tenant="dev", issuer="i", subject="ann")
BEN = Caller(tenant="dev", issuer="i", subject="ben")


class Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def exhausted(polls: Polls, caller: Caller, task_id: str) -> int:
    """Polls until it is refused. Returns how often it was not."""
    count = 0
    while polls.take(caller, task_id) is None:
        count += 1
    return count


def test_ten_polls_are_free_and_then_five_times_the_advertised_rate() -> None:
    clock = Time()
    polls = Polls(clock)
    assert exhausted(polls, ANN, "t") == BURST
    polls.advertise(ANN, "t", 2_000)
    clock.now += 0.4
    assert exhausted(polls, ANN, "t") == 1
    clock.now += 4
    assert exhausted(polls, ANN, "t") == BURST


def test_whoever_polls_as_asked_is_never_refused() -> None:
    clock = Time()
    polls = Polls(clock)
    for _ in range(1000):
        polls.advertise(ANN, "t", 100)
        assert polls.take(ANN, "t") is None
        clock.now += 0.1


@pytest.mark.row("T12")
def test_one_caller_and_one_task_does_not_slow_down_another() -> None:
    polls = Polls(Time())
    exhausted(polls, ANN, "t")
    assert polls.take(BEN, "t") is None
    assert polls.take(ANN, "u") is None


def test_the_wait_that_is_told_is_long_enough() -> None:
    clock = Time()
    polls = Polls(clock)
    polls.advertise(ANN, "t", 60_000)
    exhausted(polls, ANN, "t")
    seconds = polls.take(ANN, "t")
    assert seconds == 12
    clock.now += seconds
    assert polls.take(ANN, "t") is None


@pytest.mark.row("T12")
def test_buckets_are_bounded_and_so_is_each() -> None:
    polls = Polls(Time(), most=3)
    for number in range(100):
        polls.take(ANN, f"{number}" * 100_000)
    assert len(polls._buckets) == 3
    assert all(len(key[3]) <= 64 for key in polls._buckets)
