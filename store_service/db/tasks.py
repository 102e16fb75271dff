"""Rows of tasks. Source of the texts: `tasks.sql`."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import asyncpg

from store_service.db.arrays import ids, numbers
from store_service.db.pool import Database
from store_service.db.queries import Queries
from store_service.db.times import EARLIEST, LATEST
from store_service.model.limits import ANSWER_BYTES
from store_service.model.payloads import Payload
from store_service.model.states import TaskState
from store_service.model.tasks import (
    Checkpoint,
    FailureReason,
    HistoryEvent,
    HistoryLine,
    NewTask,
    Owner,
    Progress,
    Task,
    TaskContract,
    TaskError,
    TaskFilter,
    TaskRead,
    TaskRef,
)
from store_service.model.waits import Question, Wait, WaitKind

_FIRST_ID: Final = str(UUID(int=0))
_STATES = {state.value: state for state in TaskState}


class TaskRows:
    """The statements on tasks."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = Queries("tasks.sql")

    async def create_tasks(self, items: Sequence[tuple[NewTask, str, bytes]]) -> list[asyncpg.Record]:
        """Each item with the id it shall have and the digest of what it asks for. Rows: outcome, task_id, created_at,
        opened."""
        new = [item for item, _, _ in items]
        contracts = list(dict.fromkeys(item.contract for item in new))
        number_of = {contract: number for number, contract in enumerate(contracts, start=1)}
        return await self._database.write(
            self._queries["create_tasks"],
            [item.tenant_id for item in new],
            ids(task_id for _, task_id, _ in items),
            [item.request_id for item in new],
            [digest for _, _, digest in items],
            numbers([number_of[item.contract] for item in new]),
            numbers([item.priority for item in new]),
            [item.input.media_type for item in new],
            [item.input.data for item in new],
            numbers([item.abandon_after_ms for item in new]),
            [item.reference or None for item in new],
            [contract.tool for contract in contracts],
            [contract.workflow for contract in contracts],
            numbers([contract.workflow_version for contract in contracts]),
            [contract.owner.issuer for contract in contracts],
            [contract.owner.subject for contract in contracts],
            [contract.client_capabilities for contract in contracts],
            [contract.output_schema for contract in contracts],
            numbers([contract.ttl_ms for contract in contracts]),
            numbers([contract.poll_interval_ms for contract in contracts]),
            numbers([contract.execution_deadline_ms for contract in contracts]),
            [contract.trace_parent for contract in contracts],
            [contract.trace_state for contract in contracts],
            [contract.baggage for contract in contracts],
            [number for number, item in enumerate(new, start=1) for _ in item.early_answers],
            [answer.key for item in new for answer in item.early_answers],
            [answer.response for item in new for answer in item.early_answers],
            [number for number, item in enumerate(new, start=1) for _ in item.asked_before],
            [name for item in new for name in item.asked_before],
        )

    async def get_tasks(self, items: Sequence[TaskRead]) -> dict[int, tuple[Task, bool]]:
        """The tasks found, by the position of their item, and whether their payloads fitted into the answer."""
        rows = await self._database.read(
            self._queries["get_tasks"],
            [item.ref.tenant_id for item in items],
            [item.ref.task_id for item in items],
            [item.ref.owner and item.ref.owner.issuer for item in items],
            [item.ref.owner and item.ref.owner.subject for item in items],
            numbers([item.view for item in items]),
            numbers([item.reports_after for item in items]),
            ANSWER_BYTES,
        )
        return {row["ordinal"] - 1: (_task(row), row["fits"]) for row in rows}

    async def changed_tasks(self, items: Sequence[tuple[TaskRef, int]]) -> list[int]:
        """The positions of those that changed since, or are gone, each given with the change that is known."""
        rows = await self._database.read(
            self._queries["changed_tasks"],
            [ref.tenant_id for ref, _ in items],
            [ref.task_id for ref, _ in items],
            numbers([change for _, change in items]),
        )
        return [row["ordinal"] - 1 for row in rows]

    async def find_task(self, tenant_id: str, reference: str, owner: Owner | None) -> str | None:
        """The id of the task that was created last under a reference."""
        rows = await self._database.read(
            self._queries["find_task"], tenant_id, reference, owner and owner.issuer, owner and owner.subject
        )
        return str(rows[0]["task_id"]) if rows else None

    async def list_tasks(
        self, wanted: TaskFilter, after: tuple[datetime, str] | None, limit: int
    ) -> list[tuple[datetime, str]]:
        """When the tasks of a page were created, and their ids; newest first."""
        before, task_id = min(after or (LATEST, _FIRST_ID), (wanted.created_before or LATEST, _FIRST_ID))
        bounds = (wanted.created_from or EARLIEST, before, task_id)
        if wanted.states or wanted.workflow:
            states = list(wanted.states or TaskState)
            rows = await self._database.read(
                self._queries["list_tasks"], wanted.tenant_id, states, wanted.workflow, *bounds, limit
            )
        else:
            rows = await self._database.read(self._queries["list_all_tasks"], wanted.tenant_id, *bounds, limit)
        return [(row["created_at"], str(row["task_id"])) for row in rows]

    async def cancel_tasks(
        self, items: Sequence[tuple[TaskRef, bool]], *, live: Sequence[TaskState], grace_ms: int
    ) -> list[asyncpg.Record]:
        """Each item with whether it is forced. Rows: outcome, worker_id, opened."""
        return await self._database.write(
            self._queries["cancel_tasks"],
            [ref.tenant_id for ref, _ in items],
            [ref.task_id for ref, _ in items],
            [ref.owner and ref.owner.issuer for ref, _ in items],
            [ref.owner and ref.owner.subject for ref, _ in items],
            [force for _, force in items],
            list(live),
            grace_ms,
        )

    async def attach_tasks(self, items: Sequence[tuple[TaskRef, int]]) -> list[asyncpg.Record]:
        """Each item with its new `abandon_after_ms`. Rows: outcome."""
        return await self._database.write(
            self._queries["attach_tasks"],
            [ref.tenant_id for ref, _ in items],
            [ref.task_id for ref, _ in items],
            [ref.owner and ref.owner.issuer for ref, _ in items],
            [ref.owner and ref.owner.subject for ref, _ in items],
            [abandon_after_ms for _, abandon_after_ms in items],
        )

    async def list_task_history(self, ref: TaskRef, from_line: int, limit: int) -> list[HistoryLine]:
        """A page of the history, oldest first."""
        rows = await self._database.read(self._queries["list_task_history"], ref.tenant_id, ref.task_id, from_line, limit)
        return [
            HistoryLine(row["line"], HistoryEvent(row["event"]), row["at"], row["worker_id"], row["token"], row["detail"])
            for row in rows
        ]

    async def list_checkpoints(self, tenant_id: str, task_id: str, from_revision: int, limit: int) -> list[Checkpoint]:
        """A page of checkpoints, oldest first, of at most 4 MiB or one."""
        rows = await self._database.read(
            self._queries["list_checkpoints"], tenant_id, task_id, from_revision, limit, ANSWER_BYTES
        )
        return [
            Checkpoint(row["revision"], row["step"], Payload(row["media_type"], row["data"]), row["token"], row["created_at"])
            for row in rows
        ]

    async def is_task(self, ref: TaskRef) -> bool:
        """Whether the tenant has such a task."""
        rows = await self._database.read(self._queries["is_task"], ref.tenant_id, ref.task_id)
        return bool(rows[0]["found"])


def contract_of(row: asyncpg.Record) -> TaskContract:
    """The contract in a row of tasks or of leased tasks."""
    return TaskContract(
        tool=row["tool"],
        workflow=row["workflow"],
        workflow_version=row["version"],
        owner=Owner(row["issuer"], row["subject"]),
        client_capabilities=row["client_capabilities"],
        output_schema=row["output_schema"],
        ttl_ms=row["ttl_ms"],
        poll_interval_ms=row["poll_interval_ms"],
        execution_deadline_ms=row["execution_deadline_ms"],
        trace_parent=row["trace_parent"],
        trace_state=row["trace_state"],
        baggage=row["baggage"],
    )


def _task(row: asyncpg.Record) -> Task:
    reported = zip(row["sequences"], row["vals"], row["totals"], row["messages"], strict=True) if row["sequences"] else ()
    data = None if row["data"] is None else Payload(row["media_type"], row["data"])
    error = row["error_code"] is not None
    return Task(
        tenant_id=row["tenant_id"],
        task_id=str(row["task_id"]),
        state=_STATES[row["state"]],
        contract=contract_of(row),
        priority=row["priority"],
        created_at=row["created_at"],
        changed_at=row["changed_at"],
        ended_at=row["ended_at"],
        redriven_at=row["redriven_at"],
        read_at=row["read_at"],
        change=row["change"],
        reports=tuple(Progress(*report) for report in reported),
        cancel_requested=row["cancel_requested"],
        attempts=row["attempts"],
        crashes=row["crashes"],
        retries=row["retries"],
        checkpoints=row["checkpoints"],
        worker_id=row["worker_id"],
        token=row["token"],
        lease_expires_at=row["expires_at"],
        input=None if row["input"] is None else Payload(row["input_media_type"], row["input"]),
        outcome=TaskError(row["error_code"], row["error_message"], data, FailureReason(row["failed_for"])) if error else data,
        wait=_wait(row) if row["wait_kind"] else None,
        forked_from=row["forked_from"] and str(row["forked_from"]),
        forked_checkpoints=row["forked_checkpoints"] or 0,
    )


def _wait(row: asyncpg.Record) -> Wait:
    asked = zip(row["keys"], row["methods"], row["params"], row["asked_at"], strict=True) if row["params"] else ()
    questions = tuple(Question(*question) for question in asked)
    return Wait(row["wait_step"], WaitKind(row["wait_kind"]), row["wait_until"], row["signal_name"], questions)
