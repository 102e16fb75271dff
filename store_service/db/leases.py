"""Rows of leases. Source of the texts: `leases.sql`."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import asyncpg

from store_service.db.arrays import numbers
from store_service.db.pool import Database, Locked
from store_service.db.queries import Queries
from store_service.db.tasks import contract_of
from store_service.model.leases import Claim, Finish, Heartbeat, Lease, LeasedTask, NewCheckpoint, Report, Taken
from store_service.model.limits import ANSWER_BYTES, CHECKPOINT_BYTES_PER_TASK, CHECKPOINTS_PER_TASK
from store_service.model.payloads import Payload
from store_service.model.waits import Answer, Wake, WakeCause

TURN_SECONDS: Final = 2.0
_QUANTUM = 10  # most tasks of one tenant in one visit of a claim


class LeaseRows:
    """The statements on leases."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = Queries("leases.sql")
        self._turns = asyncio.Semaphore(max(1, database.size // 4))

    async def claim_tasks(self, claim: Claim) -> Taken:
        """Takes what is ready."""
        return await self._claim_tasks(claim, wait=False)

    async def claim_tasks_in_turn(self, claim: Claim) -> Taken:
        """Takes what is ready, and waits for the first tenant in turn instead of skipping it while it is locked. Raises Locked
        when that takes longer than 2 s. Claims that wait take a quarter of the connections at most."""
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._turns.acquire()
        except TimeoutError:
            raise Locked from None
        try:
            return await self._claim_tasks(claim, wait=True)
        finally:
            self._turns.release()

    async def _claim_tasks(self, claim: Claim, *, wait: bool) -> Taken:
        rows = await self._database.write(
            self._queries["claim_tasks"],
            claim.worker_id,
            claim.request_id,
            [one.workflow for one in claim.workflows],
            [one.version for one in claim.workflows],
            list(claim.tenant_ids) or None,
            [one.lease_ms for one in claim.workflows],
            claim.limit,
            min(claim.limit, _QUANTUM),
            wait,
            ANSWER_BYTES,
        )
        is_all = bool(rows) and not rows[0]["more"]
        return Taken([_leased_task(row, claim.worker_id) for row in rows if row["task_id"] is not None], is_all=is_all)

    async def heartbeat_tasks(self, items: Sequence[Heartbeat]) -> list[asyncpg.Record]:
        """Rows: outcome, expires_at, cancel_requested."""
        return await self._database.write(
            self._queries["heartbeat_tasks"],
            *fences([item.lease for item in items]),
            numbers([item.lease_ms for item in items]),
        )

    async def append_checkpoints(self, items: Sequence[NewCheckpoint]) -> list[asyncpg.Record]:
        """Rows: outcome."""
        return await self._database.write(
            self._queries["append_checkpoints"],
            *fences([item.lease for item in items]),
            numbers([item.revision for item in items]),
            [item.step for item in items],
            [item.payload.media_type for item in items],
            [item.payload.data for item in items],
            CHECKPOINTS_PER_TASK,
            CHECKPOINT_BYTES_PER_TASK,
        )

    async def report_progress(self, items: Sequence[Report]) -> list[asyncpg.Record]:
        """Rows: outcome, sequence."""
        return await self._database.write(
            self._queries["report_progress"],
            *fences([item.lease for item in items]),
            [item.value for item in items],
            [item.total for item in items],
            [item.message for item in items],
        )

    async def finish_tasks(self, items: Sequence[tuple[Finish, bytes]]) -> list[asyncpg.Record]:
        """Each item with the digest by which its repetition is known. Rows: outcome, retry_at, opened."""
        finishes = [finish for finish, _ in items]
        return await self._database.write(
            self._queries["finish_tasks"],
            *fences([finish.lease for finish in finishes]),
            [finish.disposition for finish in finishes],
            [digest for _, digest in items],
            [finish.payload and finish.payload.media_type for finish in finishes],
            [None if finish.payload is None else finish.payload.data for finish in finishes],
            numbers([finish.error_code for finish in finishes]),
            [finish.error_message for finish in finishes],
            numbers([finish.delay_ms for finish in finishes]),
            numbers([None if finish.retry is None else finish.retry.max_attempts for finish in finishes]),
            numbers([None if finish.retry is None else finish.retry.initial_backoff_ms for finish in finishes]),
            numbers([None if finish.retry is None else finish.retry.max_backoff_ms for finish in finishes]),
        )

    async def load_input(self, lease: Lease) -> tuple[Payload, Wake | None] | None:
        """The input of a task under a lease that holds, and what ended its last wait; None when it does not hold."""
        rows = await self._database.read(self._queries["load_input"], *fence(lease))
        return (Payload(rows[0]["media_type"], rows[0]["input"]), _wake(rows[0])) if rows else None

    async def load_early_answers(self, lease: Lease) -> list[Answer]:
        """The answers that were given at a task's creation and have not met their questions."""
        rows = await self._database.read(self._queries["load_early_answers"], lease.tenant_id, lease.task_id)
        return [Answer(row["key"], row["response"]) for row in rows]

    async def is_held(self, lease: Lease) -> bool:
        """Whether a lease holds."""
        rows = await self._database.read(self._queries["is_held"], *fence(lease))
        return bool(rows[0]["held"])


def fence(lease: Lease) -> tuple[Any, ...]:
    """What a lease is compared by: tenant, task, worker, token, epoch."""
    return (lease.tenant_id, lease.task_id, lease.worker_id, lease.token, lease.epoch)


def fences(leases: Sequence[Lease]) -> tuple[Any, ...]:
    """What leases are compared by, a column each: tenant, task, worker, token, epoch."""
    return (
        [lease.tenant_id for lease in leases],
        [lease.task_id for lease in leases],
        [lease.worker_id for lease in leases],
        numbers([lease.token for lease in leases]),
        numbers([lease.epoch for lease in leases]),
    )


def _leased_task(row: asyncpg.Record, worker_id: str) -> LeasedTask:
    return LeasedTask(
        lease=Lease(row["tenant_id"], str(row["task_id"]), worker_id, row["token"], row["epoch"]),
        expires_at=row["expires_at"],
        contract=contract_of(row),
        input=None if row["input"] is None else Payload(row["media_type"], row["input"]),
        attempts=row["attempts"],
        crashes=row["crashes"],
        retries=row["retries"],
        checkpoints=row["checkpoints"],
        cancel_requested=row["cancel_requested"],
        deadline_at=row["deadline_at"],
        created_at=row["created_at"],
        wake=_wake(row) if row["fits"] else None,
        early_answers=row["early_answers"],
        lease_ms=row["lease_ms"],
    )


def _wake(row: asyncpg.Record) -> Wake | None:
    if row["wake"] is None:
        return None
    signal = None if row["signal_data"] is None else Payload(row["signal_media_type"], row["signal_data"])
    return Wake(
        step=row["wake_step"],
        cause=WakeCause(row["wake"]),
        signal_id=row["signal_id"],
        signal_name=row["signal_name"],
        signal=signal,
        keys=tuple(row["input_keys"] or ()),
        responses=tuple(row["input_responses"] or ()),
    )
