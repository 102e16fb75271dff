"""A task waits for the time, for a signal, for answers: one thing ends each wait, and what ended it reaches the worker."""

import asyncio
from typing import Any

import asyncpg
import pytest
from taskstore.v1 import leases_pb2, retention_pb2, tasks_pb2, types_pb2

from tests.conftest import Clock, Stubs
from tests.store.builders import (
    LOCK_TASK,
    TENANT,
    answer,
    assert_invalid,
    blocked,
    bring_along,
    cancel,
    claim,
    complete,
    create,
    create_and_lease,
    get,
    history,
    holding,
    lease,
    new_task,
    publish,
    question,
    refusal_of,
    release,
    suspend,
)

CONSUMED, PENDING, DEAD = (
    tasks_pb2.SIGNAL_STATE_CONSUMED,
    tasks_pb2.SIGNAL_STATE_PENDING,
    tasks_pb2.SIGNAL_STATE_DEAD_LETTER,
)


async def signal_state(store: Stubs, signal_id: str) -> tasks_pb2.SignalState.ValueType:
    return (await store.tasks.GetSignal(tasks_pb2.GetSignalRequest(tenant_id=TENANT, signal_id=signal_id))).state


async def none_ready(store: Stubs) -> bool:
    return not (await store.leases.LeaseTasks(claim())).tasks


async def test_a_timer_gives_the_lease_back_and_brings_the_task_when_its_time_has_come(store: Stubs, clock: Clock) -> None:
    held = (await create_and_lease(store)).lease
    await store.leases.SuspendTask(suspend(held, step="nap", timer_ms=3_600_000))
    waiting = await get(store, held.task_id)
    assert waiting.state == types_pb2.TASK_STATE_WAITING
    assert (waiting.wait.step, waiting.wait.WhichOneof("kind")) == ("nap", "timer")
    assert (waiting.wait.until.ToDatetime() - waiting.changed_at.ToDatetime()).total_seconds() == 3600
    assert await none_ready(store)
    await clock.advance(seconds=3601)
    woken = await lease(store)
    assert (woken.wake.step, woken.wake.WhichOneof("cause")) == ("nap", "timer")
    assert woken.lease.token == held.token + 1
    assert await history(store, held.task_id) == ["CREATED", "LEASED", "SUSPENDED", "WOKEN", "LEASED"]


async def test_a_signal_wakes_the_task_that_waits_for_it_with_its_bytes(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    await store.leases.SuspendTask(suspend(held, step="approval", signal="approved"))
    assert (await publish(store, held.task_id, name="other")).state == PENDING
    assert await none_ready(store)
    assert (await publish(store, held.task_id, name="approved", data=b'{"by" :"ann"}')).state == CONSUMED
    woken = await lease(store)
    assert woken.wake.signal.name == "approved"
    assert woken.wake.signal.payload.data == b'{"by" :"ann"}'
    assert not (await get(store, held.task_id)).HasField("wait")


async def test_a_signal_sent_before_the_wait_ends_it_at_once_and_the_oldest_comes_first(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    for number in (b"1", b"2"):
        assert (await publish(store, held.task_id, name="item", data=number)).state == PENDING
    for number in (b"1", b"2"):
        await store.leases.SuspendTask(suspend(held, signal="item"))
        woken = await lease(store)
        assert woken.wake.signal.payload.data == number
        held = woken.lease
    await store.leases.SuspendTask(suspend(held, signal="item"))
    assert (await get(store, held.task_id)).state == types_pb2.TASK_STATE_WAITING


@pytest.mark.parametrize(("late_seconds", "state", "cause"), [(-0.5, CONSUMED, "signal"), (0.5, DEAD, "timeout")])
async def test_signal_and_timeout_have_one_winner_by_the_stores_clock(
    store: Stubs, clock: Clock, late_seconds: float, state: "tasks_pb2.SignalState.ValueType", cause: str
) -> None:
    held = (await create_and_lease(store)).lease
    await store.leases.SuspendTask(suspend(held, signal="go", timeout_ms=600_000))
    await clock.advance(seconds=600 + late_seconds)
    assert (await publish(store, held.task_id, name="go", signal_id="s1")).state == state
    await clock.advance(seconds=2)
    assert (await lease(store)).wake.WhichOneof("cause") == cause
    assert await signal_state(store, "s1") == state


async def test_a_signal_is_idempotent_by_id_and_content_also_after_it_was_consumed(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    first = await publish(store, held.task_id, name="go", signal_id="s1", data=b"1")
    again = await publish(store, held.task_id, name="go", signal_id="s1", data=b"1")
    assert (first.replayed, again.replayed) == (False, True)
    for name, data in (("go", b"2"), ("stop", b"1")):
        refused = await refusal_of(publish(store, held.task_id, signal_id="s1", name=name, data=data))
        assert refused.reason == "SIGNAL_ID_CONFLICT"
    await store.leases.SuspendTask(suspend(held, signal="go"))
    assert (await publish(store, held.task_id, name="go", signal_id="s1", data=b"1")).state == CONSUMED
    assert await history(store, held.task_id) == ["CREATED", "LEASED", "SUSPENDED", "WOKEN"]


async def test_signals_to_a_task_that_ended_are_dead_letters_and_so_are_those_it_left(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    await publish(store, held.task_id, name="go", signal_id="left")
    await store.leases.CompleteTask(complete(held))
    assert await signal_state(store, "left") == DEAD
    assert (await publish(store, held.task_id, name="go", signal_id="late")).state == DEAD


async def test_dead_letters_are_listed_page_by_page_newest_first(store: Stubs, clock: Clock) -> None:
    held = (await create_and_lease(store)).lease
    other = await create(store, workflow="other")
    for number in range(5):
        await publish(store, held.task_id, name="go", signal_id=f"left.{number}")
        await clock.advance(seconds=1)
    await publish(store, other.task_id, name="go", signal_id="waits")
    await store.leases.CompleteTask(complete(held))
    for number in range(2):
        await publish(store, held.task_id, name="late", signal_id=f"late.{number}")
    dead, pending = tasks_pb2.SIGNAL_STATE_DEAD_LETTER, tasks_pb2.SIGNAL_STATE_PENDING

    async def listed(**fields: Any) -> list[str]:
        request = tasks_pb2.ListSignalsRequest(tenant_id=TENANT, **fields)
        found: list[tasks_pb2.ListSignalsResponse.Signal] = []
        while True:
            answer = await store.tasks.ListSignals(request)
            assert len(answer.signals) <= (request.page_size or 100)
            found += answer.signals
            if not answer.next_page_token:
                return [one.signal_id for one in found]
            request.page_token = answer.next_page_token

    letters = ["late.1", "late.0", *(f"left.{number}" for number in reversed(range(5)))]
    for page_size in (1, 2, 7, 8, 0):
        assert await listed(states=[dead], page_size=page_size) == letters
        assert await listed(states=[dead], task_id=held.task_id, page_size=page_size) == letters
        assert await listed(page_size=page_size) == [*letters[:2], "waits", *letters[2:]]
    assert await listed(states=[pending]) == await listed(task_id=other.task_id) == ["waits"]
    assert await listed(states=[pending], task_id=held.task_id) == []
    first = (await store.tasks.ListSignals(tasks_pb2.ListSignalsRequest(tenant_id=TENANT))).signals[0]
    assert (first.task_id, first.name, first.state) == (held.task_id, "late", dead)
    read = await store.tasks.GetSignal(tasks_pb2.GetSignalRequest(tenant_id=TENANT, signal_id=first.signal_id))
    assert (read.state, read.accepted_at) == (first.state, first.accepted_at)
    assert not (await store.tasks.ListSignals(tasks_pb2.ListSignalsRequest(tenant_id="other"))).signals


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("tenant_id", {"tenant_id": ""}),
        ("states", {"states": [tasks_pb2.SIGNAL_STATE_UNSPECIFIED]}),
        ("task_id", {"task_id": "x"}),
        ("page_size", {"page_size": 1_001}),
        ("page_token", {"page_token": "x"}),
        ("page_token", {"page_token": "5.a\0"}),
    ],
)
async def test_a_list_of_signals_that_makes_no_sense_is_refused(store: Stubs, field: str, wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"tenant_id": TENANT}
    request = tasks_pb2.ListSignalsRequest(**right | wrong)
    await assert_invalid(store.tasks.ListSignals(request), field)


async def test_compaction_forgets_what_is_over_and_never_what_is_pending(store: Stubs, clock: Clock) -> None:
    held = (await create_and_lease(store)).lease
    other = await create(store)
    await publish(store, held.task_id, name="go", signal_id="over")
    await publish(store, other.task_id, name="go", signal_id="pending")
    await store.leases.CompleteTask(complete(held))
    await clock.advance(seconds=3600)
    request = retention_pb2.CompactSignalsRequest(tenant_id=TENANT, older_than_ms=1_000)
    assert (await store.retention.CompactSignals(request)).compacted == 1
    assert (await refusal_of(signal_state(store, "over"))).reason == "SIGNAL_NOT_FOUND"
    assert await signal_state(store, "pending") == PENDING


async def test_questions_are_answered_one_by_one_and_the_task_goes_on_when_none_is_open(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    asked = suspend(held, step="form", questions=[question("name", b'{"z":1,"a":2}'), question("age")])
    assert list((await store.leases.SuspendTask(asked)).keys) == ["name", "age"]
    waiting = await get(store, held.task_id)
    assert [(one.key, one.params.data) for one in waiting.wait.input.requests] == [
        ("name", b'{"z":1,"a":2}'),
        ("age", b'{"message": "?"}'),
    ]
    assert await answer(store, held.task_id, age=b"7", unknown=b"1") == ["ACCEPTED", "IGNORED"]
    partly = await get(store, held.task_id)
    assert [one.key for one in partly.wait.input.requests] == ["name"]
    assert partly.change > waiting.change
    assert await answer(store, held.task_id, age=b"8") == ["IGNORED"], "the first answer wins"
    assert await answer(store, held.task_id, name=b'"Ann"') == ["ACCEPTED"]
    wake = (await lease(store)).wake.input
    assert {one.key: one.response.data for one in wake.answers} == {"name": b'"Ann"', "age": b"7"}
    assert list(wake.keys) == ["name", "age"]


@pytest.mark.row("T8")
@pytest.mark.must("R-03", "T-17", "T-18", "T-21")
async def test_a_key_is_never_used_again_and_an_old_answer_never_meets_a_new_question(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    for key in ("ok", "ok#2", "ok#3"):
        assert list((await store.leases.SuspendTask(suspend(held, questions=[question("ok")]))).keys) == [key]
        if key != "ok":
            assert await answer(store, held.task_id, ok=b"0") == ["IGNORED"]
        assert await answer(store, held.task_id, **{key: b"1"}) == ["ACCEPTED"]
        held = (await lease(store)).lease


async def test_questions_that_run_out_of_time_are_over_and_the_answers_that_came_are_kept(store: Stubs, clock: Clock) -> None:
    held = (await create_and_lease(store)).lease
    await store.leases.SuspendTask(suspend(held, questions=[question("a"), question("b")], timeout_ms=60_000))
    await answer(store, held.task_id, a=b"1")
    await clock.advance(seconds=61)
    assert await answer(store, held.task_id, b=b"2") == ["IGNORED"]
    wake = (await lease(store)).wake.input
    assert list(wake.keys) == ["a", "b"]
    assert [one.key for one in wake.answers] == ["a"]


def with_early_answers(*keys: str) -> tasks_pb2.CreateTaskRequest:
    request = new_task()
    for key in keys:
        request.early_answers.append(types_pb2.InputAnswer(key=key, response=types_pb2.Payload(data=f'"{key}"'.encode())))
    return request


async def early_answers(store: Stubs, held: types_pb2.Lease) -> list[str]:
    found = await store.leases.LoadEarlyAnswers(leases_pb2.LoadEarlyAnswersRequest(lease=held))
    assert all(one.response.data == f'"{one.key}"'.encode() for one in found.answers)
    return [one.key for one in found.answers]


async def test_answers_given_at_the_creation_are_used_when_their_key_is_asked_and_they_fit(store: Stubs) -> None:
    await store.tasks.CreateTask(with_early_answers("name", "never asked"))
    leased = await lease(store)
    assert leased.early_answers == 2
    assert await early_answers(store, leased.lease) == ["name", "never asked"]
    await store.leases.SuspendTask(suspend(leased.lease, questions=[question("name")], fitting=["name"]))
    woken = await lease(store)
    assert [one.response.data for one in woken.wake.input.answers] == [b'"name"']
    assert await early_answers(store, woken.lease) == ["never asked"]
    assert woken.early_answers == 2


async def test_an_early_answer_that_is_not_said_to_fit_is_dropped_and_its_question_open(store: Stubs) -> None:
    await store.tasks.CreateTask(with_early_answers("a", "b", "b#2"))
    held = (await lease(store)).lease
    await store.leases.SuspendTask(suspend(held, questions=[question("a"), question("b")], fitting=["b", "b#2", "other"]))
    assert [one.key for one in (await get(store, held.task_id)).wait.input.requests] == ["a"]
    await answer(store, held.task_id, a=b"1")
    woken = await lease(store)
    assert [(one.key, one.response.data) for one in woken.wake.input.answers] == [("a", b"1"), ("b", b'"b"')]
    assert await early_answers(store, woken.lease) == ["b#2"]
    await store.leases.SuspendTask(suspend(woken.lease, questions=[question("a"), question("b")], fitting=["b#2"]))
    assert [one.key for one in (await get(store, held.task_id)).wait.input.requests] == ["a#2"]


async def test_the_keys_that_fit_are_bounded(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    for fitting in (["k"] * 17, [""], ["k" * 161], ["\0"]):
        asking = suspend(held, questions=[question("a")], fitting=fitting)
        assert (await refusal_of(store.leases.SuspendTask(asking))).reason == "INVALID_INPUT"
    await store.leases.SuspendTask(suspend(held, questions=[question("a")], fitting=["k" * 160] * 16))


async def test_early_answers_are_shown_to_the_holder_of_the_lease_alone(store: Stubs, clock: Clock) -> None:
    await store.tasks.CreateTask(with_early_answers("a"))
    held = (await lease(store)).lease
    await clock.advance(seconds=31)
    assert (await refusal_of(early_answers(store, held))).reason == "LEASE_LOST"


async def test_a_name_that_was_asked_before_the_task_is_used_in_it_and_in_its_forks(store: Stubs) -> None:
    request = new_task()
    request.asked_before.extend(["who", "where", "who"])
    await store.tasks.CreateTask(request)
    held = (await lease(store)).lease
    asked = await store.leases.SuspendTask(suspend(held, questions=[question("who"), question("what")]))
    assert list(asked.keys) == ["who#2", "what"]
    forking = tasks_pb2.ForkTaskRequest(tenant_id=TENANT, request_id="fork", source_task_id=held.task_id)
    await store.tasks.ForkTask(forking)
    fork = (await lease(store)).lease
    assert fork.task_id != held.task_id
    asked = await store.leases.SuspendTask(suspend(fork, questions=[question("where"), question("what")]))
    assert list(asked.keys) == ["where#2", "what"]
    assert [one.key for one in (await get(store, fork.task_id)).wait.input.requests] == ["where#2", "what"]


async def test_a_wake_survives_the_loss_of_its_worker_until_the_next_wait(store: Stubs, clock: Clock) -> None:
    held = (await create_and_lease(store)).lease
    await store.leases.SuspendTask(suspend(held, signal="go"))
    await publish(store, held.task_id, name="go", data=b'"kept"')
    await lease(store)
    await clock.advance(seconds=31)
    again = await lease(store, worker_id="w2")
    assert again.wake.signal.payload.data == b'"kept"'
    await store.leases.ReleaseTask(release(again.lease))
    third = await lease(store)
    assert third.wake.signal.payload.data == b'"kept"'
    await store.leases.SuspendTask(suspend(third.lease, step="next", timer_ms=1_000))
    await clock.advance(seconds=2)
    assert (await lease(store)).wake.step == "next"


async def test_the_same_suspension_is_answered_again_and_another_is_refused(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    request = suspend(held, questions=[question("a")])
    first, again = await store.leases.SuspendTask(request), await store.leases.SuspendTask(request)
    assert list(first.keys) == list(again.keys) == ["a"]
    assert (await refusal_of(store.leases.SuspendTask(suspend(held, signal="go")))).reason == "LEASE_LOST"
    assert len((await get(store, held.task_id)).wait.input.requests) == 1


async def test_a_waiting_task_holds_no_lease_and_counts_as_outstanding(store: Stubs, database: asyncpg.Connection) -> None:
    held = (await create_and_lease(store)).lease
    await store.leases.SuspendTask(suspend(held, signal="go"))
    row = await database.fetchrow("SELECT outstanding, leased FROM tenure.tenant WHERE tenant_id = $1", TENANT)
    assert tuple(row) == (1, 0)


async def test_a_cancel_ends_a_waiting_task_at_once_and_its_questions_are_over(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    await store.leases.SuspendTask(suspend(held, questions=[question("a")]))
    outcome = (await store.tasks.CancelTask(cancel(held.task_id))).outcome
    assert outcome == tasks_pb2.CANCEL_OUTCOME_CANCELLED
    assert await answer(store, held.task_id, a=b"1") == ["IGNORED"]
    assert await none_ready(store)


async def test_a_suspension_after_a_wished_end_cancels_instead(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    await store.tasks.CancelTask(cancel(held.task_id))
    await store.leases.SuspendTask(suspend(held, signal="go"))
    assert (await get(store, held.task_id)).state == types_pb2.TASK_STATE_CANCELLED


@pytest.mark.row("T11")
async def test_the_execution_deadline_ends_a_task_that_waits(store: Stubs, clock: Clock, database: asyncpg.Connection) -> None:
    held = (await create_and_lease(store, deadline_ms=60_000)).lease
    await store.leases.SuspendTask(suspend(held, signal="go"))
    await clock.advance(seconds=61)
    await bring_along(store, database)
    ended = await get(store, held.task_id)
    assert ended.error.reason == types_pb2.FAILURE_REASON_EXECUTION_DEADLINE


async def test_a_signal_that_arrives_while_its_task_is_being_suspended_wakes_it(
    store: Stubs, dsn: str, database: asyncpg.Connection
) -> None:
    """The race in which a signal is marked as consumed and nobody is woken."""
    held = (await create_and_lease(store)).lease
    async with holding(dsn, LOCK_TASK, held.task_id):
        suspending = asyncio.ensure_future(store.leases.SuspendTask(suspend(held, signal="go")))
        await blocked(database)
        publishing = asyncio.ensure_future(publish(store, held.task_id, name="go"))
        await blocked(database, 2)
    await suspending
    assert (await publishing).state == CONSUMED
    assert (await lease(store)).wake.signal.name == "go"


async def test_a_stale_worker_consumes_no_signal(store: Stubs, clock: Clock) -> None:
    """The race in which a suspension whose fence fails eats the signal all the same."""
    stale = (await create_and_lease(store)).lease
    await publish(store, stale.task_id, name="go", signal_id="s1")
    await clock.advance(seconds=31)
    held = (await lease(store, worker_id="w2")).lease
    assert (await refusal_of(store.leases.SuspendTask(suspend(stale, signal="go")))).reason == "LEASE_LOST"
    assert await signal_state(store, "s1") == PENDING
    await store.leases.SuspendTask(suspend(held, signal="go"))
    assert await signal_state(store, "s1") == CONSUMED


async def test_a_fork_starts_with_the_first_checkpoints_and_leaves_its_source_alone(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    for revision, step in enumerate(("a", "b", "c")):
        payload = types_pb2.Payload(data=str(revision).encode())
        await store.leases.AppendCheckpoint(
            leases_pb2.AppendCheckpointRequest(lease=held, revision=revision, step=step, payload=payload)
        )
    await store.leases.CompleteTask(complete(held))
    source = await get(store, held.task_id)
    request = tasks_pb2.ForkTaskRequest(tenant_id=TENANT, request_id="f1", source_task_id=held.task_id, checkpoints=2)
    first, again = await store.tasks.ForkTask(request), await store.tasks.ForkTask(request)
    assert (first.replayed, again.replayed) == (False, True)
    assert first.task.task_id == again.task.task_id != held.task_id
    assert (first.task.forked_from_task_id, first.task.forked_from_checkpoints) == (held.task_id, 2)
    taken = await lease(store)
    assert (taken.lease.task_id, taken.checkpoints, taken.lease.token) == (first.task.task_id, 2, 1)
    loaded = await store.leases.LoadCheckpoints(leases_pb2.LoadCheckpointsRequest(lease=taken.lease))
    assert [(one.step, one.payload.data) for one in loaded.checkpoints] == [("a", b"0"), ("b", b"1")]
    after = await get(store, held.task_id)
    source.read_at.CopyFrom(after.read_at)
    assert after == source


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"source_task_id": "00000000-0000-4000-8000-000000000000"}, "TASK_NOT_FOUND"),
        ({"checkpoints": 1}, "CHECKPOINT_NOT_FOUND"),
        ({"owner": types_pb2.Owner(issuer="test", subject="bob")}, "TASK_NOT_FOUND"),
    ],
)
async def test_a_fork_of_what_is_not_there_is_refused(store: Stubs, change: dict[str, object], reason: str) -> None:
    task = await create(store)
    fields = {"tenant_id": TENANT, "request_id": "f1", "source_task_id": task.task_id, **change}
    assert (await refusal_of(store.tasks.ForkTask(tasks_pb2.ForkTaskRequest(**fields)))).reason == reason  # type: ignore[arg-type]


async def test_a_worker_is_told_at_once_that_the_end_of_its_task_is_wished_for(store: Stubs, second_store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    watch = second_store.leases.WatchLeases(leases_pb2.WatchLeasesRequest(worker_id="w1"))
    nudges = watch.__aiter__()
    await anext(nudges)
    async with asyncio.timeout(1):
        await store.tasks.CancelTask(cancel(held.task_id))
        await anext(nudges)
    watch.cancel()


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (leases_pb2.SuspendTaskRequest(step="s"), "wait"),
        (leases_pb2.SuspendTaskRequest(step="s", timer=leases_pb2.NewTimerWait(delay_ms=0)), "timer.delay_ms"),
        (leases_pb2.SuspendTaskRequest(step="", timer=leases_pb2.NewTimerWait(delay_ms=1)), "step"),
        (leases_pb2.SuspendTaskRequest(step="s", signal=leases_pb2.NewSignalWait(name="a b")), "signal.name"),
        (leases_pb2.SuspendTaskRequest(step="s", input=leases_pb2.NewInputWait()), "input.requests"),
        (
            leases_pb2.SuspendTaskRequest(step="s", input=leases_pb2.NewInputWait(requests=[question("a"), question("a")])),
            "input.requests.name",
        ),
        (
            leases_pb2.SuspendTaskRequest(step="s", input=leases_pb2.NewInputWait(requests=[question("a#2")])),
            "input.requests.name",
        ),
        (
            leases_pb2.SuspendTaskRequest(step="s", input=leases_pb2.NewInputWait(requests=[question("a", b"{")])),
            "input.requests.params.data",
        ),
        (
            leases_pb2.SuspendTaskRequest(
                step="s", input=leases_pb2.NewInputWait(requests=[question(f"q{n}") for n in range(17)])
            ),
            "input.requests",
        ),
    ],
)
async def test_a_suspension_that_makes_no_sense_is_refused(
    store: Stubs, request_: leases_pb2.SuspendTaskRequest, field: str
) -> None:
    request_ = leases_pb2.SuspendTaskRequest.FromString(request_.SerializeToString())
    request_.lease.CopyFrom((await create_and_lease(store)).lease)
    await assert_invalid(store.leases.SuspendTask(request_), field)
