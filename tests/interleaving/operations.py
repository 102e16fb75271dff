"""The operations that are raced, each as the one statement that the store runs for it.

Two of a kind differ in what they bring (a result, an answer, a signal's id), so that the state tells which of them won.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

import asyncpg

from store_service.model.budgets import BudgetAmounts, BudgetPolicy, Reserve, Settle
from store_service.model.leases import (
    Claim,
    Disposition,
    Finish,
    Heartbeat,
    Lease,
    NewCheckpoint,
    Report,
    RetryPolicy,
    Suspend,
    WorkflowVersion,
)
from store_service.model.pauses import WorkScope
from store_service.model.payloads import JSON, Payload
from store_service.model.purges import NewPurge
from store_service.model.redrives import Redrive
from store_service.model.retention import CleanupLease
from store_service.model.states import TRANSITIONS, Command
from store_service.model.tasks import Answers, Fork, NewSignal, NewTask, Owner, TaskContract, TaskRef, TenantPolicy
from store_service.model.waits import Answer, NewQuestion, WaitKind
from tests.interleaving.stage import Session

LEASE_MS: Final = 30_000
DAY_MS: Final = 86_400_000
OWNER: Final = Owner("test", "ann")
RESERVED: Final = 10
"""What a task asks for of a budget in which there is room for one, and for another once the first has settled."""
HOLDER: Final = "w1"
"""The worker that holds what is leased."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What one side of a race acts on."""

    side: str
    tenant: str
    task: str
    new_task: str
    """The id that whoever creates one gives."""
    tenants: tuple[str, ...] = ()
    """To which tenants a claim is narrowed."""
    forked: int = 1
    """How many checkpoints a fork asks for."""

    @property
    def ref(self) -> TaskRef:
        return TaskRef(self.tenant, self.task)

    @property
    def lease(self) -> Lease:
        return Lease(self.tenant, self.task, HOLDER, 1, 1)

    @property
    def cleanup(self) -> CleanupLease:
        """The tenant's first one, which lasts past every barrier but `expiry`."""
        return CleanupLease(self.tenant, "cleaner-before", "ann", 1, 1)

    @property
    def payload(self) -> Payload:
        return Payload(JSON, b'"%s"' % self.side.encode())

    @property
    def digest(self) -> bytes:
        return self.side.encode()


async def create(session: Session, target: Target, *, ttl_ms: int = DAY_MS) -> list[asyncpg.Record]:
    contract = TaskContract(
        tool="report",
        workflow="report",
        workflow_version=1,
        owner=OWNER,
        client_capabilities=b"{}",
        output_schema=b"",
        ttl_ms=ttl_ms,
        poll_interval_ms=1_000,
        execution_deadline_ms=0,
        trace_parent="",
        trace_state="",
        baggage="",
    )
    new = NewTask(
        tenant_id=target.tenant,
        request_id=f"create-{target.task}",
        contract=contract,
        priority=0,
        input=Payload(JSON, b"{}"),
        abandon_after_ms=DAY_MS,
    )
    return await session.tasks.create_tasks([(new, target.new_task, b"digest")])


async def claim(
    session: Session, target: Target, *, worker_id: str = "", lease_ms: int = LEASE_MS, wait: bool = True
) -> list[Any]:
    wanted = Claim(
        request_id=f"claim-{target.side}-{target.task}",
        worker_id=worker_id or f"worker-{target.side}",
        workflows=(WorkflowVersion("report", 1, lease_ms),),
        tenant_ids=target.tenants,
        limit=1,
        wait_ms=0,
    )
    return (await (session.leases.claim_tasks_in_turn(wanted) if wait else session.leases.claim_tasks(wanted))).tasks


async def heartbeat(session: Session, target: Target) -> list[asyncpg.Record]:
    return await session.leases.heartbeat_tasks([Heartbeat(target.lease, LEASE_MS + 10_000)])


async def checkpoint(session: Session, target: Target, *, revision: int = 1) -> list[asyncpg.Record]:
    return await session.leases.append_checkpoints([NewCheckpoint(target.lease, revision, "step", target.payload)])


async def finish(
    session: Session, target: Target, disposition: Disposition, *, retry: RetryPolicy | None = None
) -> list[asyncpg.Record]:
    payload = target.payload if disposition is Disposition.COMPLETED else None
    code, message = (-1, "no") if disposition is Disposition.FAILED else (None, None)
    ended = Finish(
        lease=target.lease, disposition=disposition, payload=payload, error_code=code, error_message=message, retry=retry
    )
    return await session.leases.finish_tasks([(ended, target.digest)])


async def complete(session: Session, target: Target) -> list[asyncpg.Record]:
    return await finish(session, target, Disposition.COMPLETED)


async def suspend_signal(session: Session, target: Target) -> list[asyncpg.Record]:
    wish = Suspend(lease=target.lease, step=target.side, kind=WaitKind.SIGNAL, delay_ms=LEASE_MS, signal_name="go")
    return await session.waits.suspend_tasks([(wish, target.digest)])


async def suspend_inputs(session: Session, target: Target) -> list[asyncpg.Record]:
    asked = (NewQuestion("q", "elicitation/create", target.payload.data),)
    wish = Suspend(lease=target.lease, step=target.side, kind=WaitKind.INPUT, delay_ms=LEASE_MS, questions=asked)
    return await session.waits.suspend_tasks([(wish, target.digest)])


async def publish(session: Session, target: Target) -> asyncpg.Record:
    signal = NewSignal(ref=target.ref, signal_id=f"signal-{target.side}", name="go", payload=target.payload)
    return await session.waits.publish_signal(signal, target.digest)


async def answer(session: Session, target: Target) -> list[asyncpg.Record]:
    given = (Answer("q", target.payload.data),)
    return await session.waits.answer_inputs(Answers(ref=target.ref, answered_by=None, answers=given))


async def cancel(session: Session, target: Target, *, force: bool = False) -> list[asyncpg.Record]:
    live = sorted(TRANSITIONS[Command.CANCEL][0])
    return await session.tasks.cancel_tasks([(target.ref, force)], live=live, grace_ms=30_000)


async def fork(session: Session, target: Target) -> asyncpg.Record:
    wish = Fork(source=target.ref, request_id=f"fork-{target.side}", checkpoints=target.forked)
    return await session.waits.fork_task(wish, target.new_task, target.digest)


async def promote(session: Session, target: Target) -> list[asyncpg.Record]:
    rows, _ = await session.chores.promote_due(500, grace_ms=30_000, max_crashes=20)
    return sorted(rows, key=lambda row: (row["tenant_id"], row["task_id"]))  # they come in no order


async def claim_cleanup(session: Session, target: Target, *, lease_ms: int = LEASE_MS) -> asyncpg.Record:
    return await session.cleanup.claim_cleanup(target.tenant, f"cleaner-{target.side}", "ann", lease_ms)


async def heartbeat_cleanup(session: Session, target: Target) -> Any:
    return await session.cleanup.heartbeat_cleanup(target.cleanup, LEASE_MS + 10_000)


async def release_cleanup(session: Session, target: Target) -> bool:
    return await session.cleanup.release_cleanup(target.cleanup)


async def remove(session: Session, target: Target) -> Any:
    return await session.retention.remove_tasks(target.cleanup, 100)


async def place_hold(session: Session, target: Target) -> Any:
    return await session.holds.place_hold(target.tenant, target.task, target.side, target.side)


async def release_hold(session: Session, target: Target) -> Any:
    return await session.holds.release_hold(target.tenant, 1, target.side)


async def export(session: Session, target: Target) -> Any:
    return await session.purges.confirm_export(target.tenant, 1, target.side, target.side)


async def prepare(session: Session, target: Target) -> Any:
    wish = NewPurge(request_id=f"purge-{target.side}", retention_ms=1, limit=100, approval_ms=DAY_MS)
    return await session.purges.prepare_purge(target.cleanup, wish, target.digest)


async def claim_purge(session: Session, target: Target) -> Any:
    return await session.purges.claim_purge(target.tenant, 0, target.side, LEASE_MS)


async def approve(session: Session, target: Target) -> Any:
    return await session.purges.decide_purge(target.tenant, 1, 0, target.side, None)


async def reject(session: Session, target: Target) -> Any:
    return await session.purges.decide_purge(target.tenant, 1, 0, target.side, "no")


async def execute(session: Session, target: Target) -> Any:
    return await session.purges.execute_purge(target.cleanup, 1)


async def set_policy(session: Session, target: Target) -> list[str]:
    policy = policy_of(outstanding={"a": 1, "b": 2}[target.side], leased=1)
    return sorted(await session.tenants.set_tenant_policy(target.tenant, policy))


async def first_pass(session: Session, target: Target) -> list[Any]:
    return await claim(session, target, wait=False)


async def claim_again(session: Session, target: Target) -> list[Any]:
    return await claim(session, replace(target, side="before"), worker_id=HOLDER)


async def report(session: Session, target: Target) -> list[asyncpg.Record]:
    return await session.leases.report_progress([Report(target.lease, 1.0, None, target.side)])


async def fail(session: Session, target: Target) -> list[asyncpg.Record]:
    return await finish(session, target, Disposition.FAILED)


async def retry(session: Session, target: Target) -> list[asyncpg.Record]:
    await session.read("SELECT setseed(0)")  # the rest is random, and the same in each order
    policy = RetryPolicy(max_attempts=5, initial_backoff_ms=1_000, max_backoff_ms=1_000)
    return await finish(session, target, Disposition.FAILED, retry=policy)


async def confirm_cancel(session: Session, target: Target) -> list[asyncpg.Record]:
    return await finish(session, target, Disposition.CANCELLED)


async def release(session: Session, target: Target) -> list[asyncpg.Record]:
    return await finish(session, target, Disposition.RELEASED)


async def suspend_timer(session: Session, target: Target) -> list[asyncpg.Record]:
    wish = Suspend(lease=target.lease, step=target.side, kind=WaitKind.TIMER, delay_ms=LEASE_MS)
    return await session.waits.suspend_tasks([(wish, target.digest)])


async def force_cancel(session: Session, target: Target) -> list[asyncpg.Record]:
    return await cancel(session, target, force=True)


async def attach(session: Session, target: Target) -> list[asyncpg.Record]:
    return await session.tasks.attach_tasks([(target.ref, 20_000)])


async def compact(session: Session, target: Target) -> int:
    return await session.waits.compact_signals(target.tenant, 1, 100)


async def reserve(session: Session, target: Target) -> asyncpg.Record:
    used = BudgetAmounts(tokens={"before": 0, "a": 2, "b": 4}[target.side])
    return await session.budgets.reserve_budget(Reserve(target.lease, BudgetAmounts(tokens=RESERVED), used))


async def settle(session: Session, target: Target) -> asyncpg.Record:
    used = BudgetAmounts(tokens={"a": 1, "b": 2}[target.side])
    return await session.budgets.settle_budget(Settle(target.lease, used), target.digest)


async def set_budget(session: Session, target: Target) -> str:
    limits = BudgetAmounts(tokens={"before": RESERVED + 2, "a": 100, "b": 200}[target.side])
    policy = BudgetPolicy(limits=limits, window_ms=DAY_MS, recovery_ms=1_000)
    return (await session.budgets.set_budget_policy(target.tenant, policy))[0]


async def remove_budget(session: Session, target: Target) -> str:
    return (await session.budgets.set_budget_policy(target.tenant, None))[0]


async def pause(session: Session, target: Target) -> str:
    return await session.tenants.pause_work(target.tenant, WorkScope("report", 0), target.side, "why")


async def resume(session: Session, target: Target) -> list[str]:
    return sorted(await session.tenants.resume_work(target.tenant, WorkScope("report", 0)) or ())


async def redrive(session: Session, target: Target) -> asyncpg.Record:
    wish = Redrive(
        tenant_id=target.tenant,
        request_id=f"redrive-{target.side}",
        actor=target.side,
        scope=WorkScope("report", 1),
        reasons=(),
        failed_from=None,
        failed_before=None,
        task_ids=(),
        limit=100,
        dry_run=False,
    )
    return await session.redrives.redrive_tasks(wish, target.digest)


async def confirm_export(session: Session, target: Target) -> int | None:
    return await session.budgets.confirm_budget_export(target.tenant, 1)


async def compact_facts(session: Session, target: Target) -> tuple[int, int]:
    return await session.budgets.compact_budget_facts(target.tenant, 1, 100)


async def meter(session: Session, target: Target) -> list[Any]:
    counted: dict[str, int] = {}
    found: list[Any] = []
    while facts := await session.budgets.meter_budget_facts(counted, tenants=10, facts=1, hold_ms=1_000):
        found += facts
        counted = {fact.tenant_id: fact.cursor for fact in facts}
    return found


def policy_of(*, outstanding: int, leased: int) -> TenantPolicy:
    """A policy in which these two limits matter."""
    return TenantPolicy(
        max_outstanding=outstanding, max_leased=leased, retention_ms=DAY_MS, max_input_bytes=2**20, max_creates_per_second=0
    )


def plain(answer: Any) -> Any:
    """An answer as values that can be compared."""
    if isinstance(answer, asyncpg.Record):
        return dict(answer)
    if isinstance(answer, Iterable) and not isinstance(answer, str):
        return [plain(one) for one in answer]
    return answer
