"""The checker sees each kind of lie in a history that it is given, and nothing in one that is true."""

from typing import Any

import pytest

from tests.robustness.checker.footprint import check_footprint
from tests.robustness.checker.judge import judge, resolve_unknowns
from tests.robustness.evidence import Event, Evidence, Row, Stone, Version, Write
from tests.robustness.history import Call
from tests.robustness.ledger import Effect

TASK = "11111111-1111-4111-8111-111111111111"
WORKER = "w1-l2000"
SECOND = 1_000_000
T0 = 1_800_000_000 * SECOND


def version(at: float, state: str, **fields: Any) -> Version:
    """One version of the task, `at` seconds after the start."""
    clock = T0 + int(at * SECOND)
    made = Version(
        seq=int(at * 1000), at=clock, tenant="alfa", task=TASK, op="U", state=state, token=0, worker="", expires=0, change=1,
        checkpoints=0, lines=1, wished=False, changed=clock, finish_token=0, failed_for="", attempts=0, crashes=0, waits="",
        held=False,
    )  # fmt: skip
    return made._replace(**fields)


def event(line: int, name: str, at: float, token: int = 0) -> Event:
    return Event(TASK, line, name, T0 + int(at * SECOND), token)


def call(op: str, outcome: str, begun: float, ended: float, **detail: Any) -> Call:
    return Call("c", op, outcome, T0 + int(begun * SECOND), T0 + int(ended * SECOND), "alfa", TASK, detail)


LEASE = {"token": 1, "worker": WORKER}


def honest() -> Evidence:
    """A task that was created, taken, worked on and completed, and everybody was told so."""
    ends = T0 + 3 * SECOND
    versions = [
        version(0, "QUEUED", op="I"),
        version(1, "LEASED", **LEASE, expires=ends, change=2, lines=2),
        version(2, "LEASED", **LEASE, expires=T0 + 4 * SECOND, change=2, lines=2),
        version(2.5, "LEASED", **LEASE, expires=T0 + 4 * SECOND, change=2, lines=2, checkpoints=1),
        version(3, "COMPLETED", token=1, finish_token=1, change=3, lines=3, checkpoints=1),
    ]
    calls = [
        call("create", "ok", -0.1, 0.1, request="r1"),
        call("read", "ok", 0.2, 0.3, change=1, state="QUEUED", token=0, checkpoints=0, result=""),
        call("lease", "ok", 0.9, 1.1, **LEASE),
        call("heartbeat", "ok", 1.9, 2.1, **LEASE),
        call("append", "ok", 2.4, 2.6, **LEASE, revision=0),
        call("complete", "ok", 2.9, 3.1, **LEASE, result="abc"),
        call("read", "ok", 3.2, 3.3, change=3, state="COMPLETED", token=1, checkpoints=1, result="abc"),
    ]
    appended = T0 + int(2.5 * SECOND)
    return Evidence(
        calls=calls, versions={TASK: versions}, order=versions,
        writes=[Write(1, appended, "alfa", TASK, "checkpoint", 0, 1, appended, "LEASED", 1, ends + SECOND)],
        rows={TASK: Row("alfa", TASK, "r1", "steps", 0, "COMPLETED", 1, "abc")},
        checkpoints={TASK: [(0, 1, "s0")]},
        events={TASK: [event(0, "CREATED", 0), event(1, "LEASED", 1, 1), event(2, "COMPLETED", 3, 1)]},
        limits={"alfa": (1, 10)}, effects=[Effect(TASK, "s0", 1, WORKER, is_accepted=True)],
    )  # fmt: skip


def changed(index: int, **fields: Any) -> Evidence:
    """The same, with one version otherwise."""
    evidence = honest()
    evidence.versions[TASK][index] = evidence.versions[TASK][index]._replace(**fields)
    return evidence


def with_call(added: Call) -> Evidence:
    evidence = honest()
    evidence.calls.append(added)
    return evidence


def read(state: str, change: int, begun: float, ended: float, **detail: Any) -> Call:
    told = {"token": 1, "checkpoints": 1, "result": "abc", **detail}
    return call("read", "ok", begun, ended, state=state, change=change, **told)


def test_nothing_is_wrong_with_the_truth() -> None:
    assert judge(honest()) == []
    assert judge(removed()) == []
    assert judge(removed_with(seen(2, begun=8), call("place hold", "ok", 4, 4.1), call("release hold", "ok", 4.5, 4.6))) == []


def removed(*, held: bool = False, exported: bool = True) -> Evidence:
    """The same, removed at 5 s; its tombstone was purged at 7 s."""
    evidence = honest()
    last = evidence.versions[TASK][-1]
    evidence.versions[TASK].append(last._replace(op="D", at=T0 + 5 * SECOND))
    evidence.rows, evidence.checkpoints = {}, {}
    came = Stone(1, T0 + 5 * SECOND, "alfa", TASK, 1, "I", held=False, exported=False)
    evidence.stones = [came, came._replace(at=T0 + 7 * SECOND, op="D", held=held, exported=exported)]
    evidence.purges = {"alfa": 1}
    return evidence


def removed_with(*added: Call) -> Evidence:
    evidence = removed()
    evidence.calls += added
    return evidence


def without_evidence() -> Evidence:
    evidence = removed()
    evidence.purges = {}
    return evidence


def seen(*cursors: int, begun: float) -> Call:
    return call("tombstones", "ok", begun, begun + 0.1, after=0, seen=list(cursors))


LIES = {
    "a token that jumps": ("S1", changed(1, token=2)),
    "a lease that was revived": ("S1", changed(1, expires=T0 + SECOND + 100_000)),
    "a lease that was shortened": ("S1", changed(2, expires=T0 + 2 * SECOND)),
    "a stale read": ("S5", with_call(read("QUEUED", 1, 3.4, 3.5, token=0, checkpoints=0, result=""))),
    "a state that never was": ("S5", with_call(read("FAILED", 3, 3.4, 3.5))),
    "a read of what is not yet": ("S5", with_call(read("COMPLETED", 3, 1.2, 1.3))),
    "a completion that nobody has": ("S5", with_call(call("complete", "ok", 3.2, 3.3, token=2, worker=WORKER, result="x"))),
    "a refusal of a lease that was good": ("S5", with_call(call("heartbeat", "LEASE_LOST", 1.2, 1.3, **LEASE))),
    "a cancel that did nothing": ("S5", with_call(call("cancel", "ok", 3.2, 3.3, found="CANCELLED"))),
    "a task that is not found": ("S5", with_call(call("read", "TASK_NOT_FOUND", 3.2, 3.3))),
    "a result that changed": ("S6", with_call(read("COMPLETED", 3, 3.4, 3.5, result="abd"))),
    "a purge in spite of a hold": ("S11", removed(held=True)),
    "a purge of what is kept nowhere": ("S11", removed(exported=False)),
    "a purge without evidence": ("S11", without_evidence()),
    "a removal after a hold": ("S11", removed_with(call("place hold", "ok", 4, 4.1))),
    "a purge after a hold": ("S11", removed_with(call("place hold", "ok", 6, 6.1), call("release hold", "ok", 8, 8.1))),
    "tombstones with one left out": ("S11", removed_with(seen(2, begun=6))),
    "too long a result that was taken": ("F22", with_call(call("too much", "ok", 4, 4.1, what="result"))),
    "too long a message, to be tried again": ("F22", with_call(call("too much", "RESOURCE_EXHAUSTED", 4, 4.1, what="input"))),
    "an answer that is too long": ("F22", with_call(call("take bulk", "ok", 4, 4.1, bytes=5_000_000))),
    "a result that is polled otherwise": ("S6", with_call(call("poll", "ok", 3.4, 3.5, status="completed", result="abd"))),
    "an acknowledgement of two tasks": ("S4", with_call(Call("c", "create", "ok", T0, T0, "alfa", "other", {"request": "r1"}))),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_seen(name: str) -> None:
    invariant, evidence = LIES[name]
    found = judge(evidence)
    assert any(each.startswith(invariant) for each in found), found


def test_an_unknown_outcome_may_be_either() -> None:
    assert judge(with_call(call("complete", "unknown", 3.2, 3.3, token=1, worker=WORKER, result="x"))) == []
    assert judge(with_call(call("create", "unknown", 3.2, 3.3, request="never"))) == []


def test_a_second_end_and_a_life_after_it_are_seen() -> None:
    evidence = honest()
    evidence.versions[TASK].append(version(4, "CANCELLED", token=1, change=4, lines=4, checkpoints=1))
    assert {each[:2] for each in judge(evidence)} >= {"S5"}


def test_a_write_of_an_old_token_is_seen() -> None:
    evidence = honest()
    evidence.writes = [evidence.writes[0]._replace(current_token=2)]
    assert judge(evidence)[0].startswith("S2")


def test_a_write_after_the_end_of_its_lease_is_seen() -> None:
    evidence = honest()
    evidence.writes = [evidence.writes[0]._replace(expires=T0 + 2 * SECOND)]
    assert judge(evidence)[0].startswith("S2")


def test_a_finish_after_the_end_of_its_lease_is_seen() -> None:
    evidence = changed(3, expires=T0 + 2_900_000)
    evidence.versions[TASK][2] = evidence.versions[TASK][2]._replace(expires=T0 + 2_900_000, at=T0 + 1_000_000)
    assert any(each.startswith("S2") for each in judge(evidence))


def test_a_lease_that_was_taken_away_early_is_seen() -> None:
    evidence = honest()
    evidence.events[TASK][2] = event(2, "LEASE_EXPIRED", 3)
    assert any("before its end" in each for each in judge(evidence))


def test_more_leases_than_allowed_are_seen() -> None:
    evidence = honest()
    evidence.order = [*evidence.order[:2], evidence.order[1]._replace(task="other")]
    assert any(each.startswith("S3") for each in judge(evidence))


def test_a_gap_among_checkpoints_and_a_lower_token_after_a_higher_are_seen() -> None:
    evidence = honest()
    evidence.checkpoints[TASK] = [(0, 2, "s0"), (1, 1, "s1")]
    assert {each[:2] for each in judge(evidence)} >= {"S7"}


def test_a_task_that_is_gone_is_seen() -> None:
    evidence = honest()
    evidence.rows = {}
    assert {each.partition(" ")[0] for each in judge(evidence)} >= {"S4", "S11"}


def test_a_task_that_never_ends_is_seen() -> None:
    evidence = honest()
    evidence.rows[TASK] = evidence.rows[TASK]._replace(state="LEASED")
    assert any(each.startswith("L ") for each in judge(evidence))


def test_a_signal_that_is_consumed_twice_or_lost_is_seen() -> None:
    evidence = honest()
    evidence.signals = [(1, T0, "alfa", "g1", TASK, "I", "CONSUMED")]
    evidence.wakes = [("alfa", TASK, "g1"), ("alfa", "other", "g1")]
    evidence.calls.append(call("signal", "ok", 1.2, 1.3, signal="g2", state="PENDING"))
    found = judge(evidence)
    assert len([each for each in found if each.startswith("S8")]) == 2


def test_descriptors_and_memory_that_do_not_return_are_seen() -> None:
    first = {"seconds": 3.0, "store-1": {"fds": 40, "mib": 80}, "worker-1": {"fds": 400, "mib": 60}}
    grown = {"seconds": 3.0, "store-1": {"fds": 60, "mib": 145}, "worker-1": {"fds": 441, "mib": 60}}
    assert list(check_footprint([first])) == list(check_footprint([first, first])) == []
    found = list(check_footprint([first, first, grown]))
    assert found == ["L store-1 has 145 mib in quiet 3, 80 in the first", "L worker-1 has 441 fds in quiet 3, 400 in the first"]


def test_a_signal_that_its_task_waits_for_and_does_not_get_is_seen() -> None:
    evidence = honest()
    waits = version(1.5, "WAITING", token=1, finish_token=1, waits="SIGNAL")
    evidence.versions[TASK] = [waits, version(2, "QUEUED", token=1)]
    evidence.signals = [(1, T0 + SECOND, "alfa", "g1", TASK, "I", "PENDING")]
    assert any("while" in each for each in judge(evidence) if each.startswith("S8"))
    evidence.signals = [(1, T0 + 2 * SECOND, "alfa", "g1", TASK, "I", "PENDING")]
    assert not any("while" in each for each in judge(evidence))


def test_an_input_that_became_two_tasks_is_seen_unless_one_is_a_fork_of_the_other() -> None:
    for is_fork in (False, True):
        evidence = honest()
        first = evidence.rows[TASK]._replace(input="i")
        evidence.rows = {TASK: first, "other": first._replace(task="other", request="r2", is_fork=is_fork)}
        assert any("made 2 times" in each for each in judge(evidence)) is not is_fork


def test_an_effect_that_a_saved_step_lacks_and_one_of_a_lower_token_are_seen() -> None:
    evidence = honest()
    first = evidence.effects[0]
    evidence.effects = [replace_effect(first, 3), replace_effect(first, 2)]
    assert len([each for each in judge(evidence) if each.startswith("S9")]) == 2


def replace_effect(effect: Effect, token: int) -> Effect:
    return Effect(effect.task, effect.step, token, effect.worker, is_accepted=True)


def test_what_became_of_calls_without_an_answer_is_told() -> None:
    evidence = honest()
    for request, later in (("r1", "ok"), ("r2", "TASK_NOT_FOUND"), ("r3", "STORAGE_UNAVAILABLE")):
        evidence.calls += [
            call("create", "unknown", -0.3, -0.2, request=request),
            call("create", later, 0, 0.1, request=request),
        ]
    evidence.calls += [call("complete", "unknown", 2.9, 3, token=1), call("append", "unknown", 2.7, 2.8, revision=1, token=1)]
    assert resolve_unknowns(evidence) == {
        "creations repeated until acknowledged": 1, "of them made exactly once": 1, "creations repeated until refused": 1,
        "creations unresolved": 1, "completions done": 1, "checkpoints not done": 1,
    }  # fmt: skip
