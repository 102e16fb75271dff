"""What the model is made of: tenants, tasks, waits, questions, signals, and how they are shown."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tests.model.contract.checks import DAY_MS, MIB, MS, Answer, Owner, is_id, is_name, lean, payload
from tests.model.contract.ledger import Reservation

TERMINAL: Final = frozenset({"COMPLETED", "FAILED", "CANCELLED"})
SIGNAL_STATES: Final = ("PENDING", "CONSUMED", "DEAD_LETTER")


class Lease(NamedTuple):
    """A worker's right to act on a task, as it presents it."""

    tenant_id: str
    task_id: str
    worker_id: str
    token: int
    epoch: int

    @property
    def is_formed(self) -> bool:
        """Whatever it is worth."""
        return is_name(self.tenant_id) and is_id(self.task_id) and is_name(self.worker_id)


class CleanupLease(NamedTuple):
    """A right to remove what is over of a tenant, as its owner presents it."""

    tenant_id: str
    owner_id: str
    token: int
    epoch: int

    @property
    def is_formed(self) -> bool:
        """Whatever it is worth."""
        return is_name(self.tenant_id) and is_name(self.owner_id)


@dataclass(slots=True)
class Cleanup:
    """Who may remove what is over of a tenant."""

    token: int = 0
    epoch: int = 0
    owner_id: str = ""
    principal: str = ""
    expires_at: int = 0


@dataclass(slots=True)
class Purge:
    """Tombstones that may be forgotten for good."""

    asked: object
    request_id: str
    about: Answer
    items: list[Answer]
    state: str = "PENDING"
    reviewer: str = ""
    token: int = 0
    claim_expires_at: int | None = None
    decided_by: str = ""
    decided_at: int | None = None
    rejection: str = ""
    evidence: Answer | None = None

    def is_open(self, now: int) -> bool:
        """Whether it may still come."""
        return self.state in ("PENDING", "APPROVED") and self.about["deadline_at"] > now

    def is_claimed(self, now: int) -> bool:
        """Whether somebody has taken it."""
        return self.claim_expires_at is not None and self.claim_expires_at > now

    def shown_state(self, now: int) -> str:
        """Where it stands."""
        if self.state in ("PENDING", "APPROVED") and not self.is_open(now):
            return "EXPIRED"
        return "CLAIMED" if self.state == "PENDING" and self.is_claimed(now) else self.state

    def shown(self, now: int) -> Answer:
        """What everybody may read of it."""
        return self.about | lean(
            state=self.shown_state(now), reviewer=self.reviewer, claim_expires_at=self.claim_expires_at,
            decided_by=self.decided_by, decided_at=self.decided_at, rejection=self.rejection,
        )  # fmt: skip


@dataclass(slots=True)
class Tenant:
    """A policy, and when the tenant was last served."""

    max_outstanding: int = 10_000
    max_leased: int = 100
    retention_ms: int = DAY_MS
    max_input_bytes: int = MIB
    max_creates_per_second: int = 0
    creates_left: float = 0.0
    creates_at: int = 0
    turn: int = 0
    tombstones: list[Answer] = field(default_factory=list)
    cleanup: Cleanup | None = None
    holds: list[Answer] = field(default_factory=list)
    exports: list[Answer] = field(default_factory=list)
    purges: list["Purge"] = field(default_factory=list)
    last_cursor: int = 0
    pauses: dict[tuple[str, int], Answer] = field(default_factory=dict)
    redrives: dict[str, tuple[object, list[Answer], int]] = field(default_factory=dict)

    @property
    def policy(self) -> Answer:
        """What it may use."""
        return lean(
            max_outstanding=self.max_outstanding, max_leased=self.max_leased, retention_ms=self.retention_ms,
            max_input_bytes=self.max_input_bytes, max_creates_per_second=self.max_creates_per_second,
        )  # fmt: skip

    def is_held(self, task_id: str) -> bool:
        """Whether this task must be kept, or its tombstone."""
        return any(hold["task_id"] == task_id and "released_by" not in hold for hold in self.holds)

    def is_paused(self, lane: tuple[str, int]) -> bool:
        """Whether an operator holds this work back."""
        return any(workflow in ("", lane[0]) and version in (0, lane[1]) for workflow, version in self.pauses)

    def refill(self, now: int) -> None:
        """What it may create grows with the time, up to what it may create in a second."""
        if most := self.max_creates_per_second:
            elapsed = max(0, min(now - self.creates_at, 1_000_000))
            self.creates_left, self.creates_at = min(most, self.creates_left + most * elapsed / 1_000_000), now


@dataclass(slots=True)
class Question:
    """A question, open, answered or over."""

    key: str
    name: str
    token: int
    method: str
    params: bytes
    asked_at: int
    state: str = "OPEN"
    response: bytes | None = None


@dataclass(slots=True)
class Wait:
    """What a task waits for, or last waited for and what ended that."""

    kind: str
    step: str
    token: int
    until: int | None
    signal_name: str | None
    wake: str | None = None
    signal_id: str | None = None


@dataclass(slots=True)
class Signal:
    """A message to a task."""

    task_id: str
    name: str
    payload: Answer
    accepted_at: int
    state: str

    def shown(self) -> Answer:
        """What its readers are told."""
        return {"task_id": self.task_id, "name": self.name, "state": self.state, "accepted_at": self.accepted_at}


Signals = Mapping[tuple[str, str], Signal]


@dataclass(slots=True)
class Task:
    """One task, everything it has."""

    tenant_id: str
    task_id: str
    request_id: str
    reference: str
    content: object
    contract: Answer
    priority: int
    input: Answer
    created_at: int
    changed_at: int
    ready_at: int
    deadline_at: int | None
    abandon_at: int | None = None
    forked_from: tuple[str, int] = ("", 0)
    redriven_at: int | None = None
    early: dict[str, bytes] = field(default_factory=dict)
    early_given: int = 0
    state: str = "QUEUED"
    ready: bool = True
    worker_id: str = ""
    token: int = 0
    expires_at: int | None = None
    lease_ms: int = 0
    lived: bool = False
    wished: bool = False
    cancel_at: int | None = None
    attempts: int = 0
    crashes: int = 0
    retries: int = 0
    reports: list[Answer] = field(default_factory=list)
    checkpoints: list[Answer] = field(default_factory=list)
    lines: list[Answer] = field(default_factory=list)
    change: int = 1
    ended_at: int | None = None
    outcome: Answer = field(default_factory=dict)
    wait: Wait | None = None
    questions: list[Question] = field(default_factory=list)
    finished: tuple[Lease, object] | None = None
    reservation: Reservation | None = None

    @property
    def key(self) -> tuple[str, str]:
        """By what it is found."""
        return self.tenant_id, self.task_id

    @property
    def owner(self) -> Owner:
        """Who created it."""
        return self.contract["owner"]["issuer"], self.contract["owner"]["subject"]

    @property
    def lane(self) -> tuple[str, int]:
        """What a worker must run to take it."""
        return self.contract["workflow"], self.contract["workflow_version"]

    @property
    def handle_ends_at(self) -> int | None:
        """One ttl after its end."""
        return None if self.ended_at is None else self.ended_at + self.contract["ttl_ms"] * MS

    @property
    def holds(self) -> Reservation | None:
        """What it holds of its tenant's budget."""
        return self.reservation if self.reservation and self.reservation.ended is None else None

    @property
    def forfeits_at(self) -> int | None:
        """When it loses what it holds, if nobody takes it over."""
        held = self.holds
        return None if held is None else (self.expires_at or self.ready_at) + held.recovery_ms * MS

    @property
    def contract_bytes(self) -> int:
        """What every answer about it carries."""
        names = ("client_capabilities", "output_schema", "baggage")
        return sum(len(self.contract.get(name, "")) for name in names)

    @property
    def instants(self) -> list[int]:
        """When time does something to it."""
        until = self.wait.until if self.wait and self.state == "WAITING" else None
        times = (
            self.expires_at, self.cancel_at, self.deadline_at, self.abandon_at, until, self.ready_at, self.forfeits_at
        )  # fmt: skip
        return [at for at in times if at is not None] if self.state not in TERMINAL else []

    def ask(self, questions: Sequence[tuple[str, bytes]], now: int, fitting: Sequence[str]) -> None:
        """Under keys of their own; a question whose answer came first is answered, if that fits, else the answer is gone."""
        for name, params in questions:
            times = sum(one.name == name for one in self.questions)
            key = f"{name}#{times + 1}" if times else name
            question = Question(key, name, self.token, "elicitation/create", params, now)
            response = self.early.pop(key, None)
            if response is not None and key in fitting:
                question.state, question.response = "ANSWERED", response
            self.questions.append(question)

    def shown(self, now: int) -> Answer:
        """What everybody may read of it."""
        answer = lean(
            tenant_id=self.tenant_id, task_id=self.task_id, state=self.state, contract=self.contract, priority=self.priority,
            created_at=self.created_at, changed_at=self.changed_at, ended_at=self.ended_at,
            handle_expires_at=self.redriven_at or self.handle_ends_at, read_at=now, change=self.change,
            cancel_requested=self.wished,
            attempts=self.attempts, crashes=self.crashes, retries=self.retries, checkpoints=len(self.checkpoints),
            worker_id=self.worker_id, token=self.token, lease_expires_at=self.expires_at,
            forked_from_task_id=self.forked_from[0], forked_from_checkpoints=self.forked_from[1],
            progress=self.reports[-1] if self.reports else None,
        )  # fmt: skip
        if self.state == "WAITING" and self.wait is not None:
            asked = [
                {"key": one.key, "method": one.method, "params": payload("", one.params), "asked_at": one.asked_at}
                for one in self.questions
                if one.state == "OPEN"
            ]
            kinds: dict[str, Any] = {"TIMER": {}, "SIGNAL": {"name": self.wait.signal_name}, "INPUT": {"requests": asked}}
            answer["wait"] = lean(step=self.wait.step, until=self.wait.until)
            answer["wait"][self.wait.kind.lower()] = kinds[self.wait.kind]
        return answer

    def wake_shown(self, signals: Signals) -> Answer | None:
        """What ended its last wait."""
        wait = self.wait
        if wait is None or wait.wake is None:
            return None
        cause: Answer = {}
        if wait.wake == "SIGNAL":
            signal = signals[self.tenant_id, wait.signal_id or ""]
            cause = {"signal_id": wait.signal_id, "name": signal.name, "payload": signal.payload}
        elif wait.wake == "INPUT":
            asked = [one for one in self.questions if one.token == wait.token]
            answers = [{"key": one.key, "response": payload("", one.response)} for one in asked if one.response is not None]
            cause = lean(keys=[one.key for one in asked], answers=answers)
        return {"step": wait.step, wait.wake.lower(): cause}

    def leased_shown(self, lease: Lease, signals: Signals) -> Answer:
        """What the worker that took it is told."""
        return lean(
            lease=lease._asdict(), expires_at=self.expires_at, contract=self.contract, input=self.input,
            attempts=self.attempts, crashes=self.crashes, retries=self.retries, checkpoints=len(self.checkpoints),
            cancel_requested=self.wished, deadline_at=self.deadline_at, created_at=self.created_at,
            wake=self.wake_shown(signals), early_answers=self.early_given, lease_ms=self.lease_ms,
        )  # fmt: skip

    @property
    def history(self) -> bytes:
        """What happened to it, as `retention.proto` says that it is told."""
        names = ("line", "event", "at", "worker_id", "token", "detail")
        blank = {"line": 0, "worker_id": None, "token": None, "detail": ""}
        told = [json.dumps([(blank | line)[name] for name in names], ensure_ascii=False) + "\n" for line in self.lines]
        return "".join(told).encode()

    def tombstone(self, cursor: int, now: int, principal: str) -> Answer:
        """What stays of it."""
        return lean(
            tenant_id=self.tenant_id, cursor=cursor, task_id=self.task_id, tool=self.contract.get("tool"),
            workflow=self.lane[0], workflow_version=self.lane[1], state=self.state, created_at=self.created_at,
            ended_at=self.ended_at, removed_at=now, removed_by=principal, history_lines=len(self.lines),
            history_digest=hashlib.sha256(self.history).digest(), history=self.history,
        )  # fmt: skip
