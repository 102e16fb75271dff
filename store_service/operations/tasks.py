"""What callers do with tasks."""

import asyncio
import hashlib
import os
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from store_service.db.batch import Batcher, BatchMetrics
from store_service.db.tasks import TaskRows
from store_service.db.wakeups import Wakeups
from store_service.model.refusals import Reason, Refusal
from store_service.model.states import TRANSITIONS, Command, TaskState
from store_service.model.tasks import (
    CREATED_CHANGE,
    CancelOutcome,
    Checkpoint,
    Created,
    HistoryLine,
    NewTask,
    Owner,
    Task,
    TaskFilter,
    TaskRead,
    TaskRef,
    TaskView,
)


class Tasks:
    """Creation, reading and cancelling."""

    def __init__(self, rows: TaskRows, wakeups: Wakeups, metrics: BatchMetrics, *, cancel_grace_ms: int) -> None:
        self._rows = rows
        self._wakeups = wakeups
        self._cancel_grace_ms = cancel_grace_ms
        self._create = Batcher[NewTask, Created](
            "create_tasks",
            self._create_batch,
            tenant=lambda item: item.tenant_id,
            key=lambda item: (item.tenant_id, item.request_id),
            size=_size_of,
            metrics=metrics,
        )
        self._get = Batcher[TaskRead, Task](
            "get_tasks",
            self._get_batch,
            tenant=lambda item: item.ref.tenant_id,
            key=lambda _: object(),
            metrics=metrics,
            parallel=4,
            waits_for_rows=False,
        )
        self._cancel = Batcher[tuple[TaskRef, bool], CancelOutcome](
            "cancel_tasks",
            self._cancel_batch,
            tenant=lambda item: item[0].tenant_id,
            key=lambda item: item[0].task_id,
            metrics=metrics,
        )
        self._attach = Batcher[tuple[TaskRef, int], None](
            "attach_tasks",
            self._attach_batch,
            tenant=lambda item: item[0].tenant_id,
            key=lambda item: item[0].task_id,
            metrics=metrics,
        )

    async def create_task(self, item: NewTask) -> Created:
        """Creates a task, or finds the one that its request id created. Wakes a worker."""
        return await self._create.submit(item)

    async def create_tasks(self, items: Sequence[NewTask]) -> list[Created | Refusal]:
        """`create_task` for each."""
        return await self._create.run(items)

    async def get_task(self, item: TaskRead) -> Task:
        """Reads a task as it stands. One statement whether it exists or not, so that neither answer takes longer."""
        while True:
            try:
                return await self._get.submit(item)
            except Refusal as refusal:
                if refusal.reason is not Reason.BATCH_FULL:  # others' results filled the answer: next time it may be first
                    raise

    async def find_task(self, tenant_id: str, reference: str, owner: Owner | None, view: TaskView) -> Task:
        """Reads the task that was created last under a reference."""
        task_id = await self._rows.find_task(tenant_id, reference, owner)
        if task_id is None:
            raise Refusal(Reason.TASK_NOT_FOUND)
        return await self.get_task(TaskRead(TaskRef(tenant_id, task_id, owner), view))

    async def get_tasks(self, items: Sequence[TaskRead]) -> list[Task | Refusal]:
        """`get_task` for each, within 4 MiB of payloads."""
        return await self._get.run(items)

    async def list_tasks(
        self, wanted: TaskFilter, *, after: tuple[datetime, str] | None, limit: int
    ) -> tuple[list[Task], tuple[datetime, str] | None]:
        """A page of a tenant's tasks, newest first, of at most 4 MiB; and after which task the next one starts, None at the
        end. It is empty where all of it were removed meanwhile."""
        listed = await self._rows.list_tasks(wanted, after, limit)
        refs = [TaskRef(wanted.tenant_id, task_id) for _, task_id in listed]
        found = await self._rows.get_tasks([TaskRead(ref, TaskView.BASIC) for ref in refs])
        tasks = [task for _, (task, fits) in sorted(found.items()) if fits]
        if len(tasks) < len(found):
            return tasks, (tasks[-1].created_at, tasks[-1].task_id)
        return tasks, listed[-1] if len(listed) == limit else None

    async def cancel_task(self, ref: TaskRef, *, force: bool) -> CancelOutcome:
        """Ends a task, or asks the worker that runs it to. Past the grace period what was asked is forced."""
        return await self._cancel.submit((ref, force))

    async def attach_task(self, ref: TaskRef, abandon_after_ms: int) -> None:
        """Says that somebody waits for a task, for so long; 0 says that its id was handed out."""
        await self._attach.submit((ref, abandon_after_ms))

    async def list_task_history(self, ref: TaskRef, *, from_line: int, limit: int) -> list[HistoryLine]:
        """A page of what happened to a task, oldest first."""
        lines = await self._rows.list_task_history(ref, from_line, limit)
        if not lines and not await self._rows.is_task(ref):
            raise Refusal(Reason.TASK_NOT_FOUND)
        return lines

    async def list_checkpoints(self, ref: TaskRef, *, from_revision: int, limit: int) -> list[Checkpoint]:
        """A page of a task's checkpoints, oldest first."""
        checkpoints = await self._rows.list_checkpoints(ref.tenant_id, ref.task_id, from_revision, limit)
        if not checkpoints and not await self._rows.is_task(ref):
            raise Refusal(Reason.TASK_NOT_FOUND)
        return checkpoints

    async def get_checkpoint(self, ref: TaskRef, revision: int) -> Checkpoint:
        """One checkpoint."""
        found = await self.list_checkpoints(ref, from_revision=revision, limit=1)
        if not found or found[0].revision != revision:
            raise Refusal(Reason.CHECKPOINT_NOT_FOUND)
        return found[0]

    async def _create_batch(self, items: Sequence[NewTask]) -> list[Created | Refusal]:
        new = list(zip(items, _new_ids(len(items)), map(_digest, items), strict=True))
        for item, task_id, _ in new:
            if item.abandon_after_ms:  # its caller waits for it
                self._wakeups.expect_task(TaskRef(item.tenant_id, task_id, item.contract.owner))
        rows = await self._rows.create_tasks(new)
        self._wakeups.wake_lanes(rows[0]["opened"])
        known = (
            TaskRead(TaskRef(item.tenant_id, str(row["task_id"])), TaskView.BASIC)
            for item, row in zip(items, rows, strict=True)
            if row["outcome"] == "REPLAYED"
        )
        found = iter(await asyncio.gather(*map(self._get_or_refuse, known)))  # they travel together
        outcomes: list[Created | Refusal] = []
        for item, row in zip(items, rows, strict=True):
            match row["outcome"]:
                case "CREATED":
                    outcomes.append(Created(_fresh(item, str(row["task_id"]), row["created_at"]), replayed=False))
                case "REPLAYED":
                    task = next(found)
                    outcomes.append(task if isinstance(task, Refusal) else Created(task, replayed=True))
                case reason:
                    outcomes.append(Refusal(Reason(reason)))
        return outcomes

    async def _get_or_refuse(self, item: TaskRead) -> Task | Refusal:
        """`get_task`, its refusal as an outcome: the task may have been removed a moment ago."""
        try:
            return await self.get_task(item)
        except Refusal as refusal:
            return refusal

    async def _get_batch(self, items: Sequence[TaskRead]) -> list[Task | Refusal]:
        found = await self._rows.get_tasks(items)
        outcomes: list[Task | Refusal] = []
        for position in range(len(items)):
            task, fits = found.get(position, (None, True))
            if task is None:
                outcomes.append(Refusal(Reason.TASK_NOT_FOUND))
            else:
                outcomes.append(task if fits else Refusal(Reason.BATCH_FULL))
        return outcomes

    async def _cancel_batch(self, items: Sequence[tuple[TaskRef, bool]]) -> list[CancelOutcome | Refusal]:
        live, _ = TRANSITIONS[Command.CANCEL]
        rows = await self._rows.cancel_tasks(items, live=sorted(live), grace_ms=self._cancel_grace_ms)
        self._wakeups.wake_lanes(rows[0]["opened"])
        self._wakeups.wake_tasks(ref.task_id for ref, _ in items)
        self._wakeups.wake_workers(row["worker_id"] for row in rows)
        return [
            Refusal(Reason.TASK_NOT_FOUND) if row["outcome"] == "NOT_FOUND" else CancelOutcome(row["outcome"]) for row in rows
        ]

    async def _attach_batch(self, items: Sequence[tuple[TaskRef, int]]) -> list[Refusal | None]:
        rows = await self._rows.attach_tasks(items)
        return [None if row["outcome"] == "OK" else Refusal(Reason.TASK_NOT_FOUND) for row in rows]


def _size_of(item: NewTask) -> int:
    contract = item.contract
    parts = (item.input.data, contract.client_capabilities, contract.output_schema, contract.baggage)
    return sum(map(len, parts)) + sum(len(answer.response) for answer in item.early_answers)


def _new_ids(count: int) -> list[str]:
    """Random UUIDs, of one reading of the system's randomness: a reading for each would be half of what they cost."""
    random = os.urandom(16 * count)
    return [str(UUID(bytes=random[at : at + 16], version=4)) for at in range(0, len(random), 16)]


def _digest(item: NewTask) -> bytes:
    """SHA-256 over what a creation asks for, each part with its length, so that no two requests read alike; or what
    the caller says that it stands for."""
    if item.content_digest:
        return item.content_digest
    contract = item.contract
    parts = [
        contract.tool, contract.workflow, contract.workflow_version, contract.owner.issuer, contract.owner.subject,
        contract.client_capabilities, contract.output_schema, contract.ttl_ms, contract.poll_interval_ms,
        contract.execution_deadline_ms, item.priority, item.input.media_type, item.input.data,
    ]  # fmt: skip
    return hashlib.sha256(msgspec.msgpack.encode(parts)).digest()


def _fresh(item: NewTask, task_id: str, now: datetime) -> Task:
    """A task as it stands right after its creation."""
    return Task(
        tenant_id=item.tenant_id,
        task_id=task_id,
        state=TaskState.QUEUED,
        contract=item.contract,
        priority=item.priority,
        created_at=now,
        changed_at=now,
        ended_at=None,
        read_at=now,
        change=CREATED_CHANGE,
        reports=(),
        cancel_requested=False,
        attempts=0,
        crashes=0,
        retries=0,
        checkpoints=0,
        worker_id=None,
        token=0,
        lease_expires_at=None,
        input=None,
        outcome=None,
    )
