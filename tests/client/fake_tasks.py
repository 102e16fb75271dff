"""TaskService as a script: each call takes the next of the answers laid out for it."""

import threading
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
from taskstore.v1 import tasks_pb2, tasks_pb2_grpc, types_pb2

from tests.client.fake_store import LIMITS, abort

SILENCE = "silence"
METHODS = (
    "CreateTask", "GetTask", "AttachTask", "CancelTask", "ListTasks", "ListTaskHistory", "ListCheckpoints", "AnswerInputs",
    "PublishSignal", "GetSignal", "ForkTask",
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

    def _answer(self, method: str, request: Any, context: grpc.ServicerContext) -> Any:
        self.calls.append(request)
        return self._give(self.answers[method].popleft(), context)

    def _watch(self, request: tasks_pb2.WatchTasksRequest, context: Any) -> Iterator[tasks_pb2.WatchTasksResponse]:
        self.calls.append(request)
        for answer in self.answers["WatchTasks"].popleft():
            yield self._give(answer, context)

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
    """Answers what is put into it, and no batches."""

    CreateTasks = GetTasks = GetCheckpoint = None


def snapshot(
    task_id: str,
    *,
    change: int,
    state: types_pb2.TaskState.ValueType = types_pb2.TASK_STATE_LEASED,
    reports: Sequence[int] = (),
) -> tasks_pb2.WatchTasksResponse:
    """A watched task as it stands, with the numbers of the reports that come with it."""
    return tasks_pb2.WatchTasksResponse(
        task_id=task_id,
        task=types_pb2.Task(task_id=task_id, change=change, state=state),
        reports=[types_pb2.Progress(sequence=number) for number in reports],
    )
