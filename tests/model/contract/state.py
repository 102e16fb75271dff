"""What all operations stand on: the rows, the clock, and what happens to a task whoever caused it."""

from collections.abc import Sequence
from typing import Final

from tests.model.contract.checks import MS, Answer, Limits, Owner, Refused, check, check_choice, is_id, is_name, is_owner, lean
from tests.model.contract.ledger import Budget, minus
from tests.model.contract.rows import TERMINAL, Lease, Signal, Task, Tenant

TOO_LATE: Final = {"code": -32603, "message": "The work ran past its execution deadline.", "reason": "EXECUTION_DEADLINE"}
TOO_OFTEN: Final = {
    "code": -32603, "message": "The work was given up: its workers were lost too often.", "reason": "CRASH_LIMIT",
}  # fmt: skip


class State:
    """Tenants, tasks and signals in dictionaries, under a clock that is set by hand."""

    def __init__(self, now: int, limits: Limits) -> None:
        self.now = now
        self.limits = limits
        self.epoch = 1
        self.tenants: dict[str, Tenant] = {}
        self.tasks: dict[tuple[str, str], Task] = {}
        self.signals: dict[tuple[str, str], Signal] = {}
        self.claims: dict[str, tuple[str, list[Lease]]] = {}
        self.budgets: dict[str, Budget] = {}
        self.pages: dict[str, tuple[int, int]] = {}
        self.signal_pages: dict[str, tuple[int, str]] = {}
        self.touched: set[tuple[str, str]] = set()  # what may look different now
        self.turn = 0

    def holder(self, lease: Lease, *, any_epoch: bool = False) -> Task | None:
        """The task that a lease gives a right to, if it still does."""
        task = self.tasks.get((lease.tenant_id, lease.task_id))
        if task is None or task.expires_at is None or task.expires_at <= self.now:
            return None
        matches = (task.worker_id, task.token) == (lease.worker_id, lease.token)
        return task if matches and (any_epoch or lease.epoch == self.epoch) else None

    def tasks_of(self, tenant_id: str) -> list[Task]:
        """A tenant's tasks."""
        return [task for task in self.tasks.values() if task.tenant_id == tenant_id]

    def _held(self, lease: Lease) -> Task:
        check(lease.is_formed)
        task = self.holder(lease)
        if task is None:
            raise Refused("LEASE_LOST")
        return task

    def _finishing(self, lease: Lease, content: object) -> Task | None:
        """The task that a lease ends; None for the same end by the same lease again."""
        check(lease.is_formed)
        known = self.tasks.get((lease.tenant_id, lease.task_id))
        if known and lease.epoch == self.epoch and known.finished == (lease._replace(epoch=0), content):
            return None
        task = self._held(lease)
        if task.holds:
            raise Refused("BUDGET_RESERVED")
        return task

    def _finished(self, task: Task, lease: Lease, content: object) -> None:
        task.finished = (lease._replace(epoch=0), content)

    def _find(self, tenant_id: str, task_id: str, owner: Owner | None) -> Task:
        check(is_name(tenant_id) and is_id(task_id) and is_owner(owner))
        task = self.tasks.get((tenant_id, task_id))
        if task is None or owner not in (None, task.owner):
            raise Refused("TASK_NOT_FOUND")
        return task

    def _asked_before(self, tenant_id: str, request_id: str, content: object) -> Task | None:
        for task in self.tasks_of(tenant_id):
            if task.request_id == request_id:
                if task.content != content:
                    raise Refused("REQUEST_ID_CONFLICT")
                return task
        return None

    def _admit(self, tenant_id: str) -> None:
        live = sum(task.state not in TERMINAL for task in self.tasks_of(tenant_id))
        tenant = self.tenants[tenant_id]
        if live >= tenant.max_outstanding:
            raise Refused("OUTSTANDING_LIMIT")
        tenant.refill(self.now)
        if tenant.max_creates_per_second and tenant.creates_left < 1:
            raise Refused("CREATE_RATE")
        tenant.creates_left -= bool(tenant.max_creates_per_second)

    def _add(self, task: Task, *, detail: str = "") -> Answer:
        check_choice(is_id(task.task_id) and all(task.task_id != known for _, known in self.tasks))
        self.tasks[task.key] = task
        self._tell(task, "CREATED", detail=detail)
        task.change = 1
        return task.shown(self.now)

    def _end(self, task: Task, state: str, *, worker: str = "", detail: str = "") -> None:
        """Its questions are over, its signals dead letters; what it holds of a budget, which only work that is ended by others
        still does, is lost."""
        task.state, task.ready, task.worker_id, task.expires_at = state, False, "", None
        self._tell(task, state, worker, detail=detail)
        task.ended_at = task.changed_at
        for question in task.questions:
            question.state = "OVER" if question.state == "OPEN" else question.state
        for (tenant_id, _), signal in self.signals.items():
            if (tenant_id, signal.task_id, signal.state) == (task.tenant_id, task.task_id, "PENDING"):
                signal.state = "DEAD_LETTER"
        if task.holds:
            self._forfeit(task, state)

    def _forfeit(self, task: Task, cause: str) -> None:
        held, budget = task.holds, self.budgets[task.tenant_id]
        assert held is not None
        held.ended, held.charged = "FORFEITED", held.amount
        rest = minus(held.amount, held.amount)
        budget.tell(
            "FORFEITED", self.now, task_id=task.task_id, held=held, amount=held.amount, charged=held.amount, released=rest,
            cause=cause,
        )  # fmt: skip

    def _requeue(self, task: Task, ready_at: int) -> None:
        task.state, task.worker_id, task.expires_at = "QUEUED", "", None
        task.ready_at, task.ready = ready_at, ready_at == self.now

    def _wake(self, task: Task, cause: str, at: int, signal_id: str | None = None) -> None:
        assert task.wait is not None
        task.wait.wake, task.wait.signal_id = cause, signal_id
        task.state, task.ready, task.ready_at = "QUEUED", True, at
        self._tell(task, "WOKEN", detail=cause)

    def _wish(self, task: Task, worker: str = "") -> None:
        task.wished, task.cancel_at = True, self.now + self.limits.cancel_grace_ms * MS
        self._tell(task, "CANCEL_REQUESTED", worker)

    def _tell(self, task: Task, event: str, worker: str = "", *, detail: str = "") -> None:
        token = task.token if worker else 0
        task.lines.append(lean(line=len(task.lines), event=event, at=self.now, worker_id=worker, token=token, detail=detail))
        self._changed(task)

    def _changed(self, task: Task) -> None:
        task.change += 1
        task.changed_at = max(task.changed_at, self.now)
        self.touched.add(task.key)

    def _is_past(self, at: int | None) -> bool:
        return at is not None and at <= self.now

    def _in(self, delay_ms: int) -> int | None:
        """So long from now; 0 means never."""
        return self.now + delay_ms * MS if delay_ms else None

    def _lease(self, task: Task) -> Lease:
        return Lease(task.tenant_id, task.task_id, task.worker_id, task.token, self.epoch)

    def _promote_due(self, forfeited: Sequence[str] = ()) -> None:
        """What time does, one thing to each task. Who loses a reservation first is the store's choice."""
        for task in sorted(self.tasks.values(), key=lambda task: task.task_id in forfeited and forfeited.index(task.task_id)):
            if task.state not in TERMINAL:
                self._promote(task)

    def _promote(self, task: Task) -> None:
        """A lease that ran out is a crash if its worker had been heard of, or if the task had so many leases that the silence
        itself is one."""
        past, dead = self._is_past, task.state == "LEASED" and self._is_past(task.expires_at)
        worker, wait, lost = task.worker_id, task.wait, past(task.forfeits_at)
        abandoned, late = past(task.abandon_at), past(task.deadline_at)
        task.crashes += dead and (task.lived or task.attempts > max(self.limits.max_crashes, 10))
        if past(task.cancel_at) or (dead and task.wished):
            self._end(task, "CANCELLED", worker=worker)
        elif late or (dead and task.crashes > self.limits.max_crashes and not abandoned):
            error = TOO_LATE if late else TOO_OFTEN
            task.outcome = {"error": error}
            self._end(task, "FAILED", worker=worker, detail=str(error["reason"]))
        elif abandoned and (task.state != "LEASED" or dead):
            self._end(task, "CANCELLED", worker=worker)
        elif dead:
            self._requeue(task, task.expires_at or 0)
            task.ready = True
            self._tell(task, "LEASE_EXPIRED", worker)
        elif abandoned and not task.wished:
            self._wish(task, worker)
        elif task.state == "QUEUED" and past(task.ready_at):
            task.ready = True
        elif task.state == "WAITING" and wait and wait.until is not None and past(wait.until):
            for question in task.questions:
                question.state = "OVER" if question.state == "OPEN" else question.state
            self._wake(task, "TIMEOUT" if wait.kind == "SIGNAL" else wait.kind, wait.until)
        task.abandon_at = None if abandoned else task.abandon_at
        if lost and task.holds:
            self._forfeit(task, "RECOVERY_EXPIRED")
