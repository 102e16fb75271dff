"""A workflow function under test: run as a worker runs it, by the same code, over a store in memory."""

import json
import time
import uuid
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self, cast

from prometheus_client import CollectorRegistry
from taskstore.v1 import leases_pb2, leases_pb2_grpc, types_pb2

from store_service.client import failures, waits
from store_service.client.held import HeldLease, StopReason
from store_service.client.metrics import WorkerMetrics
from store_service.client.outcomes import ProtocolError
from store_service.client.payloads import from_json, to_json
from store_service.client.results import OutputSchemas
from store_service.client.runner import Run
from store_service.client.testing.budgets import MemoryBudget, Refused
from store_service.client.testing.memory import MemoryStore
from store_service.client.testing.stub import MemoryStub
from store_service.client.testing.tasks import MemoryTask
from store_service.client.usage import BudgetAmounts, without_usage
from store_service.client.workflows import RetryPolicy, Workflow

_LEASE_SECONDS: Final = 600.0
_MOST_RUNS: Final = 1_000


class WorkflowTest:
    """One task of one workflow function, on a clock that moves only when told to.

    `run` takes it to its end; what it will need is given before: answers by `answer`, signals by `signal`. `start` goes
    no further than its first wait, and `answer`, `signal` and `advance` take it on from there. Retries are made at once.
    A change of the function's code is tested by setting `function` or `limits` between two of these.

    - `capabilities`: what the calling client declared, `{"elicitation": {}}`; nothing when absent.
    - `output_schema`: what the tool's structured content keeps to.
    - `limits`: what the workflow declares that a task may use; `budget`: what its tenant has.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        workflow: str = "test",
        version: int = 1,
        retry: RetryPolicy | None = None,
        limits: BudgetAmounts | None = None,
        budget: BudgetAmounts | None = None,
        capabilities: Mapping[str, Any] | None = None,
        output_schema: Mapping[str, Any] | None = None,
    ) -> None:
        self.function = function
        self._retry = retry or RetryPolicy()
        self.limits = limits
        self._now = 0.0
        self._store = MemoryStore(lambda: self._now)
        self.set_budget(budget)
        self._stub = MemoryStub(self._store, self._on_call)
        contract = types_pb2.TaskContract(
            workflow=workflow,
            workflow_version=version,
            client_capabilities=json.dumps(capabilities).encode() if capabilities is not None else b"",
            output_schema=json.dumps(output_schema).encode() if output_schema is not None else b"",
        )
        self._task = MemoryTask(contract, state="NEW")
        self._store.tasks.append(self._task)
        self._crash_during: str | None = None
        self._crash_after: str | None = None
        self._run: Run | None = None
        self.runs: list[str] = []
        """How each run of the task ended: `suspended`, `lease_lost`, `retried`, `completed` and so on."""
        self.metrics = WorkerMetrics(CollectorRegistry())
        """What a worker counts."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._run is not None:
            self._run.held.stop(StopReason.LEASE_LOST)

    async def run(self, arguments: Any = None) -> dict[str, Any]:
        """Takes the task to its end, past its timers and rests, and returns its tool result as the caller reads it.

        Raises the ProtocolError that the task failed with, and AssertionError when it waits for what nobody gave.
        """
        await self.start(arguments)
        while (due := self._due) is not None:
            await self.advance(due - self._now)
        return self.result

    async def start(self, arguments: Any = None) -> None:
        """Begins the task, and goes on until it waits or has ended."""
        self._task.input = to_json("the arguments", {} if arguments is None else arguments)
        self._task.state = "QUEUED"
        await self._go_on()

    async def answer(self, key: str, response: Mapping[str, Any]) -> None:
        """Answers a question with the client's object, now or as soon as it is asked."""
        payload = types_pb2.Payload(data=to_json("the answer", response))
        if not self._store.answer_input(self._task, key, payload):
            self._task.early_answers[key] = payload
        await self._go_on()

    async def accept(self, key: str, **content: Any) -> None:
        """Answers a form with these values."""
        await self.answer(key, {"action": "accept", "content": content})

    async def signal(self, name: str, message: Any = None) -> None:
        """Sends a signal, which is kept until the task waits for it."""
        self._store.publish_signal(self._task, name, types_pb2.Payload(data=to_json("the message", message)))
        await self._go_on()

    async def advance(self, seconds: float) -> None:
        """Makes it later: timers and timeouts come due."""
        self._now += seconds
        await self._go_on()

    def set_budget(self, limits: BudgetAmounts | None) -> None:
        """The tenant has this budget from now on, nothing of it used; or none."""
        self._store.budget = None if limits is None else MemoryBudget(limits)

    def cancel(self) -> None:
        """Wishes the task's end. Code that runs is told at once."""
        self._store.cancel_task(self._task)
        if self._run is not None:
            self._run.held.stop(StopReason.CANCEL_REQUESTED)

    def crash(self, *, during: str | None = None, after: str | None = None) -> None:
        """The worker will die, once, when this step is about to be saved or has just been saved; another takes over."""
        self._crash_during, self._crash_after = during, after

    @property
    def state(self) -> str:
        """Where the task stands: `WAITING`, `COMPLETED`, `FAILED` or `CANCELLED`."""
        return self._task.state

    @property
    def result(self) -> dict[str, Any]:
        """The tool result. Raises as `run` does."""
        if self._task.error is not None:
            error = self._task.error
            data = json.loads(error.data.data) if error.HasField("data") else None
            raise ProtocolError(error.code, error.message, data)
        assert self._task.result is not None, f"the task has no result: {self.waits_for or self.state}"
        found: dict[str, Any] = json.loads(self._task.result)
        return found

    @property
    def waits_for(self) -> str | None:
        """What the task waits for, in words: `the time`, `signal paid`, `answers to approve, amount`."""
        waiting = self._task.waiting
        if waiting is None or self._task.state != "WAITING":
            return None
        match waiting.request.WhichOneof("wait"):
            case "timer":
                return "the time"
            case "signal":
                return f"signal {waiting.request.signal.name}"
            case _:
                return f"answers to {', '.join(waiting.questions)}"

    @property
    def questions(self) -> dict[str, dict[str, Any]]:
        """The open questions by their keys, as an MCP client sees them: `method` and `params`."""
        waiting = self._task.waiting
        found = waiting.questions if waiting is not None and self._task.state == "WAITING" else {}
        return {key: {"method": each.method, "params": json.loads(each.params.data)} for key, each in found.items()}

    @property
    def steps(self) -> list[str]:
        """The steps and waits that were saved, in order."""
        return self._task.steps

    @property
    def charged(self) -> BudgetAmounts:
        """What the tenant's budget says was used."""
        return BudgetAmounts(**self._store.budget.committed) if self._store.budget is not None else BudgetAmounts()

    @property
    def progress(self) -> list[tuple[float, float | None, str]]:
        """What was reported: value, total and message."""
        reports = self._task.progress
        return [(each.value, each.total if each.HasField("total") else None, each.message) for each in reports]

    def value(self, step: str) -> Any:
        """What a step returned, the failure that was its outcome, or the Wake that ended a wait."""
        found = next(checkpoint for checkpoint in self._task.checkpoints if checkpoint.step == step)
        payload = without_usage(found.payload)
        failure = failures.from_payload(step, payload)
        return failure or waits.from_payload(payload) or from_json(f"step {step!r}", payload)

    @property
    def _due(self) -> float | None:
        """When the task goes on by itself."""
        task, waiting = self._task, self._task.waiting
        if task.state == "QUEUED" and task.ready_at > self._now:
            return task.ready_at
        return waiting.until if waiting is not None and waiting.request.HasField("timer") else None

    async def _go_on(self) -> None:
        """Runs the task, as one worker after another, for as long as it is ready."""
        contract = self._task.contract
        while self._store.ready({contract.workflow}):
            assert len(self.runs) < _MOST_RUNS, "the task is run again and again"
            request = leases_pb2.LeaseTasksRequest(
                request_id=uuid.uuid4().hex,
                worker_id=f"worker-{len(self.runs) + 1}",
                workflows=[leases_pb2.WorkflowVersion(workflow=contract.workflow, version=contract.workflow_version)],
                limit=1,
                lease_ms=round(_LEASE_SECONDS * 1000),
            )
            [leased] = self._store.lease_tasks(request).tasks
            self.runs.append(await self._run_once(leased))

    async def _run_once(self, leased: leases_pb2.LeasedTask) -> str:
        contract = leased.contract
        self._run = Run(
            leased,
            HeldLease(leased.lease, lease_seconds=_LEASE_SECONDS, sent_at=time.monotonic()),
            workflow=Workflow(
                name=contract.workflow,
                version=contract.workflow_version,
                retry=self._retry,
                function=self.function,
                limits=self.limits,
            ),
            stub=cast("leases_pb2_grpc.LeaseServiceAsyncStub", self._stub),
            schemas=OutputSchemas(),
            metrics=self.metrics,
        )
        try:
            return await self._run.finish()
        finally:
            self._run = None

    def _on_call(self, method: str, request: Any, is_applied: bool) -> None:
        if method != "AppendCheckpoint":
            return
        if is_applied and self._crash_after == request.step:
            self._crash_after = None
        elif not is_applied and self._crash_during == request.step:
            self._crash_during = None
        else:
            return
        self._task.expires_at = self._now  # what a dead worker would write is not taken
        raise Refused("LEASE_LOST")
