"""The plans of what workers and callers ask for besides, of tasks of a tenant that has many."""

from collections.abc import Awaitable, Callable
from uuid import uuid4

from store_service.db.explanations import ExplanationRows
from store_service.db.leases import LeaseRows
from store_service.db.redrives import RedriveRows
from store_service.db.tasks import TaskRows
from store_service.db.waits import WaitRows
from store_service.model.leases import Report, Suspend
from store_service.model.pauses import WorkScope
from store_service.model.payloads import JSON, Payload
from store_service.model.redrives import Redrive
from store_service.model.states import TERMINAL, TaskState
from store_service.model.tasks import Answers, Fork, NewSignal, TaskRead, TaskRef, TaskView
from store_service.model.waits import Answer, NewQuestion, SignalFilter, WaitKind
from tests.store.plans import BATCH, Plans, Watched, claim_any, run_twice


async def other_plans(dsn: str) -> Plans:
    """Of each statement."""
    return await run_twice(dsn, _go_through)


async def _go_through(session: Watched) -> Plans:
    leases, tasks, waits = LeaseRows(session), TaskRows(session), WaitRows(session)  # type: ignore[arg-type]  # see Watched
    explanations, redrives = ExplanationRows(session), RedriveRows(session)  # type: ignore[arg-type]  # see Watched
    taken = (await leases.claim_tasks(claim_any())).tasks
    first, refs = taken[0].lease, [TaskRef(one.lease.tenant_id, one.lease.task_id) for one in taken]
    tenant_id, payload, question = first.tenant_id, Payload(JSON, b"{}"), NewQuestion("ask", "elicitation/create", b"{}")
    live = sorted(set(TaskState) - TERMINAL)
    signals = SignalFilter(tenant_id=tenant_id, states=(), task_id=first.task_id)
    asked, told = [one.lease for one in taken[::2]], [one.lease for one in taken[1::2]]
    steps: dict[str, Callable[[], Awaitable[object]]] = {
        "load_input": lambda: leases.load_input(first),
        "get_tasks": lambda: tasks.get_tasks([TaskRead(ref, TaskView.OUTCOME) for ref in refs]),
        "load_early_answers": lambda: leases.load_early_answers(first),
        "is_held": lambda: leases.is_held(first),
        "report_progress": lambda: leases.report_progress([Report(one.lease, 1, None, "") for one in taken]),
        "suspend_tasks": lambda: waits.suspend_tasks(
            [(Suspend(lease=one, step="s", kind=WaitKind.INPUT, delay_ms=0, questions=(question,)), b"d") for one in asked]
            + [(Suspend(lease=one, step="s", kind=WaitKind.SIGNAL, delay_ms=0, signal_name="go"), b"d") for one in told]
        ),
        "answer_inputs": lambda: waits.answer_inputs(
            Answers(ref=refs[0], answered_by=None, answers=(Answer("ask", b"{}"),))
        ),
        "publish_signal": lambda: waits.publish_signal(
            NewSignal(ref=refs[1], signal_id=uuid4().hex, name="go", payload=payload), b"d"
        ),
        "fork_task": lambda: waits.fork_task(Fork(source=refs[0], request_id=uuid4().hex, checkpoints=0), str(uuid4()), b"d"),
        "list_signals_of_task": lambda: waits.list_signals(signals, None, BATCH),
        "compact_signals": lambda: waits.compact_signals(tenant_id, 0, BATCH),
        "explain_task": lambda: explanations.read_situation(refs[0]),
        "find_task": lambda: tasks.find_task(tenant_id, "reference", None),
        "is_task": lambda: tasks.is_task(refs[0]),
        "list_task_history": lambda: tasks.list_task_history(refs[0], 0, BATCH),
        "list_checkpoints": lambda: tasks.list_checkpoints(tenant_id, first.task_id, 0, BATCH),
        "attach_tasks": lambda: tasks.attach_tasks([(ref, 60_000) for ref in refs]),
        "cancel_tasks": lambda: tasks.cancel_tasks([(ref, True) for ref in refs], live=live, grace_ms=0),
        "redrive_tasks": lambda: redrives.redrive_tasks(
            Redrive(
                tenant_id=tenant_id, request_id=uuid4().hex, actor="a", scope=WorkScope("", 0), reasons=(), failed_from=None,
                failed_before=None, task_ids=(), limit=BATCH, dry_run=False,
            ),
            b"d",
        ),
    }  # fmt: skip
    plans = {}
    session.take()
    for name, step in steps.items():
        await step()
        plans[name] = session.take()
    return plans
