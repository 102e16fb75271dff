"""Clients that want work done, over gRPC: many creations and reads at a time, and now and then all else that callers say."""

import asyncio
from typing import Any, Final

import msgspec
from taskstore.v1 import tasks_pb2, types_pb2

from tests.robustness.clients.state import GRPC_TENANTS, REMOVED_TENANT, Client, Known, Shared
from tests.robustness.clients.wire import Api, ask, is_unheard, outcome_of
from tests.robustness.history import digest, now_us

OWNER: Final = types_pb2.Owner(issuer="run", subject="ann")
WORKFLOWS: Final = ("steps", "steps", "steps", "nap", "signal", "ask", "flaky", "busy", "raw", "raw", "raw", "spend")
_OVER: Final = (types_pb2.TASK_STATE_COMPLETED, types_pb2.TASK_STATE_FAILED, types_pb2.TASK_STATE_CANCELLED)


class Caller(Client):
    """Creates, reads, cancels, signals, answers, forks."""

    def __init__(
        self,
        name: str,
        shared: Shared,
        seed: int,
        apis: list[Api],
        *,
        eagerness: float = 0.35,
        workflows: tuple[str, ...] = WORKFLOWS,
        most_at_once: int = 12,
    ) -> None:
        super().__init__(name, shared, seed)
        self._apis = apis
        self._eagerness = eagerness
        self._workflows = workflows
        self._most_at_once = most_at_once
        self.tenant = self.draw.choice(GRPC_TENANTS)
        self._unheard: list[tasks_pb2.CreateTaskRequest] = []
        self._signals: list[tasks_pb2.PublishSignalRequest] = []

    @property
    def _api(self) -> Api:
        return self.draw.choice(self._apis)

    @property
    def owes(self) -> int:
        """How many writes nobody has answered yet."""
        return len(self._unheard) + len(self._signals)

    async def act(self) -> None:
        """Does one thing."""
        self.tenant = self.draw.choice(GRPC_TENANTS)
        if self._unheard:
            await self._create(self._unheard[:50])
        elif self._signals:
            await self._publish(self._signals[0])
        elif self.shared.may_create() and self.draw.random() < self._eagerness:
            await self._create([self._new_task() for _ in range(self.draw.randint(1, self._most_at_once))])
        else:
            await self._look_or_meddle()

    def _new_task(self) -> tasks_pb2.CreateTaskRequest:
        workflow = self.draw.choice(self._workflows)
        if self.shared.wanted:
            workflow = self.shared.wanted.pop()
        tenant = "gamma" if workflow == "spend" else self.tenant
        request_id = self.new_id()
        size = 20_000 if self.draw.random() < 0.02 else 20
        said: dict[str, Any] = {"canary": f"canary-{tenant}.{request_id}." + "x" * size, "n": self.draw.randint(1, 4)}
        if workflow == "flaky":
            said["fails"] = self.draw.randint(0, 3)
        deadline_ms = self.draw.choice((0, 0, 0, 60_000))
        ttl_ms = 2_000 if tenant == REMOVED_TENANT else 86_400_000
        contract = types_pb2.TaskContract(
            tool="job", workflow=workflow, workflow_version=1, owner=OWNER, ttl_ms=ttl_ms, execution_deadline_ms=deadline_ms
        )  # fmt: skip
        return tasks_pb2.CreateTaskRequest(
            tenant_id=tenant, request_id=request_id, contract=contract, priority=self.draw.randint(0, 3),
            input=types_pb2.Payload(data=msgspec.json.encode(said)),
        )  # fmt: skip

    async def _create(self, items: list[tasks_pb2.CreateTaskRequest]) -> None:
        """Says it, and again with the same ids until it is answered; now and then once more after that."""
        again = self._unheard[: len(items)] == items
        self.shared.creating += len(items)
        invoked = now_us()
        heard, answer = await ask(self._api.tasks.CreateTasks, tasks_pb2.CreateTasksRequest(items=items))
        self.shared.creating -= len(items)
        left = []
        for number, item in enumerate(items):
            outcome = outcome_of(answer.items[number], "created") if answer is not None else heard
            task = answer.items[number].created.task.task_id if outcome == "ok" else ""
            self.note("create", invoked, outcome, tenant=item.tenant_id, task=task, request=item.request_id)
            if (outcome == "ok" and not answer.items[number].created.replayed) or (outcome == "ok" and again):
                self.shared.made(item.tenant_id, task, item.contract.workflow)
            if is_unheard(outcome):
                left.append(item)
        self._unheard = left + (self._unheard[len(items) :] if again else self._unheard)
        if not left and not again and self.draw.random() < 0.05:
            await self._create_again(items)

    async def _create_again(self, items: list[tasks_pb2.CreateTaskRequest]) -> None:
        invoked = now_us()
        _, answer = await ask(self._api.tasks.CreateTasks, tasks_pb2.CreateTasksRequest(items=items))
        for item, one in zip(items, answer.items if answer is not None else (), strict=False):
            outcome = outcome_of(one, "created")
            self.note("create", invoked, outcome, tenant=item.tenant_id, task=one.created.task.task_id, request=item.request_id)

    async def _look_or_meddle(self) -> None:
        some = self.shared.some(self.draw, self.tenant, 40)
        if not some:
            return
        chance = self.draw.random()
        living = [known for known in some if not known.is_over]
        if chance < 0.60 or not living:
            await self.read(some)
        elif chance < 0.72:
            await self._watch_checkpoints(self.draw.choice(some))
        elif chance < 0.78 and not self.shared.is_quiet:
            await self._cancel(self.draw.choice(living))
        elif chance < 0.88:
            await self._signal(living)
        elif chance < 0.97:
            await self._answer(living)
        elif self.shared.may_create():
            await self._fork(self.draw.choice(some))

    async def read(self, some: list[Known]) -> None:
        """Reads tasks as they stand, at either store."""
        wanted = [
            tasks_pb2.GetTaskRequest(tenant_id=each.tenant, task_id=each.task, view=types_pb2.TASK_VIEW_OUTCOME)
            for each in some
        ]
        invoked = now_us()
        heard, answer = await ask(self._api.tasks.GetTasks, tasks_pb2.GetTasksRequest(items=wanted))
        for number, known in enumerate(some):
            item = answer.items[number] if answer is not None else None
            outcome = outcome_of(item, "task") if item is not None else heard
            if outcome == "TASK_NOT_FOUND":
                self.shared.ended(known)  # and was removed
            if item is None or outcome != "ok":
                self.note("read", invoked, outcome, tenant=known.tenant, task=known.task)
                continue
            task = item.task
            result = digest(task.result.data) if task.HasField("result") else ""
            self.note(
                "read", invoked, "ok", tenant=known.tenant, task=known.task, change=task.change,
                state=types_pb2.TaskState.Name(task.state)[11:], token=task.token, checkpoints=task.checkpoints, result=result,
            )  # fmt: skip
            self.shared.history.look_over(self.name, known.tenant, task.result.data)
            known.asks = task.wait.HasField("input")
            if task.state in _OVER:
                self.shared.ended(known)

    async def _watch_checkpoints(self, known: Known) -> None:
        invoked = now_us()
        request = tasks_pb2.ListCheckpointsRequest(tenant_id=known.tenant, task_id=known.task)
        outcome, answer = await ask(self._api.tasks.ListCheckpoints, request)
        seen = [(each.revision, each.token) for each in answer.checkpoints] if answer is not None else []
        self.note("checkpoints", invoked, outcome, tenant=known.tenant, task=known.task, seen=seen)

    async def _cancel(self, known: Known) -> None:
        mode = self.draw.choice((tasks_pb2.CANCEL_MODE_REQUEST, tasks_pb2.CANCEL_MODE_REQUEST, tasks_pb2.CANCEL_MODE_FORCE))
        invoked = now_us()
        request = tasks_pb2.CancelTaskRequest(tenant_id=known.tenant, task_id=known.task, mode=mode)
        outcome, answer = await ask(self._api.tasks.CancelTask, request)
        found = tasks_pb2.CancelOutcome.Name(answer.outcome)[15:] if answer is not None else ""
        self.note("cancel", invoked, outcome, tenant=known.tenant, task=known.task, found=found)

    async def _signal(self, living: list[Known]) -> None:
        """To some that wait for one, or soon will; and now and then to one that has no use for it."""
        wanting = [known for known in living if known.workflow == "signal"]
        some = self.draw.sample(wanting, min(4, len(wanting)))
        if self.draw.random() < 0.3:
            some += [known for known in living if known.workflow == "raw"][:1]
        await asyncio.gather(*(self._publish(self._new_signal(known)) for known in some))

    def _new_signal(self, known: Known) -> tasks_pb2.PublishSignalRequest:
        payload = types_pb2.Payload(data=msgspec.json.encode({"canary": f"canary-{known.tenant}.signal"}))
        return tasks_pb2.PublishSignalRequest(
            tenant_id=known.tenant, signal_id=self.new_id(), task_id=known.task, name="go", payload=payload
        )

    async def _publish(self, request: tasks_pb2.PublishSignalRequest) -> None:
        invoked = now_us()
        outcome, answer = await ask(self._api.tasks.PublishSignal, request)
        state = tasks_pb2.SignalState.Name(answer.state)[13:] if answer is not None else ""
        self.note(
            "signal", invoked, outcome, tenant=request.tenant_id, task=request.task_id, signal=request.signal_id, state=state
        )  # fmt: skip
        if is_unheard(outcome) and request not in self._signals:
            self._signals.append(request)
        elif not is_unheard(outcome) and request in self._signals:
            self._signals.remove(request)

    async def _answer(self, living: list[Known]) -> None:
        if asking := [known for known in living if known.asks]:
            known = self.draw.choice(asking)
            said = {"action": "accept", "content": {"yes": True}}
            answers = [types_pb2.InputAnswer(key="sure", response=types_pb2.Payload(data=msgspec.json.encode(said)))]
            invoked = now_us()
            request = tasks_pb2.AnswerInputsRequest(tenant_id=known.tenant, task_id=known.task, answers=answers)
            outcome, answer = await ask(self._api.tasks.AnswerInputs, request)
            found = [tasks_pb2.AnswerOutcome.Name(each)[15:] for each in answer.outcomes] if answer is not None else []
            self.note("answer", invoked, outcome, tenant=known.tenant, task=known.task, found=found)

    async def _fork(self, known: Known) -> None:
        request_id = self.new_id()
        request = tasks_pb2.ForkTaskRequest(
            tenant_id=known.tenant, request_id=request_id, source_task_id=known.task, checkpoints=0
        )  # fmt: skip
        outcome = "unknown"
        while is_unheard(outcome) and not self.shared.is_over:
            invoked = now_us()
            outcome, answer = await ask(self._api.tasks.ForkTask, request)
            task = answer.task.task_id if answer is not None else ""
            self.note("create", invoked, outcome, tenant=known.tenant, task=task, request=request_id)
            if outcome == "ok":
                self.shared.made(known.tenant, task, known.workflow)
            else:
                await self.shared.pace()
