"""A client that says too much: what is over a limit is refused for good, and what there is too much of comes bit by bit."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import grpc
import grpc.aio
import msgspec
from taskstore.v1 import leases_pb2, tasks_pb2, tasks_pb2_grpc, types_pb2

from store_service.model.limits import CHECKPOINT_BYTES, INPUT_BYTES, MESSAGE_BYTES, RESULT_BYTES, SIGNAL_BYTES
from tests.robustness.clients.callers import OWNER
from tests.robustness.clients.state import REMOVED_TENANT, Client, Shared
from tests.robustness.clients.wire import Api, ask, is_unheard, outcome_of
from tests.robustness.history import digest, now_us

WORKFLOW: Final = "bulky"
"""Its inputs together are more than an answer carries; nobody else takes them."""
LEASE_MS: Final = 20_000
_BULK_BYTES: Final = 900_000
_BULK_TASKS: Final = 7
_PAUSE_SECONDS: Final = 2.0


class Oversizer(Client):
    """Its tasks are those of the tenant whose tasks are removed, so that their bytes go again."""

    def __init__(self, name: str, shared: Shared, seed: int, apis: list[Api], ports: Sequence[int]) -> None:
        super().__init__(name, shared, seed)
        self._apis = apis
        self._worker = f"{name}-l{LEASE_MS}"
        self._unheard: list[tasks_pb2.CreateTaskRequest] = []
        # Without our channel's own limits: it is the store that refuses.
        options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        self._channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) for port in ports]

    @property
    def owes(self) -> int:
        """How many creations nobody has answered yet."""
        return len(self._unheard)

    async def close(self) -> None:
        """Ends its connections."""
        for channel in self._channels:
            await channel.close()

    async def act(self) -> None:
        """Says too much in one way or another, and does what work there is."""
        await asyncio.sleep(_PAUSE_SECONDS)
        if self._unheard:
            await self._create(self._unheard)
        elif self.shared.may_create():
            await self.draw.choice((self._ask_too_much, self._send_too_much, self._create_bulk))()
        await self._work()

    def _task(self, size: int) -> tasks_pb2.CreateTaskRequest:
        request_id = self.new_id()
        said = msgspec.json.encode({"canary": f"canary-{REMOVED_TENANT}.{request_id}."})
        contract = types_pb2.TaskContract(tool="job", workflow=WORKFLOW, workflow_version=1, owner=OWNER, ttl_ms=2_000)
        return tasks_pb2.CreateTaskRequest(
            tenant_id=REMOVED_TENANT, request_id=request_id, contract=contract,
            input=types_pb2.Payload(data=said + b" " * (size - len(said))),
        )  # fmt: skip

    async def _ask_too_much(self) -> None:
        """One payload that is a byte too long."""
        api = self.draw.choice(self._apis)
        signal = tasks_pb2.PublishSignalRequest(
            tenant_id=REMOVED_TENANT, signal_id=self.new_id(), task_id="00000000-0000-4000-8000-000000000000", name="go",
            payload=_payload(SIGNAL_BYTES + 1),
        )  # fmt: skip
        await self._too_much("input", api.tasks.CreateTask, self._task(INPUT_BYTES + 1))
        await self._too_much("signal", api.tasks.PublishSignal, signal)

    async def _send_too_much(self) -> None:
        """A message of which each item would be taken."""
        tasks: tasks_pb2_grpc.TaskServiceAsyncStub = tasks_pb2_grpc.TaskServiceStub(self.draw.choice(self._channels))
        items = [self._task(INPUT_BYTES - 100) for _ in range(MESSAGE_BYTES // INPUT_BYTES + 1)]
        await self._too_much("message", tasks.CreateTasks, tasks_pb2.CreateTasksRequest(items=items))

    async def _too_much(self, what: str, method: Any, request: Any) -> None:
        invoked = now_us()
        try:
            await method(request, timeout=10)
            outcome = "ok"
        except grpc.aio.AioRpcError as error:
            outcome = error.code().name
        self.note("too much", invoked, outcome, what=what)

    async def _create_bulk(self) -> None:
        self._unheard += [self._task(_BULK_BYTES) for _ in range(_BULK_TASKS)]
        await self._create(self._unheard)

    async def _create(self, items: list[tasks_pb2.CreateTaskRequest]) -> None:
        """Each by itself, and again until it is answered."""
        for item in list(items):
            invoked = now_us()
            outcome, answer = await ask(self.draw.choice(self._apis).tasks.CreateTask, item)
            task = answer.task.task_id if answer is not None else ""
            self.note("create", invoked, outcome, tenant=item.tenant_id, task=task, request=item.request_id)
            if outcome == "ok":
                self.shared.made(item.tenant_id, task, WORKFLOW)
            if not is_unheard(outcome):
                items.remove(item)

    async def _work(self) -> None:
        """Takes as much as there is, which is more than one answer has room for."""
        api = self.draw.choice(self._apis)
        request = leases_pb2.LeaseTasksRequest(
            request_id=self.new_id(), worker_id=self._worker, lease_ms=LEASE_MS, limit=50,
            workflows=[leases_pb2.WorkflowVersion(workflow=WORKFLOW, version=1)],
        )  # fmt: skip
        invoked = now_us()
        outcome, answer = await ask(api.leases.LeaseTasks, request)
        taken = list(answer.tasks) if answer is not None else []
        self.note("take bulk", invoked, outcome, bytes=sum(len(each.input.data) for each in taken))
        for each in taken:
            self._said("lease", invoked, "ok", each.lease)
        for number, each in enumerate(taken):
            if number == 0:
                too_long = leases_pb2.AppendCheckpointRequest(
                    lease=each.lease, revision=each.checkpoints, step="s0", payload=_payload(CHECKPOINT_BYTES + 1)
                )  # fmt: skip
                await self._too_much("checkpoint", api.leases.AppendCheckpoint, too_long)
                result = leases_pb2.CompleteTaskRequest(lease=each.lease, result=_payload(RESULT_BYTES + 1))
                await self._too_much("result", api.leases.CompleteTask, result)
            await self._complete(api, each.lease)

    async def _complete(self, api: Api, lease: types_pb2.Lease) -> None:
        data = msgspec.json.encode({"content": [{"type": "text", "text": f"canary-{lease.tenant_id}.{lease.task_id}"}]})
        request = leases_pb2.CompleteTasksRequest(
            items=[leases_pb2.CompleteTaskRequest(lease=lease, result=types_pb2.Payload(data=data))]
        )
        invoked = now_us()
        heard, answer = await ask(api.leases.CompleteTasks, request)
        outcome = outcome_of(answer.items[0], "completed") if answer is not None else heard
        self._said("complete", invoked, outcome, lease, result=digest(data))

    def _said(self, op: str, invoked: int, outcome: str, lease: types_pb2.Lease, **detail: object) -> None:
        held = {"token": lease.token, "worker": lease.worker_id}
        self.note(op, invoked, outcome, tenant=lease.tenant_id, task=lease.task_id, **held, **detail)


def _payload(size: int) -> types_pb2.Payload:
    return types_pb2.Payload(data=b'"' + b"x" * (size - 2) + b'"')
