"""The store's contract as one class: tasks, leases, waits and signals in dictionaries, under a clock that is set by hand.

Operations have the names and fields of the API and return what its answers hold, as plain values: a field that is empty is
left out, times are microseconds since 1970, enums are names without prefix. `Refused` carries the reason. Where the store
may choose (a task's id, a random rest, the order of turns within one claim), the operation is told the choice and checks
that it was allowed to make it. Nothing here knows SQL, batches or locks. Source: the store contract, sections 1 to 11.
"""

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from tests.model.checks import (
    DAY_MS,
    MIB,
    MS,
    YEARS,
    Answer,
    Owner,
    Refused,
    check,
    check_choice,
    is_id,
    is_name,
    is_owner,
    is_payload,
    is_text,
    lean,
    payload,
)  # fmt: skip # isort: skip
from tests.model.rows import TERMINAL, TOO_LATE, TOO_OFTEN, Lease, Signal, Task, Tenant, Wait

QUANTUM: Final = 10
"""How many tasks of one tenant a claim takes at most before it looks at the next tenant."""


class Model:
    """What the store does, one operation after the other."""

    def __init__(self, now: int, *, cancel_grace_ms: int, max_crashes: int) -> None:
        self.now = now
        self.epoch = 1
        self.tenants: dict[str, Tenant] = {}
        self.tasks: dict[tuple[str, str], Task] = {}
        self.signals: dict[tuple[str, str], Signal] = {}
        self.claims: dict[str, tuple[str, list[Lease]]] = {}
        self.touched: set[tuple[str, str]] = set()
        self._grace = cancel_grace_ms * MS
        self._max_crashes = max_crashes
        self._turn = 0

    def create_task(
        self, *, tenant_id: str, request_id: str, workflow: str, version: int, owner: Owner, data: bytes, media_type: str = "",
        priority: int = 0, ttl_ms: int = 0, poll_ms: int = 0, deadline_ms: int = 0, abandon_ms: int = 0,
        early: Mapping[str, bytes] | None = None, digest: bytes = b"", chosen: str = "",
    ) -> Answer:  # fmt: skip
        """Idempotent by request id. Who waits, and answers given early, are no part of the content; a digest stands for it."""
        early = early or {}
        check(is_name(tenant_id) and is_text(request_id, 128) and is_text(workflow, 256) and 1 <= version < 2**31)
        check(is_owner(owner) and is_payload(media_type, data, MIB) and 0 <= deadline_ms < YEARS and 0 <= abandon_ms < YEARS)
        check(0 <= ttl_ms < 10 * YEARS and 0 <= poll_ms <= 3_600_000 and len(digest) in (0, 32))
        check(len(early) <= 16 and all(is_text(key, 160) and is_payload("", one, 255 * 1024) for key, one in early.items()))
        tenant = self.tenants.setdefault(tenant_id, Tenant())
        tenant.refill(self.now)
        contract = lean(
            tool="tool", workflow=workflow, workflow_version=version, owner={"issuer": owner[0], "subject": owner[1]},
            ttl_ms=ttl_ms or DAY_MS, poll_interval_ms=poll_ms or 1_000, execution_deadline_ms=deadline_ms,
        )  # fmt: skip
        content = digest or ("create", contract, priority, payload(media_type, data))
        if known := self._asked_before(tenant_id, request_id, content):
            return {"task": known.shown(self.now), "replayed": True}
        if len(data) > tenant.max_input_bytes:
            raise Refused("INPUT_TOO_LARGE")
        self._admit(tenant_id)
        if tenant.max_creates_per_second and tenant.creates_left < 1:
            raise Refused("CREATE_RATE")
        tenant.creates_left -= bool(tenant.max_creates_per_second)
        task = Task(
            tenant_id, chosen, request_id, content, contract, priority, payload(media_type, data), self.now, self.now, self.now,
            self.now + deadline_ms * MS if deadline_ms else None, self.now + abandon_ms * MS if abandon_ms else None,
            early=dict(early), early_given=len(early),
        )  # fmt: skip
        return lean(task=self._add(task))

    def fork_task(
        self, *, tenant_id: str, request_id: str, source_task_id: str, checkpoints: int, owner: Owner | None = None,
        chosen: str = "",
    ) -> Answer:  # fmt: skip
        """A task that starts with the first checkpoints of another, which is not touched."""
        check(is_name(tenant_id) and is_text(request_id, 128) and is_id(source_task_id) and 0 <= checkpoints < 2**31)
        check(owner is None or is_owner(owner))
        content = ("fork", source_task_id, checkpoints)
        if known := self._asked_before(tenant_id, request_id, content):
            if owner not in (None, known.owner):
                raise Refused("TASK_NOT_FOUND")
            return {"task": known.shown(self.now), "replayed": True}
        source = self._find(tenant_id, source_task_id, owner)
        if len(source.checkpoints) < checkpoints:
            raise Refused("CHECKPOINT_NOT_FOUND")
        self._admit(tenant_id)
        deadline_ms = source.contract.get("execution_deadline_ms", 0)
        task = Task(
            tenant_id, chosen, request_id, content, source.contract, source.priority, source.input, self.now, self.now,
            self.now, self.now + deadline_ms * MS if deadline_ms else None, forked_from=(source_task_id, checkpoints),
        )  # fmt: skip
        for one in source.checkpoints[:checkpoints]:
            task.checkpoints.append({k: v for k, v in one.items() if k != "token"} | {"created_at": self.now})
        return lean(task=self._add(task, detail=f"forked from {source_task_id}"))

    def get_task(self, *, tenant_id: str, task_id: str, owner: Owner | None = None, view: int = 0) -> Answer:
        """A task as it stands: without payloads, with its outcome (2), with its input too (3)."""
        check(0 <= view <= 3)
        task = self._find(tenant_id, task_id, owner)
        answer = task.shown(self.now)
        if view >= 2:
            answer |= task.outcome
        if view == 3:
            answer["input"] = task.input
        return {"task": answer}

    def list_tasks(self, *, tenant_id: str, states: Sequence[str] = (), workflow: str = "") -> Answer:
        """A tenant's tasks, newest first."""
        found = [task for task in self.tasks.values() if task.tenant_id == tenant_id]
        found = [task for task in found if (not states or task.state in states) and workflow in ("", task.lane[0])]
        found.sort(key=lambda task: (task.created_at, UUID(task.task_id)), reverse=True)
        return lean(tasks=[task.shown(self.now) for task in found])

    def list_task_history(self, *, tenant_id: str, task_id: str) -> Answer:
        """What happened to a task."""
        return {"lines": self._find(tenant_id, task_id, None).lines}

    def list_checkpoints(self, *, tenant_id: str, task_id: str, from_revision: int = 0) -> Answer:
        """The steps that are done."""
        return lean(checkpoints=self._find(tenant_id, task_id, None).checkpoints[from_revision:])

    def get_checkpoint(self, *, tenant_id: str, task_id: str, revision: int) -> Answer:
        """One of them."""
        check(0 <= revision < 2**31)
        checkpoints = self._find(tenant_id, task_id, None).checkpoints
        if revision >= len(checkpoints):
            raise Refused("CHECKPOINT_NOT_FOUND")
        return {"checkpoint": checkpoints[revision]}

    def cancel_task(self, *, tenant_id: str, task_id: str, owner: Owner | None = None, mode: int = 0) -> Answer:
        """A wish where a worker runs it, an end otherwise or by force (2)."""
        check(0 <= mode <= 2)
        task = self._find(tenant_id, task_id, owner)
        if task.state in TERMINAL:
            return {"outcome": "ALREADY_TERMINAL"}
        if task.expires_at is not None and task.expires_at > self.now and mode < 2:
            if not task.wished:
                self._wish(task)
            return {"outcome": "REQUESTED"}
        task.wished = True
        self._end(task, "CANCELLED", worker=task.worker_id)
        return {"outcome": "CANCELLED"}

    def attach_task(self, *, tenant_id: str, task_id: str, abandon_ms: int, owner: Owner | None = None) -> Answer:
        """Somebody waits for it, for so long; 0 means that its id was handed out."""
        check(0 <= abandon_ms < YEARS)
        task = self._find(tenant_id, task_id, owner)
        if task.state not in TERMINAL and task.abandon_at is not None:
            task.abandon_at = self.now + abandon_ms * MS if abandon_ms else None
        return {}

    def answer_inputs(
        self, *, tenant_id: str, task_id: str, answers: Mapping[str, bytes], owner: Owner | None = None
    ) -> Answer:
        """For each key whether it answered an open question. With the last of them the task goes on."""
        check(1 <= len(answers) <= 100)
        check(all(is_text(key, 160) and is_payload("", one, 255 * 1024) for key, one in answers.items()))
        task = self._find(tenant_id, task_id, owner)
        wait = task.wait
        waits = task.state == "WAITING" and wait is not None and wait.kind == "INPUT" and not self._is_past(wait.until)
        accepted = {one.key for one in task.questions if waits and one.state == "OPEN" and one.key in answers}
        for question in task.questions:
            if question.key in accepted:
                question.state, question.response = "ANSWERED", answers[question.key]
        if accepted and any(one.state == "OPEN" for one in task.questions):
            self._changed(task)
        elif accepted:
            self._wake(task, "INPUT", self.now)
        return {"outcomes": ["ACCEPTED" if key in accepted else "IGNORED" for key in answers]}

    def publish_signal(
        self, *, tenant_id: str, signal_id: str, task_id: str, name: str, data: bytes, media_type: str = "",
        owner: Owner | None = None,
    ) -> Answer:  # fmt: skip
        """Idempotent by id and content. Before the wait's end the signal wins, at it the timeout does."""
        check(is_text(signal_id, 128) and is_name(name) and is_payload(media_type, data, MIB))
        task = self._find(tenant_id, task_id, owner)
        sent = payload(media_type, data)
        if known := self.signals.get((tenant_id, signal_id)):
            if (known.task_id, known.name, known.payload) != (task_id, name, sent):
                raise Refused("SIGNAL_ID_CONFLICT")
            return {"state": known.state, "replayed": True}
        state, wait = "PENDING", task.wait
        if task.state in TERMINAL:
            state = "DEAD_LETTER"
        elif task.state == "WAITING" and wait is not None and wait.signal_name == name:
            state = "DEAD_LETTER" if self._is_past(wait.until) else "CONSUMED"
        self.signals[tenant_id, signal_id] = Signal(task_id, name, sent, self.now, state)
        if state == "CONSUMED":
            self._wake(task, "SIGNAL", self.now, signal_id)
        return {"state": state}

    def get_signal(self, *, tenant_id: str, signal_id: str) -> Answer:
        """What became of a signal."""
        check(is_name(tenant_id) and is_text(signal_id, 128))
        signal = self.signals.get((tenant_id, signal_id))
        if signal is None:
            raise Refused("SIGNAL_NOT_FOUND")
        return {"task_id": signal.task_id, "name": signal.name, "state": signal.state, "accepted_at": signal.accepted_at}

    def lease_tasks(
        self, *, request_id: str, worker_id: str, workflows: Sequence[tuple[str, int]], limit: int, lease_ms: int,
        tenant_ids: Sequence[str] = (), served: Sequence[str] = (),
    ) -> Answer:  # fmt: skip
        """What is ready; when nothing is, what has fallen due by now."""
        check(is_text(request_id, 128) and is_name(worker_id) and 1 <= len(workflows) <= 500 and 1 <= limit <= 500)
        check(all(is_text(name, 256) and 1 <= version < 2**31 for name, version in workflows))
        check(1_000 <= lease_ms <= 900_000 and all(map(is_name, tenant_ids)))
        arguments = (request_id, worker_id, workflows, limit, lease_ms * MS, tenant_ids, served)
        found = self._claim(*arguments)
        if not found:
            self._promote_due()
            found = self._claim(*arguments)
        return lean(tasks=[task.leased_shown(self._lease(task), self.signals) for task in found])

    def heartbeat_task(self, *, lease: Lease, lease_ms: int) -> Answer:
        """Extends a lease and never shortens it. An expired one stays expired."""
        check(1_000 <= lease_ms <= 900_000)
        task = self._held(lease)
        task.lived = True
        task.expires_at = max(task.expires_at or 0, self.now + lease_ms * MS)
        return lean(expires_at=task.expires_at, cancel_requested=task.wished)

    def report_progress(self, *, lease: Lease, value: float, total: float | None = None, message: str = "") -> Answer:
        """Numbered from 1."""
        check(all(abs(one) < float("inf") for one in (value, total or 0.0)) and is_text(message, 1024, blank=True))
        task = self._held(lease)
        task.lived = True
        report = lean(sequence=len(task.reports) + 1, value=value, message=message)
        task.reports.append(report if total is None else report | {"total": total})
        self._changed(task)
        return {"sequence": len(task.reports)}

    def load_input(self, *, lease: Lease) -> Answer:
        """The input and the wake, under the lease."""
        task = self._held(lease)
        return {"input": task.input} | lean(wake=task.wake_shown(self.signals))

    def load_checkpoints(self, *, lease: Lease, from_revision: int = 0) -> Answer:
        """The steps that are done, under the lease."""
        check(0 <= from_revision < 2**31)
        return lean(checkpoints=self._held(lease).checkpoints[from_revision:])

    def append_checkpoint(self, *, lease: Lease, revision: int, step: str, data: bytes, media_type: str = "") -> Answer:
        """Only as the next revision."""
        check(0 <= revision < 2**31 and is_text(step, 256) and is_payload(media_type, data, 4 * MIB))
        task = self._held(lease)
        if revision != len(task.checkpoints):
            raise Refused("REVISION_CONFLICT")
        task.lived = True
        saved = lean(revision=revision, step=step, payload=payload(media_type, data), token=lease.token, created_at=self.now)
        task.checkpoints.append(saved)
        return {}

    def complete_task(self, *, lease: Lease, data: bytes, media_type: str = "") -> Answer:
        """Ends a task with its result."""
        check(is_payload(media_type, data, 4 * MIB))
        result = payload(media_type, data)
        if task := self._finishing(lease, ("complete", result)):
            task.outcome = {"result": result}
            self._end(task, "COMPLETED", worker=lease.worker_id)
        return {}

    def fail_task(
        self, *, lease: Lease, message: str, code: int = -32000, data: bytes | None = None,
        retry: tuple[int, int, int] | None = None, chosen: int = 0,
    ) -> Answer:  # fmt: skip
        """Ends a task with an error, or lets it rest for a random time below a bound that doubles with each retry."""
        check(is_text(message, 1024) and (data is None or is_payload("", data, 64 * 1024)))
        check(retry is None or (retry[0] >= 1 and 1 <= retry[1] <= retry[2] <= DAY_MS))
        task = self._finishing(lease, ("fail", message, code, data, retry))
        if task is None:
            known = self.tasks[lease.tenant_id, lease.task_id]
            return lean(retry_at=known.ready_at if known.state == "QUEUED" else None)
        if retry is None or task.retries + 1 >= retry[0]:
            error = lean(code=code, message=message, data=None if data is None else payload("", data), reason="WORKER")
            task.outcome = {"error": error}
            self._end(task, "FAILED", worker=lease.worker_id, detail=message)
        elif task.wished:
            self._end(task, "CANCELLED", worker=lease.worker_id, detail=message)
        else:
            most_ms = min(retry[2], retry[1] * 2**task.retries)
            check_choice(self.now <= chosen <= self.now + most_ms * MS)
            task.retries += 1
            self._requeue(task, chosen)
            self._tell(task, "RETRIED", lease.worker_id, detail=message)
            return {"retry_at": chosen}
        return {}

    def release_task(self, *, lease: Lease, delay_ms: int) -> Answer:
        """Gives a task back; one whose end is wished for ends."""
        check(0 <= delay_ms <= DAY_MS)
        task = self._finishing(lease, ("release", delay_ms))
        if task is not None and task.wished:
            self._end(task, "CANCELLED", worker=lease.worker_id)
        elif task is not None:
            self._requeue(task, self.now + delay_ms * MS)
            self._tell(task, "RELEASED", lease.worker_id)
        return {}

    def confirm_cancel(self, *, lease: Lease) -> Answer:
        """The work was stopped."""
        if task := self._finishing(lease, ("confirm",)):
            self._end(task, "CANCELLED", worker=lease.worker_id)
        return {}

    def suspend_task(
        self, *, lease: Lease, step: str, timer_ms: int | None = None, signal: str | None = None,
        questions: Sequence[tuple[str, bytes]] = (), timeout_ms: int = 0, fitting: Sequence[str] = (),
    ) -> Answer:  # fmt: skip
        """Until the time, a signal, or answers. What came before the wait ends it at once; a wished end ends the task."""
        kind = "TIMER" if timer_ms is not None else "SIGNAL" if signal is not None else "INPUT"
        delay_ms = timeout_ms if timer_ms is None else timer_ms
        check(is_text(step, 256) and (timer_ms is not None) <= delay_ms < YEARS)
        check(kind != "SIGNAL" or is_name(signal or ""))
        check(kind != "INPUT" or (1 <= len(questions) <= 16 and len({name for name, _ in questions}) == len(questions)))
        check(all(is_text(name, 128) and "#" not in name and is_payload("", one, 64 * 1024) for name, one in questions))
        check(len(fitting) <= 16 and all(is_text(key, 160) for key in fitting))
        said = ("suspend", step, timer_ms, signal, tuple(questions), timeout_ms, tuple(dict.fromkeys(fitting)))
        task = self._finishing(lease, said)
        if task is None:
            return self._asked(lease)
        task.ask(questions, self.now, fitting)
        pending = [
            (signal_.accepted_at, signal_id)
            for (tenant_id, signal_id), signal_ in self.signals.items()
            if (tenant_id, signal_.task_id, signal_.name, signal_.state) == (task.tenant_id, task.task_id, signal, "PENDING")
        ]
        if task.wished:
            self._end(task, "CANCELLED", worker=lease.worker_id, detail=step)
            return self._asked(lease)
        task.wait = Wait(kind, step, task.token, self.now + delay_ms * MS if delay_ms else None, signal)
        task.state, task.worker_id, task.expires_at = "WAITING", "", None
        self._tell(task, "SUSPENDED", lease.worker_id, detail=step)
        if pending:
            _, signal_id = min(pending)
            self.signals[task.tenant_id, signal_id].state = "CONSUMED"
            self._wake(task, "SIGNAL", self.now, signal_id)
        elif kind == "INPUT" and all(one.state != "OPEN" for one in task.questions):
            self._wake(task, "INPUT", self.now)
        return self._asked(lease)

    def set_tenant_policy(
        self, *, tenant_id: str, max_outstanding: int, max_leased: int, retention_ms: int, max_input_bytes: int = 0,
        max_creates_per_second: int = 0,
    ) -> Answer:  # fmt: skip
        """The last writer wins; nothing that runs is ended."""
        check(is_name(tenant_id) and 1 <= max_leased <= max_outstanding < 2**31 and DAY_MS <= retention_ms < 100 * YEARS)
        check(0 <= max_input_bytes <= MIB and 0 <= max_creates_per_second < 2**31)
        tenant = self.tenants.setdefault(tenant_id, Tenant())
        tenant.max_outstanding, tenant.max_leased, tenant.retention_ms = max_outstanding, max_leased, retention_ms
        tenant.max_input_bytes, tenant.max_creates_per_second = max_input_bytes or MIB, max_creates_per_second
        return self.get_tenant(tenant_id=tenant_id)

    def get_tenant(self, *, tenant_id: str) -> Answer:
        """A policy and its use."""
        check(is_name(tenant_id))
        if tenant_id not in self.tenants:
            raise Refused("TENANT_NOT_FOUND")
        live = [task for task in self._of(tenant_id) if task.state not in TERMINAL]
        leased = sum(task.state == "LEASED" for task in live)
        policy = self.tenants[tenant_id].policy
        return {"tenant": lean(tenant_id=tenant_id, policy=policy, outstanding=len(live), leased=leased)}

    def remove_tasks(self, *, tenant_id: str, limit: int = 0) -> Answer:
        """What is past its handle and its retention goes, a tombstone stays."""
        check(is_name(tenant_id) and 0 <= limit <= 1_000)
        if tenant_id not in self.tenants:
            return {}
        tenant = self.tenants[tenant_id]
        due = [(task.handle_ends_at, UUID(task.task_id), task) for task in self._of(tenant_id) if task.handle_ends_at]
        due = [one for one in due if (one[0] or 0) <= self.now - tenant.retention_ms * MS]
        removed = []
        for _, _, task in sorted(due, key=lambda one: one[:2])[: limit or 100]:
            tombstone = task.tombstone(len(tenant.tombstones) + 1, self.now)
            tenant.tombstones.append(tombstone)
            removed.append(tombstone)
            del self.tasks[tenant_id, task.task_id]
            for key in [key for key, one in self.signals.items() if (key[0], one.task_id) == (tenant_id, task.task_id)]:
                del self.signals[key]
        return lean(tombstones=removed)

    def list_tombstones(self, *, tenant_id: str, after_cursor: int = 0) -> Answer:
        """By rising cursor."""
        known = self.tenants[tenant_id].tombstones if tenant_id in self.tenants else []
        return lean(tombstones=known[after_cursor:])

    def get_tombstone(self, *, tenant_id: str, task_id: str) -> Answer:
        """The proof that a task existed."""
        check(is_id(task_id))
        for tombstone in self.list_tombstones(tenant_id=tenant_id).get("tombstones", []):
            if tombstone["task_id"] == task_id:
                return {"tombstone": tombstone}
        raise Refused("TOMBSTONE_NOT_FOUND")

    def compact_signals(self, *, tenant_id: str, older_than_ms: int) -> Answer:
        """Signals that are over are forgotten, but for one that woke a task that lives, or failed and may be redriven."""
        check(is_name(tenant_id) and 1 <= older_than_ms < 10 * YEARS)
        live = {one.wait.signal_id for one in self._of(tenant_id) if one.wait and one.state not in ("COMPLETED", "CANCELLED")}
        gone = [
            key
            for key, one in self.signals.items()
            if key[0] == tenant_id and one.state != "PENDING" and one.accepted_at <= self.now - older_than_ms * MS
            and key[1] not in live
        ]  # fmt: skip
        for key in gone:
            del self.signals[key]
        return lean(compacted=len(gone))

    def _claim(
        self, request_id: str, worker_id: str, workflows: Sequence[tuple[str, int]], limit: int, lease_us: int,
        tenant_ids: Sequence[str], served: Sequence[str],
    ) -> list[Task]:  # fmt: skip
        if worker_id in self.claims and self.claims[worker_id][0] == request_id:
            held = [task for lease in self.claims[worker_id][1] if (task := self._holder(lease, any_epoch=True))]
            for task in held:
                task.expires_at = max(task.expires_at or 0, self.now + lease_us)
            return held
        ready = [task for task in self.tasks.values() if task.ready and task.lane in workflows]
        turns = sorted(
            (self.tenants[name].turn, name)
            for name in {task.tenant_id for task in ready}
            if (not tenant_ids or name in tenant_ids) and self._room(name) > 0
        )[: -(-limit // min(limit, QUANTUM))]
        picks: list[tuple[int, int, str, Task]] = []
        for turn, name in turns:
            share = min(max(min(limit, QUANTUM), 1 + (limit - 1) // len(turns)), self._room(name))
            order = sorted((-task.priority, task.ready_at, UUID(task.task_id)) for task in ready if task.tenant_id == name)
            picks += [(n, turn, name, self.tasks[name, str(id_)]) for n, (_, _, id_) in enumerate(order[:share])]
        taken = [task for _, _, _, task in sorted(picks, key=lambda pick: pick[:3])[:limit]]
        for task in taken:
            task.state, task.ready, task.worker_id, task.expires_at = "LEASED", False, worker_id, self.now + lease_us
            task.token, task.attempts, task.lived, task.finished = task.token + 1, task.attempts + 1, False, None
            self._tell(task, "LEASED", worker_id)
        tenants = list(dict.fromkeys(task.tenant_id for task in taken))
        if len(tenants) > 1:
            check_choice(set(served) == set(tenants))
        for name in served if len(tenants) > 1 else tenants:
            self._turn += 1
            self.tenants[name].turn = self._turn
        if taken:
            self.claims[worker_id] = request_id, [self._lease(task) for task in taken]
        return taken

    def _promote_due(self) -> None:
        """What time does, one thing to each task. A lease that ran out is a crash if its worker had been heard of, or if the
        task had so many leases that the silence itself is one."""
        for task in self.tasks.values():
            past, dead = self._is_past, task.state == "LEASED" and self._is_past(task.expires_at)
            worker, wait = task.worker_id, task.wait
            if task.state in TERMINAL:
                continue
            abandoned, late = past(task.abandon_at), past(task.deadline_at)
            crashes = task.crashes + (dead and (task.lived or task.attempts > max(self._max_crashes, 10)))
            if past(task.cancel_at) or (dead and task.wished):
                self._end(task, "CANCELLED", worker=worker)
            elif late or (dead and crashes > self._max_crashes and not abandoned):
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
            task.crashes = crashes
            task.abandon_at = None if abandoned else task.abandon_at

    def _finishing(self, lease: Lease, content: object) -> Task | None:
        """The task that a lease ends; None for the same end by the same lease again."""
        check(lease.is_formed)
        task = self._holder(lease)
        if task is not None:
            task.finished = (lease._replace(epoch=0), content)
            return task
        known = self.tasks.get((lease.tenant_id, lease.task_id))
        if known is not None and lease.epoch == self.epoch and known.finished == (lease._replace(epoch=0), content):
            return None
        raise Refused("LEASE_LOST")

    def _holder(self, lease: Lease, *, any_epoch: bool = False) -> Task | None:
        task = self.tasks.get((lease.tenant_id, lease.task_id))
        if task is None or task.expires_at is None or task.expires_at <= self.now:
            return None
        matches = (task.worker_id, task.token) == (lease.worker_id, lease.token)
        return task if matches and (any_epoch or lease.epoch == self.epoch) else None

    def _held(self, lease: Lease) -> Task:
        check(lease.is_formed)
        task = self._holder(lease)
        if task is None:
            raise Refused("LEASE_LOST")
        self.touched.add((task.tenant_id, task.task_id))
        return task

    def _asked(self, lease: Lease) -> Answer:
        task = self.tasks[lease.tenant_id, lease.task_id]
        return lean(keys=[one.key for one in task.questions if one.token == lease.token])

    def _end(self, task: Task, state: str, *, worker: str = "", detail: str = "") -> None:
        task.state, task.ready, task.worker_id, task.expires_at = state, False, "", None
        self._tell(task, state, worker, detail=detail)
        task.ended_at = task.changed_at
        for question in task.questions:
            question.state = "OVER" if question.state == "OPEN" else question.state
        for (tenant_id, _), signal in self.signals.items():
            if (tenant_id, signal.task_id, signal.state) == (task.tenant_id, task.task_id, "PENDING"):
                signal.state = "DEAD_LETTER"

    def _requeue(self, task: Task, ready_at: int) -> None:
        task.state, task.worker_id, task.expires_at = "QUEUED", "", None
        task.ready_at, task.ready = ready_at, ready_at == self.now

    def _wake(self, task: Task, cause: str, at: int, signal_id: str | None = None) -> None:
        assert task.wait is not None
        task.wait.wake, task.wait.signal_id = cause, signal_id
        task.state, task.ready, task.ready_at = "QUEUED", True, at
        self._tell(task, "WOKEN", detail=cause)

    def _wish(self, task: Task, worker: str = "") -> None:
        task.wished, task.cancel_at = True, self.now + self._grace
        self._tell(task, "CANCEL_REQUESTED", worker)

    def _tell(self, task: Task, event: str, worker: str = "", *, detail: str = "") -> None:
        token = task.token if worker else 0
        task.lines.append(lean(line=len(task.lines), event=event, at=self.now, worker_id=worker, token=token, detail=detail))
        self._changed(task)

    def _changed(self, task: Task) -> None:
        task.change += 1
        task.changed_at = max(task.changed_at, self.now)
        self.touched.add((task.tenant_id, task.task_id))

    def _add(self, task: Task, *, detail: str = "") -> Answer:
        check_choice(is_id(task.task_id) and all(task.task_id != known for _, known in self.tasks))
        self.tasks[task.tenant_id, task.task_id] = task
        self._tell(task, "CREATED", detail=detail)
        task.change = 1
        return task.shown(self.now)

    def _admit(self, tenant_id: str) -> None:
        live = sum(task.state not in TERMINAL for task in self._of(tenant_id))
        if live >= self.tenants[tenant_id].max_outstanding:
            raise Refused("OUTSTANDING_LIMIT")

    def _asked_before(self, tenant_id: str, request_id: str, content: object) -> Task | None:
        for task in self._of(tenant_id):
            if task.request_id == request_id:
                if task.content != content:
                    raise Refused("REQUEST_ID_CONFLICT")
                return task
        return None

    def _find(self, tenant_id: str, task_id: str, owner: Owner | None) -> Task:
        check(is_name(tenant_id) and is_id(task_id) and (owner is None or is_owner(owner)))
        task = self.tasks.get((tenant_id, task_id))
        if task is None or owner not in (None, task.owner):
            raise Refused("TASK_NOT_FOUND")
        self.touched.add((tenant_id, task_id))
        return task

    def _of(self, tenant_id: str) -> list[Task]:
        return [task for task in self.tasks.values() if task.tenant_id == tenant_id]

    def _room(self, tenant_id: str) -> int:
        return self.tenants[tenant_id].max_leased - sum(task.state == "LEASED" for task in self._of(tenant_id))

    def _is_past(self, at: int | None) -> bool:
        return at is not None and at <= self.now

    def _lease(self, task: Task) -> Lease:
        return Lease(task.tenant_id, task.task_id, task.worker_id, task.token, self.epoch)
