"""Rows of waits, questions, signals and forks. Source of the texts: `waits.sql`."""

from collections.abc import Sequence
from datetime import datetime

import asyncpg

from store_service.db.leases import fences
from store_service.db.pool import Database
from store_service.db.queries import Queries
from store_service.db.records import value_of
from store_service.db.times import LATEST
from store_service.model.leases import Suspend
from store_service.model.limits import PENDING_SIGNALS_PER_TASK, QUESTIONS_PER_TASK
from store_service.model.tasks import Answers, Fork, NewSignal
from store_service.model.waits import SignalFacts, SignalFilter, SignalState


class WaitRows:
    """The statements on waits, questions, signals and forks."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = Queries("waits.sql")

    async def suspend_tasks(self, items: Sequence[tuple[Suspend, bytes]]) -> list[asyncpg.Record]:
        """Each item with the digest by which its repetition is known. Rows: outcome, keys, opened."""
        suspends = [suspend for suspend, _ in items]
        questions = [(number, one) for number, suspend in enumerate(suspends, start=1) for one in suspend.questions]
        return await self._database.write(
            self._queries["suspend_tasks"],
            *fences([suspend.lease for suspend in suspends]),
            [digest for _, digest in items],
            [suspend.step for suspend in suspends],
            [suspend.kind for suspend in suspends],
            [suspend.delay_ms for suspend in suspends],
            [suspend.signal_name for suspend in suspends],
            [number for number, _ in questions],
            [one.name for _, one in questions],
            [one.method for _, one in questions],
            [one.params for _, one in questions],
            [number for number, suspend in enumerate(suspends, start=1) for _ in suspend.fitting],
            [key for suspend in suspends for key in suspend.fitting],
            QUESTIONS_PER_TASK,
        )

    async def answer_inputs(self, answers: Answers) -> list[asyncpg.Record]:
        """Rows: outcome, opened, one an answer; or one alone with NOT_FOUND."""
        ref, by = answers.ref, answers.answered_by
        return await self._database.write(
            self._queries["answer_inputs"],
            ref.tenant_id,
            ref.task_id,
            ref.owner and ref.owner.issuer,
            ref.owner and ref.owner.subject,
            by and by.issuer,
            by and by.subject,
            [answer.key for answer in answers.answers],
            [answer.response for answer in answers.answers],
        )

    async def publish_signal(self, signal: NewSignal, digest: bytes) -> asyncpg.Record:
        """A row: outcome, replayed, opened."""
        ref = signal.ref
        rows = await self._database.write(
            self._queries["publish_signal"],
            ref.tenant_id,
            signal.signal_id,
            ref.task_id,
            ref.owner and ref.owner.issuer,
            ref.owner and ref.owner.subject,
            signal.name,
            digest,
            signal.payload.media_type,
            signal.payload.data,
            PENDING_SIGNALS_PER_TASK,
        )
        return rows[0]

    async def get_signal(self, tenant_id: str, signal_id: str) -> SignalFacts | None:
        """What is known of a signal, if there is one."""
        rows = await self._database.read(self._queries["get_signal"], tenant_id, signal_id)
        return _signal(rows[0]) if rows else None

    async def list_signals(self, wanted: SignalFilter, after: tuple[datetime, str] | None, limit: int) -> list[SignalFacts]:
        """A page of signals, newest first."""
        states = list(wanted.states or SignalState)
        page = (wanted.tenant_id, states, *(after or (LATEST, "")), limit)
        if wanted.task_id is None:
            rows = await self._database.read(self._queries["list_signals"], *page)
        else:
            rows = await self._database.read(self._queries["list_signals_of_task"], *page, wanted.task_id)
        return [_signal(row) for row in rows]

    async def fork_task(self, fork: Fork, task_id: str, digest: bytes) -> asyncpg.Record:
        """A row: outcome, task_id, opened."""
        source = fork.source
        rows = await self._database.write(
            self._queries["fork_task"],
            source.tenant_id,
            source.task_id,
            fork.checkpoints,
            source.owner and source.owner.issuer,
            source.owner and source.owner.subject,
            task_id,
            fork.request_id,
            digest,
        )
        return rows[0]

    async def compact_signals(self, tenant_id: str, older_than_ms: int, limit: int) -> int:
        """Forgets signals that are over; returns how many."""
        rows = await self._database.write(self._queries["compact_signals"], tenant_id, older_than_ms, limit)
        return int(rows[0]["compacted"])


def _signal(row: asyncpg.Record) -> SignalFacts:
    return value_of(SignalFacts, row, task_id=str(row["task_id"]), state=SignalState(row["state"]))
