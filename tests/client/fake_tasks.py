"""TaskService as a script: each call takes the next of the answers laid out for it."""

import asyncio
import contextlib
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from taskstore.v1 import tasks_pb2, tasks_pb2_grpc, types_pb2

from store_service.client.testing.memory import refusal
from tests.client.fake_store import LIMITS, abort

SILENCE = "silence"
METHODS = (
    "CreateTask", "GetTask", "AttachTask", "CancelTask", "ListTasks", "ListTaskHistory", "ListCheckpoints", "AnswerInputs",
    "PublishSignal", "GetSignal", "ListSignals", "ForkTask", "FindTask",
)  # fmt: skip


class FakeTasks:
    """What a caller's client meets. An answer is a message, a reason to refuse, `SILENCE`, or for a watch a list of them."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.answers: dict[str, deque[Any]] = defaultdict(deque)
        self.address = ""
        self._over = threading.Event()

    @contextmanager
    def serve(self) -> Iterator["FakeTasks"]:
        """Listens on loopback."""
        servicer: Any = _Servicer()
        for method in METHODS:
            setattr(servicer, method, lambda request, context, method=method: self._answer(method, request, context))
        servicer.WatchTasks = self._watch
        server = grpc.server(futures.ThreadPoolExecutor(8), options=LIMITS)
        tasks_pb2_grpc.add_TaskServiceServicer_to_server(servicer, server)
        self.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield self
        finally:
            self._over.set()
            server.stop(0).wait()

    async def until(self, condition: Callable[[], object]) -> None:
        """Waits, with a bound, until this is true of what was asked."""
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.01)

    def _answer(self, method: str, request: Any, context: grpc.ServicerContext) -> Any:
        self.calls.append(request)
        return self._give(self.answers[method].popleft(), context)

    def _watch(self, requests: Iterator[tasks_pb2.WatchTasksRequest], context: Any) -> Iterator[tasks_pb2.WatchTasksResponse]:
        """Nothing is told, and no stream ends, before it was asked; of a task nothing before that is watched, and then under
        the number that it has."""
        numbers: dict[str, int] = {}
        heard = threading.Condition()

        def listen() -> None:
            with contextlib.suppress(Exception):  # the stream is over
                for request in requests:
                    with heard:
                        self.calls.append(request)
                        numbers.update({one.task_id: one.number for one in request.add})
                        heard.notify_all()

        threading.Thread(target=listen, daemon=True).start()
        with heard:
            while not numbers:
                assert heard.wait(10)
        for answer in self.answers["WatchTasks"].popleft():
            if isinstance(answer, Told):
                with heard:
                    while answer.task_id not in numbers:
                        assert heard.wait(10)
                item = tasks_pb2.WatchTasksResponse.Item(number=numbers[answer.task_id])
                item.MergeFrom(answer.item)
                yield tasks_pb2.WatchTasksResponse(items=[item])
            else:
                self._give(answer, context)

    def _give(self, answer: Any, context: grpc.ServicerContext) -> Any:
        if answer == SILENCE:
            self._over.wait(10)
            context.abort(grpc.StatusCode.UNAVAILABLE, "silent")
        if answer == "broken":
            context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")
        if isinstance(answer, str):
            abort(context, answer)
        return answer


class _Servicer:
    """Answers what is put into it, and no other method of the API."""

    def __getattr__(self, method: str) -> None:
        return None


@dataclass(frozen=True)
class Told:
    """What a watch tells of a task."""

    task_id: str
    item: tasks_pb2.WatchTasksResponse.Item


def snapshot(
    task_id: str,
    *,
    change: int,
    state: types_pb2.TaskState.ValueType = types_pb2.TASK_STATE_LEASED,
    reports: Sequence[int] = (),
) -> Told:
    """A watched task as it stands, with the numbers of the reports that come with it."""
    task = types_pb2.Task(task_id=task_id, change=change, state=state)
    told = [types_pb2.Progress(sequence=number) for number in reports]
    if told:
        task.progress.CopyFrom(told[-1])
    return Told(task_id, tasks_pb2.WatchTasksResponse.Item(task=task, reports=told))


def refused(task_id: str, reason: str) -> Told:
    """A watched task about which nothing more follows."""
    return Told(task_id, tasks_pb2.WatchTasksResponse.Item(refused=refusal(reason)))
