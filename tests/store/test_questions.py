"""Questions of a task: each is answered once, also before it was asked, and never by an answer to another."""

import pytest
from taskstore.v1 import leases_pb2, tasks_pb2, types_pb2

from tests.conftest import Clock, Stubs
from tests.store.builders import TENANT, answer, create_and_lease, get, lease, new_task, question, refusal_of, suspend


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
