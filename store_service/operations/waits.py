"""What tasks wait for: suspensions, answers, signals. And forks."""

import hashlib
from collections.abc import Sequence
from datetime import datetime
from uuid import uuid4

from prometheus_client import CollectorRegistry, Counter

from store_service.db.batch import Batcher, BatchMetrics
from store_service.db.waits import WaitRows
from store_service.db.wakeups import Wakeups, tells
from store_service.model.leases import Suspend
from store_service.model.refusals import Reason, Refusal, reading_back
from store_service.model.tasks import Answers, Created, Fork, NewSignal, TaskRead, TaskRef, TaskView
from store_service.model.waits import Published, SignalFacts, SignalFilter, SignalState
from store_service.operations.tasks import Tasks


class Waits:
    """Suspensions and what ends them."""

    def __init__(
        self, rows: WaitRows, tasks: Tasks, wakeups: Wakeups, metrics: BatchMetrics, *, registry: CollectorRegistry
    ) -> None:
        self._rows = rows
        self._tasks = tasks
        self._wakeups = wakeups
        self._signals = Counter(
            "tenure_store_signals", "Signals that were published, by where they stood then.", ["state"], registry=registry
        )
        for state in SignalState:
            self._signals.labels(state.lower())
        self._suspend = Batcher[Suspend, list[str]](
            "suspend_tasks",
            self._suspend_batch,
            tenant=lambda item: item.lease.tenant_id,
            key=lambda item: item.lease.task_id,
            size=lambda item: sum(len(question.params) for question in item.questions),
            metrics=metrics,
            moved=Reason.LEASE_LOST,
        )

    async def suspend_task(self, item: Suspend) -> list[str]:
        """Suspends a leased task; returns the keys of its questions. What came before the wait ends it at once."""
        return await self._suspend.submit(item)

    @tells
    async def answer_inputs(self, answers: Answers) -> list[bool]:
        """Answers open questions; tells of each answer whether it was accepted. The first answer wins."""
        rows = await self._rows.answer_inputs(answers)
        if rows[0]["outcome"] == "NOT_FOUND":
            raise Refusal(Reason.TASK_NOT_FOUND)
        self._wakeups.wake_lanes(rows[0]["opened"])
        self._wakeups.wake_tasks([answers.ref.task_id])
        return [row["outcome"] == "ACCEPTED" for row in rows]

    @tells
    async def publish_signal(self, signal: NewSignal) -> Published:
        """Sends a signal; a task that waits for it goes on with it. Safe to repeat by id and content."""
        row = await self._rows.publish_signal(signal, _signal_digest(signal))
        match row["outcome"]:
            case "NOT_FOUND":
                raise Refusal(Reason.TASK_NOT_FOUND)
            case "SIGNAL_ID_CONFLICT" | "SIGNAL_LIMIT" as reason:
                raise Refusal(Reason(reason))
            case state:
                self._wakeups.wake_lanes(row["opened"])
                self._wakeups.wake_tasks([signal.ref.task_id])
                if not row["replayed"]:
                    self._signals.labels(state.lower()).inc()
                return Published(SignalState(state), row["replayed"])

    async def get_signal(self, tenant_id: str, signal_id: str) -> SignalFacts:
        """What became of a signal."""
        signal = await self._rows.get_signal(tenant_id, signal_id)
        if signal is None:
            raise Refusal(Reason.SIGNAL_NOT_FOUND)
        return signal

    async def list_signals(self, wanted: SignalFilter, *, after: tuple[datetime, str] | None, limit: int) -> list[SignalFacts]:
        """A page of a tenant's signals, newest first."""
        return await self._rows.list_signals(wanted, after, limit)

    async def compact_signals(self, tenant_id: str, *, older_than_ms: int, limit: int) -> int:
        """Forgets signals that are over and old enough; never pending ones. Returns how many."""
        return await self._rows.compact_signals(tenant_id, older_than_ms, limit)

    @tells
    async def fork_task(self, fork: Fork) -> Created:
        """Creates a task that starts with the first checkpoints of another, or finds the one that its request id created."""
        parts = f"fork {fork.source.task_id} {fork.checkpoints}".encode()
        row = await self._rows.fork_task(fork, str(uuid4()), hashlib.sha256(parts).digest())
        match row["outcome"]:
            case "CREATED" | "REPLAYED" as outcome:
                self._wakeups.wake_lanes(row["opened"])
                ref = TaskRef(fork.source.tenant_id, str(row["task_id"]))
                with reading_back():
                    task = await self._tasks.get_task(TaskRead(ref, TaskView.BASIC))
                return Created(task, replayed=outcome == "REPLAYED")
            case "NOT_FOUND":
                raise Refusal(Reason.TASK_NOT_FOUND)
            case reason:
                raise Refusal(Reason(reason))

    async def _suspend_batch(self, items: Sequence[Suspend]) -> list[list[str] | Refusal]:
        rows = await self._rows.suspend_tasks([(item, _suspend_digest(item)) for item in items])
        self._wakeups.wake_lanes(rows[0]["opened"])
        self._wakeups.wake_tasks(item.lease.task_id for item in items)
        return [list(row["keys"]) if row["outcome"] == "OK" else Refusal(Reason(row["outcome"])) for row in rows]


def _suspend_digest(item: Suspend) -> bytes:
    parts = (item.lease.worker_id, item.step, item.kind, item.delay_ms, item.signal_name, item.questions, item.fitting)
    return hashlib.sha256(repr(parts).encode()).digest()


def _signal_digest(signal: NewSignal) -> bytes:
    parts = (signal.ref.task_id, signal.name, signal.payload.media_type)
    return hashlib.sha256(repr(parts).encode() + hashlib.sha256(signal.payload.data).digest()).digest()
