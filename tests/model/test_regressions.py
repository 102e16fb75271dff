"""What the machine, or the writing of the model, found: each told again, step by step."""

from typing import Any, Final

import pytest

from tests.model.contract.checks import MS, Owner
from tests.model.contract.rows import Lease
from tests.model.pair import Pair

ANN: Final = ("test", "ann")
BOB: Final = ("test", "bob")
LANES: Final = (("report", 1),)


def create(pair: Pair, request_id: str = "r1", **fields: Any) -> str:
    new = {"tenant_id": "acme", "workflow": "report", "version": 1, "owner": ANN, "data": b"1"} | fields
    task_id: str = pair.say("create_task", request_id=request_id, **new)["task"]["task_id"]
    return task_id


def lease(pair: Pair, request_id: str = "c1", **fields: Any) -> Lease:
    claim = {"worker_id": "w1", "workflows": LANES, "limit": 1, "lease_ms": 10_000} | fields
    (leased,) = pair.say("lease_tasks", request_id=request_id, **claim)["tasks"]
    return Lease(**leased["lease"])


@pytest.mark.parametrize(("owner", "answer"), [(ANN, True), (None, True), (BOB, "TASK_NOT_FOUND")])
def test_a_repeated_fork_is_answered_to_the_owner_alone(pair: Pair, owner: Owner | None, answer: bool | str) -> None:
    """The repetition was looked up before the owner: whoever knew source and request id was given another's task."""
    fork = {"tenant_id": "acme", "request_id": "f1", "source_task_id": create(pair), "checkpoints": 0}
    pair.say("fork_task", **fork, owner=ANN)
    again = pair.say("fork_task", **fork, owner=owner)
    assert (again if isinstance(again, str) else again["replayed"]) == answer


@pytest.mark.parametrize(("early_us", "state", "cause"), [(1, "CONSUMED", "signal"), (0, "DEAD_LETTER", "timeout")])
def test_at_the_very_end_of_a_wait_the_timeout_wins(pair: Pair, early_us: int, state: str, cause: str) -> None:
    create(pair)
    held = lease(pair)
    pair.say("suspend_task", lease=held, step="wait", signal="go", timeout_ms=5_000)
    pair.advance(5_000 * MS - early_us)
    sent = {"tenant_id": "acme", "signal_id": "s1", "task_id": held.task_id, "name": "go", "data": b"1"}
    assert pair.say("publish_signal", **sent)["state"] == state
    pair.advance(early_us)
    (woken,) = pair.say(
        "lease_tasks", request_id="c2", worker_id="w1", workflows=LANES, limit=1, lease_ms=10_000
    )["tasks"]  # fmt: skip
    assert cause in woken["wake"]


def test_a_lease_ends_at_its_end_and_not_before(pair: Pair) -> None:
    create(pair)
    held = lease(pair)
    pair.advance(10_000 * MS - 1)
    assert "expires_at" in pair.say("heartbeat_task", lease=held, lease_ms=1_000)
    pair.advance(1_000 * MS)
    assert pair.say("heartbeat_task", lease=held, lease_ms=1_000) == "LEASE_LOST"


def test_a_rest_of_no_time_is_no_rest(pair: Pair) -> None:
    create(pair)
    pair.throw(0.0)
    held = lease(pair)
    assert pair.say("fail_task", lease=held, message="it broke", retry=(3, 4_000, 6_000)) == {"retry_at": pair.model.now}
    assert lease(pair, "c2").token == 2


def test_a_claim_that_serves_two_tenants_puts_both_at_the_end(pair: Pair) -> None:
    for tenant_id in ("acme", "beta"):
        for request_id in ("r1", "r2"):
            create(pair, request_id, tenant_id=tenant_id)
    claim = {"worker_id": "w1", "workflows": LANES, "lease_ms": 10_000}
    taken = pair.say("lease_tasks", request_id="c1", limit=11, **claim)["tasks"]
    assert [one["lease"]["tenant_id"] for one in taken] == ["acme", "beta", "acme", "beta"]
