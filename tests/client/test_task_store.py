"""The client of TaskService: deadlines, tries under the same id, refusals as StoreError."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2
from taskstore.v1 import tasks_pb2, tasks_pb2_grpc, types_pb2

from store_service.client import LeaseLost, StoreError, TaskStore
from store_service.client.calls import call
from store_service.client.channel import open_channel
from store_service.client.errors import from_status
from store_service.client.testing.memory import refusal
from tests.client.fake_tasks import SILENCE, FakeTasks

ENDED = types_pb2.TASK_STATE_COMPLETED


@pytest.fixture
def scripted() -> Iterator[FakeTasks]:
    with FakeTasks().serve() as serving:
        yield serving


@pytest.fixture
async def client(scripted: FakeTasks) -> AsyncIterator[TaskStore]:
    async with TaskStore.connect(scripted.address) as connected:
        yield connected


async def test_a_creation_is_repeated_with_the_same_request_until_it_is_answered(
    scripted: FakeTasks, client: TaskStore
) -> None:
    created = tasks_pb2.CreateTaskResponse(task=types_pb2.Task(task_id="t1"), replayed=True)
    scripted.answers["CreateTask"].extend(["STORAGE_UNAVAILABLE", "OUTCOME_UNKNOWN", "broken", created])
    request = tasks_pb2.CreateTaskRequest(tenant_id="acme", request_id="r1")
    assert await client.create_task(request) == created
    assert scripted.calls == [request] * 4


async def test_answers_signals_and_forks_are_repeated_as_they_are_safe_to_repeat(
    scripted: FakeTasks, client: TaskStore
) -> None:
    answered = tasks_pb2.AnswerInputsResponse(outcomes=[tasks_pb2.ANSWER_OUTCOME_ACCEPTED])
    published = tasks_pb2.PublishSignalResponse(state=tasks_pb2.SIGNAL_STATE_CONSUMED)
    found = tasks_pb2.GetSignalResponse(name="paid")
    listed = tasks_pb2.ListSignalsResponse(next_page_token="more")
    forked = tasks_pb2.ForkTaskResponse(replayed=True)
    for method, response in zip(
        ("AnswerInputs", "PublishSignal", "GetSignal", "ListSignals", "ForkTask"),
        (answered, published, found, listed, forked),
        strict=True,
    ):
        scripted.answers[method].extend(["OUTCOME_UNKNOWN", response])
    assert await client.answer_inputs(tasks_pb2.AnswerInputsRequest(task_id="t1")) == answered
    assert await client.publish_signal(tasks_pb2.PublishSignalRequest(signal_id="s1")) == published
    assert await client.get_signal(tasks_pb2.GetSignalRequest(signal_id="s1")) == found
    assert await client.list_signals(tasks_pb2.ListSignalsRequest(tenant_id="acme")) == listed
    assert await client.fork_task(tasks_pb2.ForkTaskRequest(request_id="r1")) == forked
    assert len(scripted.calls) == 10


async def test_a_lost_answer_leaves_time_for_another_try(scripted: FakeTasks, client: TaskStore) -> None:
    scripted.answers["GetTask"].extend([SILENCE, tasks_pb2.GetTaskResponse(task=types_pb2.Task(task_id="t1"))])
    task = await client.get_task(tasks_pb2.GetTaskRequest(task_id="t1"), timeout_seconds=2)
    assert task.task_id == "t1"


async def test_a_call_ends_at_its_deadline(scripted: FakeTasks, client: TaskStore) -> None:
    scripted.answers["CancelTask"].extend([SILENCE] * 8)
    async with asyncio.timeout(60):
        with pytest.raises(StoreError) as raised:
            await client.cancel_task(tasks_pb2.CancelTaskRequest(), timeout_seconds=0.6)
    assert raised.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_no_try_is_begun_after_the_time_for_tries(scripted: FakeTasks) -> None:
    scripted.answers["GetTask"].extend(["STORAGE_UNAVAILABLE"] * 2)
    async with TaskStore.connect(scripted.address, retry_seconds=0) as client:
        with pytest.raises(StoreError) as raised:
            await client.get_task(tasks_pb2.GetTaskRequest())
    assert (raised.value.reason, len(scripted.calls)) == ("STORAGE_UNAVAILABLE", 1)


async def test_a_refusal_is_raised_at_once_with_its_reason(scripted: FakeTasks, client: TaskStore) -> None:
    scripted.answers["GetTask"].append("TASK_NOT_FOUND")
    with pytest.raises(StoreError) as raised:
        await client.get_task(tasks_pb2.GetTaskRequest(task_id="t1"))
    error = raised.value
    assert (error.reason, error.code, error.message) == ("TASK_NOT_FOUND", grpc.StatusCode.NOT_FOUND, "refused: TASK_NOT_FOUND")
    assert len(scripted.calls) == 1


async def test_a_store_that_is_not_there_is_a_store_error() -> None:
    async with TaskStore.connect("127.0.0.1:1") as client:
        with pytest.raises(StoreError) as raised:
            await client.attach_task(tasks_pb2.AttachTaskRequest(), timeout_seconds=0.5)
    assert (raised.value.reason, raised.value.code) == ("", grpc.StatusCode.UNAVAILABLE)


async def test_a_message_over_the_limit_is_not_tried_again(scripted: FakeTasks, client: TaskStore) -> None:
    big = types_pb2.Task(result=types_pb2.Payload(data=b"x" * (6 * 2**20 + 1)))
    scripted.answers["GetTask"].append(tasks_pb2.GetTaskResponse(task=big))
    with pytest.raises(StoreError) as raised:
        await client.get_task(tasks_pb2.GetTaskRequest())
    assert raised.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert len(scripted.calls) == 1


async def test_a_result_of_4_mib_with_its_input_passes(scripted: FakeTasks, client: TaskStore) -> None:
    most, result = types_pb2.Payload(data=b"x" * 2**20), types_pb2.Payload(data=b"x" * 2**22)
    scripted.answers["GetTask"].append(tasks_pb2.GetTaskResponse(task=types_pb2.Task(input=most, result=result)))
    assert len((await client.get_task(tasks_pb2.GetTaskRequest())).result.data) == 2**22


def test_a_status_is_read_with_its_reason_and_its_hint() -> None:
    status = refusal("STORAGE_UNAVAILABLE")
    hint = any_pb2.Any()
    hint.Pack(error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=1, nanos=500_000_000)))
    status.details.append(hint)
    error = from_status(status)
    assert (error.reason, error.retry_after_ms, error.is_transient) == ("STORAGE_UNAVAILABLE", 1500, True)
    assert isinstance(from_status(refusal("LEASE_LOST")), LeaseLost)
    assert not from_status(refusal("LEASE_LOST")).is_transient


async def test_calls_of_a_client_that_is_closed_end_with_a_store_error(scripted: FakeTasks) -> None:
    scripted.answers["CancelTask"].append(SILENCE)
    async with TaskStore.connect(scripted.address) as client:
        under_way = asyncio.create_task(client.cancel_task(tasks_pb2.CancelTaskRequest()))
        await scripted.until(lambda: scripted.calls)
    late = client.cancel_task(tasks_pb2.CancelTaskRequest())
    answers = await asyncio.gather(under_way, late, return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreError, StoreError], answers


async def test_a_call_whose_connection_was_closed_for_a_newer_one_is_repeated(scripted: FakeTasks) -> None:
    answer = tasks_pb2.CancelTaskResponse(outcome=tasks_pb2.CANCEL_OUTCOME_REQUESTED)
    scripted.answers["CancelTask"].extend([SILENCE, answer])
    old, new = open_channel(scripted.address), open_channel(scripted.address)
    channels = iter([old, new])

    async def cancel_task(request: tasks_pb2.CancelTaskRequest, *, timeout: float) -> tasks_pb2.CancelTaskResponse:
        return await tasks_pb2_grpc.TaskServiceStub(next(channels)).CancelTask(request, timeout=timeout)

    asked = asyncio.create_task(call(cancel_task, tasks_pb2.CancelTaskRequest(), timeout_seconds=60))
    await scripted.until(lambda: scripted.calls)
    await old.close()
    assert await asked == answer
    await new.close()
