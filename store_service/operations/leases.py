"""What workers do: take work, keep it, save its steps, end it."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, Histogram

from store_service.db.batch import Batcher, BatchMetrics
from store_service.db.leases import LeaseRows
from store_service.db.pool import Locked
from store_service.db.tasks import TaskRows
from store_service.db.topics import lane_topic, worker_topic
from store_service.db.wakeups import Wakeups
from store_service.model.leases import (
    Claim,
    Extended,
    Finish,
    Finished,
    Heartbeat,
    Lease,
    LeasedTask,
    NewCheckpoint,
    Report,
    Taken,
)
from store_service.model.payloads import Payload
from store_service.model.refusals import Reason, Refusal
from store_service.model.tasks import Checkpoint
from store_service.model.waits import Answer, Wake
from store_service.operations.chores import Chores
from store_service.operations.explanations import Registrations

CLAIM_POLL_SECONDS: Final = 5.0
"""How long a waiting claim relies on hints before it looks by itself."""
LOCKED_PAUSE_SECONDS: Final = 0.1
"""How long it rests when all that is ready was held by others."""
NUDGE_PAUSE_SECONDS: Final = 60.0
"""How long a watch of leases sleeps at most before it looks whether the store drains."""


class Leases:
    """Claims and all that is done under a lease."""

    def __init__(
        self,
        rows: LeaseRows,
        tasks: TaskRows,
        chores: Chores,
        wakeups: Wakeups,
        metrics: BatchMetrics,
        *,
        registrations: Registrations,
        registry: CollectorRegistry,
    ) -> None:
        self._rows = rows
        self._tasks = tasks
        self._chores = chores
        self._registrations = registrations
        self._wakeups = wakeups
        self._claim_seconds = Histogram(
            "tenure_store_claim_seconds", "Time of a look for work, without the wait for work to come.", registry=registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
        )  # fmt: skip
        self._draining = asyncio.Event()
        self._heartbeat = Batcher[Heartbeat, Extended](
            "heartbeat_tasks",
            self._heartbeat_batch,
            tenant=_tenant_of,
            key=lambda item: item.lease.task_id,
            metrics=metrics,
            moved=Reason.LEASE_LOST,
        )
        self._append = Batcher[NewCheckpoint, None](
            "append_checkpoints",
            self._append_batch,
            tenant=_tenant_of,
            key=lambda item: item.lease.task_id,
            size=lambda item: len(item.payload.data),
            metrics=metrics,
            moved=Reason.LEASE_LOST,
        )
        self._report = Batcher[Report, int](
            "report_progress",
            self._report_batch,
            tenant=_tenant_of,
            key=lambda item: item.lease.task_id,
            metrics=metrics,
            moved=Reason.LEASE_LOST,
        )
        self._finish = Batcher[Finish, Finished](
            "finish_tasks",
            self._finish_batch,
            tenant=_tenant_of,
            key=lambda item: item.lease.task_id,
            size=lambda item: len(item.payload.data) if item.payload else 0,
            metrics=metrics,
            moved=Reason.LEASE_LOST,
        )

    async def lease_tasks(self, claim: Claim) -> list[LeasedTask]:
        """Takes what is ready, waiting for the first if asked to. Whoever leaves work, or could not look, tells the next who
        waits. A new claim does not look where nothing was left within the last 5 s and no hint came since."""
        loop = asyncio.get_running_loop()
        until = loop.time() + claim.wait_ms / 1000
        topics = [lane_topic(one.lane) for one in claim.workflows]
        known = self._wakeups.empty_lanes
        found: list[LeasedTask] = []
        leaves_some = False
        try:
            with self._wakeups.waiting(topics, choosy=bool(claim.tenant_ids)) as waiter:
                while True:
                    self._registrations.hear(claim)
                    pause_seconds = CLAIM_POLL_SECONDS - known.seconds_since(topics, claim.tenant_ids)
                    if pause_seconds <= 0 or not claim.is_new:
                        leaves_some, pause_seconds = True, CLAIM_POLL_SECONDS
                        look = known.look(topics, claim.tenant_ids)
                        try:
                            with self._claim_seconds.time():
                                taken = await self._claim(claim)
                        except Locked:  # others' work may have come meanwhile
                            pause_seconds = LOCKED_PAUSE_SECONDS
                        else:
                            found, leaves_some = taken.tasks, bool(taken.tasks) and not taken.is_all
                            if taken.is_all:
                                look.leaves_nothing()
                    left = until - loop.time()
                    if found or left <= 0 or self._draining.is_set():
                        break
                    await waiter.wait(min(left, pause_seconds))
        finally:
            if leaves_some:
                for topic in topics:
                    self._wakeups.pass_on(topic)
        self._wakeups.wake_leased(one.lease.task_id for one in found)
        return found

    def drain(self) -> None:
        """Answers every waiting claim with nothing, now and from now on."""
        self._draining.set()
        self._wakeups.wake_everyone()

    async def heartbeat_task(self, item: Heartbeat) -> Extended:
        """Extends a lease, never shortening it."""
        return await self._heartbeat.submit(item)

    async def heartbeat_tasks(self, items: Sequence[Heartbeat]) -> list[Extended | Refusal]:
        """`heartbeat_task` for each."""
        return await self._heartbeat.run(items)

    async def report_progress(self, item: Report) -> int:
        """Keeps a progress report; returns its number."""
        return await self._report.submit(item)

    async def watch_leases(self, worker_id: str) -> AsyncIterator[None]:
        """Tells a worker whenever it should heartbeat all it holds; once at the start."""
        with self._wakeups.waiting([worker_topic(worker_id)]) as waiter:
            yield
            while not self._draining.is_set():
                if await waiter.wait(NUDGE_PAUSE_SECONDS):
                    yield

    async def load_input(self, lease: Lease) -> tuple[Payload, Wake | None]:
        """The input of a task that is held, and what ended its last wait."""
        found = await self._rows.load_input(lease)
        if found is None:
            raise Refusal(Reason.LEASE_LOST)
        return found

    async def load_early_answers(self, lease: Lease) -> list[Answer]:
        """The answers that were given at a task's creation and have not met their questions yet. They only become fewer
        under the lease, so the order of the looks is safe."""
        found = await self._rows.load_early_answers(lease)
        if not await self._rows.is_held(lease):
            raise Refusal(Reason.LEASE_LOST)
        return found

    async def load_checkpoints(self, lease: Lease, *, from_revision: int, limit: int) -> list[Checkpoint]:
        """A page of checkpoints of a task that is held. They only grow under the lease, so the order of the looks is safe."""
        found = await self._tasks.list_checkpoints(lease.tenant_id, lease.task_id, from_revision, limit)
        if not await self._rows.is_held(lease):
            raise Refusal(Reason.LEASE_LOST)
        return found

    async def append_checkpoint(self, item: NewCheckpoint) -> None:
        """Keeps a step that is done, if its revision is the next one."""
        await self._append.submit(item)

    async def append_checkpoints(self, items: Sequence[NewCheckpoint]) -> list[Refusal | None]:
        """`append_checkpoint` for each."""
        return await self._append.run(items)

    async def finish_task(self, item: Finish) -> Finished:
        """Ends a lease by completion, failure, release or confirmed cancel. The same finish is answered again."""
        return await self._finish.submit(item)

    async def finish_tasks(self, items: Sequence[Finish]) -> list[Finished | Refusal]:
        """`finish_task` for each."""
        return await self._finish.run(items)

    async def _claim(self, claim: Claim) -> Taken:
        """What there is: at once; else what others held a moment ago; else what has just fallen due. Raises Locked when others
        hold it for longer."""
        before = self._chores.promoted
        taken = await self._rows.claim_tasks(claim)
        if not taken.tasks and not taken.is_all:
            taken = await self._rows.claim_tasks_in_turn(claim)
        if not taken.tasks:
            await self._chores.promote_due()
            if self._chores.promoted != before:  # by whomever, since this claim looked
                taken = await self._rows.claim_tasks_in_turn(claim)
        return taken

    async def _heartbeat_batch(self, items: Sequence[Heartbeat]) -> list[Extended | Refusal]:
        rows = await self._rows.heartbeat_tasks(items)
        return [
            Extended(row["expires_at"], row["cancel_requested"]) if row["outcome"] == "OK" else Refusal(Reason.LEASE_LOST)
            for row in rows
        ]

    async def _append_batch(self, items: Sequence[NewCheckpoint]) -> list[Refusal | None]:
        rows = await self._rows.append_checkpoints(items)
        return [None if row["outcome"] == "OK" else Refusal(Reason(row["outcome"])) for row in rows]

    async def _report_batch(self, items: Sequence[Report]) -> list[int | Refusal]:
        rows = await self._rows.report_progress(items)
        self._wakeups.wake_tasks(item.lease.task_id for item in items)
        return [row["sequence"] if row["outcome"] == "OK" else Refusal(Reason.LEASE_LOST) for row in rows]

    async def _finish_batch(self, items: Sequence[Finish]) -> list[Finished | Refusal]:
        rows = await self._rows.finish_tasks([(item, _digest(item)) for item in items])
        self._wakeups.wake_lanes(rows[0]["opened"])
        self._wakeups.wake_tasks(item.lease.task_id for item in items)
        return [Finished(row["retry_at"]) if row["outcome"] == "OK" else Refusal(Reason(row["outcome"])) for row in rows]


def _tenant_of(item: Heartbeat | NewCheckpoint | Report | Finish) -> str:
    return item.lease.tenant_id


def _digest(item: Finish) -> bytes:
    """SHA-256 over how a lease is ended, by which a repetition is told from another finish."""
    parts = (
        item.lease.worker_id, item.disposition, item.payload, item.error_code, item.error_message, item.delay_ms, item.retry
    )  # fmt: skip
    return hashlib.sha256(msgspec.msgpack.encode(parts)).digest()
