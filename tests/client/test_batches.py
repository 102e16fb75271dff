"""Single calls that travel together: each keeps its own outcome, deadline and cancellation."""

# ruff: noqa: N802 (methods are named by the API)

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from taskstore.v1 import tasks_pb2, tasks_pb2_grpc, types_pb2

from store_service.client import StoreError, TaskStore
from store_service.client.batches import MOST_BYTES, MOST_ITEMS, BatchMetrics
from store_service.model.refusals import Reason, Refusal
from store_service.rpc.status import to_status
from tests.client.fake_store import LIMITS

BAD = "-"  # a tenant that the scripted store refuses


class GatedTasks:
    """Answers reads and creations with what was asked for, once its gate is open. Notes who travelled together."""

    def __getattr__(self, method: str) -> None:
        """There are no others."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.travelled: list[list[str]] = []
        self.arrived = asyncio.Event()
        self.left = 0
        self.poison = ""
        self.is_old = False
        self.room_bytes = 1 << 30

    async def GetTask(self, request: tasks_pb2.GetTaskRequest, context: Any) -> tasks_pb2.GetTaskResponse:
        await self._pass([request], context)
        if request.tenant_id == BAD:
            await context.abort(grpc.StatusCode.NOT_FOUND, "bad")
        return tasks_pb2.GetTaskResponse(task=types_pb2.Task(task_id=request.task_id))

    async def GetTasks(self, request: tasks_pb2.GetTasksRequest, context: Any) -> tasks_pb2.GetTasksResponse:
        if self.is_old:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        await self._pass(request.items, context)
        answer, room = tasks_pb2.GetTasksResponse(), self.room_bytes
        for number, item in enumerate(request.items):
            room -= 1000
            if item.tenant_id == BAD:
                answer.items.add().refused.CopyFrom(to_status(Refusal(Reason.TASK_NOT_FOUND)))
            elif number and room < 0:
                answer.items.add().refused.CopyFrom(to_status(Refusal(Reason.BATCH_FULL)))
            else:
                answer.items.add().task.task_id = item.task_id
        return answer

    async def CreateTask(self, request: tasks_pb2.CreateTaskRequest, context: Any) -> tasks_pb2.CreateTaskResponse:
        await self._pass([request], context)
        return tasks_pb2.CreateTaskResponse(task=types_pb2.Task(task_id=request.request_id))

    async def CreateTasks(self, request: tasks_pb2.CreateTasksRequest, context: Any) -> tasks_pb2.CreateTasksResponse:
        await self._pass(request.items, context)
        answer = tasks_pb2.CreateTasksResponse()
        for item in request.items:
            answer.items.add().created.task.task_id = item.request_id
        return answer

    async def _pass(self, items: Sequence[Any], context: Any) -> None:
        self.travelled.append([item.tenant_id for item in items])
        self.arrived.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.left += 1
            raise
        if self.poison in {item.tenant_id for item in items}:
            await context.abort(grpc.StatusCode.INTERNAL, "one of these cannot be served")


@pytest.fixture
async def gated() -> GatedTasks:
    return GatedTasks()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call is slow, however slow the machine."""
    monkeypatch.setattr("store_service.client.batches.SLOW_SECONDS", 60.0)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
async def client(gated: GatedTasks, registry: CollectorRegistry) -> AsyncIterator[TaskStore]:
    server, port = await serve(gated)
    async with TaskStore.connect(f"127.0.0.1:{port}", batching=True, batch_metrics=BatchMetrics(registry)) as connected:
        yield connected
    gated.gate.set()
    await server.stop(None)


async def serve(servicer: Any) -> tuple[grpc.aio.Server, int]:
    server = grpc.aio.server(options=LIMITS)
    tasks_pb2_grpc.add_TaskServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port


def read(task_id: str, tenant_id: str = "acme") -> tasks_pb2.GetTaskRequest:
    return tasks_pb2.GetTaskRequest(tenant_id=tenant_id, task_id=task_id)


def ask(client: TaskStore, task_id: str, tenant_id: str = "acme", seconds: float = 10) -> "asyncio.Task[types_pb2.Task]":
    return asyncio.create_task(client.get_task(read(task_id, tenant_id), timeout_seconds=seconds))


async def fill(gated: GatedTasks, client: TaskStore) -> "list[asyncio.Task[types_pb2.Task]]":
    """Two calls under way, so that whoever asks now waits."""
    gated.gate.clear()
    first = []
    for number in range(2):
        gated.arrived.clear()
        first.append(ask(client, f"first-{number}", seconds=60))
        await asyncio.wait_for(gated.arrived.wait(), 60)
    return first


async def test_who_is_alone_goes_out_alone_and_who_asks_at_once_travels_together(
    gated: GatedTasks, client: TaskStore, registry: CollectorRegistry
) -> None:
    await ask(client, "a")
    tasks = await asyncio.gather(*(ask(client, str(number)) for number in range(100)))
    assert [task.task_id for task in tasks] == [str(number) for number in range(100)]
    assert [len(items) for items in gated.travelled] == [1, 100]
    figures = generate_latest(registry).decode()
    assert 'tenure_client_batch_items_sum{method="GetTask"} 101.0' in figures
    assert re.search(r'tenure_client_batch_wait_seconds_count\{method="GetTask"\} 2.0', figures)


async def test_what_is_asked_for_while_calls_are_under_way_goes_into_the_next_one(gated: GatedTasks, client: TaskStore) -> None:
    first = await fill(gated, client)
    later = [ask(client, str(number)) for number in range(7)]
    await asyncio.sleep(0)
    gated.gate.set()
    assert [task.task_id for task in await asyncio.gather(*later, *first)][:7] == [str(number) for number in range(7)]
    assert [len(items) for items in gated.travelled] == [1, 1, 7]


async def test_few_do_not_set_out_beside_many_who_are_under_way(gated: GatedTasks, client: TaskStore) -> None:
    gated.gate.clear()
    first = [ask(client, f"first-{number}") for number in range(8)]
    await asyncio.wait_for(gated.arrived.wait(), 60)
    gated.arrived.clear()
    few = [ask(client, f"few-{number}") for number in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert client._batchers[1]._waiting.count == 3
    enough = ask(client, "enough")
    await asyncio.wait_for(gated.arrived.wait(), 60)
    gated.gate.set()
    await asyncio.gather(*first, *few, enough)
    assert [len(items) for items in gated.travelled] == [8, 4]


async def test_a_refused_item_is_refused_alone(gated: GatedTasks, client: TaskStore) -> None:
    asked = [ask(client, str(number), BAD if number == 3 else "acme") for number in range(6)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [isinstance(answer, StoreError) for answer in answers] == [number == 3 for number in range(6)]
    assert isinstance(answers[3], StoreError)
    assert answers[3].reason == "TASK_NOT_FOUND"
    assert len(gated.travelled) == 1


async def test_an_item_that_the_whole_batch_fails_for_is_found_and_fails_alone(gated: GatedTasks, client: TaskStore) -> None:
    gated.poison = "poison"
    asked = [ask(client, str(number), "poison" if number == 5 else "acme") for number in range(8)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    failed = [number for number, answer in enumerate(answers) if isinstance(answer, StoreError)]
    assert failed == [5]
    assert isinstance(answers[5], StoreError)
    assert answers[5].code is grpc.StatusCode.INTERNAL


async def test_a_store_that_knows_no_batches_is_asked_one_by_one(gated: GatedTasks, client: TaskStore) -> None:
    gated.is_old = True
    tasks = await asyncio.gather(*(ask(client, str(number)) for number in range(5)))
    assert [task.task_id for task in tasks] == [str(number) for number in range(5)]
    assert [len(items) for items in gated.travelled] == [1] * 5


async def test_what_did_not_fit_into_an_answer_is_asked_for_again(gated: GatedTasks, client: TaskStore) -> None:
    gated.room_bytes = 4_000
    tasks = await asyncio.gather(*(ask(client, str(number)) for number in range(10)))
    assert [task.task_id for task in tasks] == [str(number) for number in range(10)]
    assert [len(items) for items in gated.travelled] == [10, 6, 2]


async def test_each_item_has_its_own_deadline(gated: GatedTasks, client: TaskStore) -> None:
    gated.gate.clear()
    hasty, patient = ask(client, "hasty", seconds=0.2), ask(client, "patient", seconds=60)
    with pytest.raises(StoreError) as raised:
        await hasty
    assert raised.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert not patient.done()
    gated.gate.set()
    assert (await patient).task_id == "patient"


async def test_an_item_that_waits_too_long_never_sets_out(gated: GatedTasks, client: TaskStore) -> None:
    first = await fill(gated, client)
    with pytest.raises(StoreError, match="in time"):
        await ask(client, "late", "late", seconds=0.05)
    gated.gate.set()
    await asyncio.gather(*first)
    assert ["late"] not in gated.travelled


async def test_who_is_cancelled_while_waiting_does_not_travel_and_others_do(gated: GatedTasks, client: TaskStore) -> None:
    first = await fill(gated, client)
    gone, stays = ask(client, "gone", "gone"), ask(client, "stays", "stays")
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    gated.gate.set()
    assert (await stays).task_id == "stays"
    await asyncio.gather(*first)
    assert gated.travelled[2:] == [["stays"]]


async def test_a_call_ends_when_nobody_waits_for_it_any_more(gated: GatedTasks, client: TaskStore) -> None:
    gated.gate.clear()
    both = [ask(client, "a", seconds=60), ask(client, "b", seconds=60)]
    await asyncio.wait_for(gated.arrived.wait(), 60)
    both[0].cancel()
    await asyncio.wait(both[:1])
    assert gated.left == 0
    both[1].cancel()
    await asyncio.wait(both)
    async with asyncio.timeout(60):
        while not gated.left:
            await asyncio.sleep(0.001)
    gated.gate.set()
    assert (await ask(client, "c")).task_id == "c"


async def test_tenants_take_turns_when_more_wait_than_one_call_takes(gated: GatedTasks, client: TaskStore) -> None:
    first = await fill(gated, client)
    many = [ask(client, str(number), "many") for number in range(MOST_ITEMS + 100)]
    few = [ask(client, str(number), f"few-{number}") for number in range(3)]
    await asyncio.sleep(0)
    gated.gate.set()
    await asyncio.gather(*first, *many, *few)
    together, rest = gated.travelled[2:]
    assert (len(together), len(rest)) == (MOST_ITEMS, 103)
    assert {f"few-{number}" for number in range(3)} <= set(together)


async def test_a_call_has_at_most_4_mib_and_the_small_go_with_the_large(gated: GatedTasks, client: TaskStore) -> None:
    def create(tenant_id: str, data: bytes) -> "asyncio.Task[tasks_pb2.CreateTaskResponse]":
        payload = types_pb2.Payload(data=data)
        return asyncio.create_task(
            client.create_task(tasks_pb2.CreateTaskRequest(tenant_id=tenant_id, request_id=tenant_id, input=payload))
        )

    large = [create(f"large-{number}", b"x" * (MOST_BYTES // 3)) for number in range(4)]
    small = create("small", b"x")
    await asyncio.gather(*large, small)
    assert sorted(map(len, gated.travelled)) == [2, 3]
    assert (await small).task.task_id == "small"


async def test_a_slow_call_does_not_keep_others_waiting(
    gated: GatedTasks, client: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store_service.client.batches.SLOW_SECONDS", 0.05)
    first = await fill(gated, client)
    other = ask(client, "other")
    await asyncio.wait_for(_until(lambda: len(gated.travelled) == 3), 60)
    gated.gate.set()
    await asyncio.gather(*first, other)


async def _until(is_so: Any) -> None:
    while not is_so():
        await asyncio.sleep(0.001)


async def test_no_more_calls_wait_than_may(gated: GatedTasks, client: TaskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store_service.client.batches.MOST_WAITING", 5)
    first = await fill(gated, client)
    calls = [asyncio.ensure_future(client._get_task(read(str(number)), timeout=60)) for number in range(8)]
    await _until(lambda: sum(call.done() for call in calls) == 3)
    gated.gate.set()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    await asyncio.gather(*first)
    assert [answer.reason for answer in answers if isinstance(answer, StoreError)] == ["OVERLOADED"] * 3


async def test_a_client_that_is_closed_leaves_nobody_waiting(gated: GatedTasks, client: TaskStore) -> None:
    first = await fill(gated, client)
    waiting = ask(client, "waiting")
    await asyncio.sleep(0)
    await client.close()
    answers = await asyncio.wait_for(asyncio.gather(*first, waiting, ask(client, "late"), return_exceptions=True), 60)
    assert all(isinstance(answer, StoreError) and not answer.is_transient for answer in answers), answers


async def test_without_batching_each_call_goes_out_by_itself(gated: GatedTasks, client: TaskStore) -> None:
    channel = client._channel
    single = TaskStore(channel, batching=False)
    await asyncio.gather(*(single.get_task(read(str(number))) for number in range(5)))
    assert [len(items) for items in gated.travelled] == [1] * 5
