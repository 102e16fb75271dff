"""What the model is made of: its rows, the bounds of arguments, fields as they travel. Source: store contract, section 1."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

Owner = tuple[str, str]
Answer = dict[str, Any]

MS: Final = 1_000
MIB: Final = 1024 * 1024
DAY_MS: Final = 86_400_000
YEARS: Final = 366 * DAY_MS
JSON: Final = "application/json"
TERMINAL: Final = frozenset({"COMPLETED", "FAILED", "CANCELLED"})
CODES: Final = {
    "INVALID_INPUT": "INVALID_ARGUMENT", "TASK_NOT_FOUND": "NOT_FOUND", "CHECKPOINT_NOT_FOUND": "NOT_FOUND",
    "TENANT_NOT_FOUND": "NOT_FOUND", "TOMBSTONE_NOT_FOUND": "NOT_FOUND", "SIGNAL_NOT_FOUND": "NOT_FOUND",
    "REQUEST_ID_CONFLICT": "ALREADY_EXISTS", "SIGNAL_ID_CONFLICT": "ALREADY_EXISTS", "REVISION_CONFLICT": "ABORTED",
    "LEASE_LOST": "FAILED_PRECONDITION", "OUTSTANDING_LIMIT": "RESOURCE_EXHAUSTED", "CREATE_RATE": "RESOURCE_EXHAUSTED",
    "INPUT_TOO_LARGE": "INVALID_ARGUMENT",
}  # fmt: skip
"""Reasons and the gRPC codes that go with them."""


class Refused(Exception):  # noqa: N818 (an answer, as the store's own)
    """The operation was refused for this reason."""


class Lease(NamedTuple):
    """A worker's right to act on a task, as it presents it."""

    tenant_id: str
    task_id: str
    worker_id: str
    token: int
    epoch: int


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

    @property
    def policy(self) -> Answer:
        """What it may use."""
        return lean(
            max_outstanding=self.max_outstanding, max_leased=self.max_leased, retention_ms=self.retention_ms,
            max_input_bytes=self.max_input_bytes, max_creates_per_second=self.max_creates_per_second,
        )  # fmt: skip

    def refill(self, now: int) -> None:
        """What it may create grows with the time, up to what it may create in a second."""
        most = self.max_creates_per_second
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


@dataclass(slots=True)
class Task:
    """One task, everything it has."""

    tenant_id: str
    task_id: str
    request_id: str
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
    early: dict[str, bytes] = field(default_factory=dict)
    state: str = "QUEUED"
    ready: bool = True
    worker_id: str = ""
    token: int = 0
    expires_at: int | None = None
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
    def instants(self) -> list[int]:
        """When time does something to it."""
        until = self.wait.until if self.wait and self.state == "WAITING" else None
        times = (self.expires_at, self.cancel_at, self.deadline_at, self.abandon_at, until, self.ready_at)
        return [at for at in times if at is not None] if self.state not in TERMINAL else []

    def ask(self, questions: Sequence[tuple[str, bytes]], now: int) -> None:
        """Under keys of their own; a question whose answer came first is answered."""
        for name, params in questions:
            times = sum(one.name == name for one in self.questions)
            key = f"{name}#{times + 1}" if times else name
            question = Question(key, name, self.token, "elicitation/create", params, now)
            if key in self.early:
                question.state, question.response = "ANSWERED", self.early.pop(key)
            self.questions.append(question)

    def shown(self, now: int) -> Answer:
        """What everybody may read of it."""
        answer = lean(
            tenant_id=self.tenant_id, task_id=self.task_id, state=self.state, contract=self.contract, priority=self.priority,
            created_at=self.created_at, changed_at=self.changed_at, ended_at=self.ended_at,
            handle_expires_at=self.handle_ends_at, read_at=now, change=self.change, cancel_requested=self.wished,
            attempts=self.attempts, crashes=self.crashes, retries=self.retries, checkpoints=len(self.checkpoints),
            worker_id=self.worker_id, token=self.token, lease_expires_at=self.expires_at,
            forked_from_task_id=self.forked_from[0], forked_from_checkpoints=self.forked_from[1],
            progress=self.reports[-1] if self.reports else None,
        )  # fmt: skip
        wait = self.wait
        if self.state == "WAITING" and wait is not None:
            open_ = [one for one in self.questions if one.state == "OPEN"]
            asked = [
                {"key": one.key, "method": one.method, "params": payload("", one.params), "asked_at": one.asked_at}
                for one in open_
            ]
            kind = {"TIMER": {}, "SIGNAL": {"name": wait.signal_name}, "INPUT": {"requests": asked}}[wait.kind]
            answer["wait"] = lean(step=wait.step, until=wait.until) | {wait.kind.lower(): kind}
        return answer

    def wake_shown(self, signals: "Mapping[tuple[str, str], Signal]") -> Answer | None:
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


def check(holds: bool) -> None:
    """An argument keeps its rule."""
    if not holds:
        raise Refused("INVALID_INPUT")


def check_choice(holds: bool) -> None:
    """The store chose something that it was free to choose."""
    assert holds, "the store made a choice that the contract does not leave to it"


def lean(**fields: Any) -> Answer:
    """Fields as they travel: what is empty is left out."""
    return {name: value for name, value in fields.items() if value is not None and value not in ("", 0, [])}


def payload(media_type: str, data: bytes) -> Answer:
    """Bytes and what they are."""
    return lean(media_type=media_type or JSON) | ({"data": data} if data else {})


def is_name(value: str) -> bool:
    """An id of a tenant or worker, or a signal's name."""
    return re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", value) is not None


def is_text(value: str, most_bytes: int, *, blank: bool = False) -> bool:
    """A bounded text."""
    return len(value.encode()) <= most_bytes and "\0" not in value and (blank or bool(value.strip()))


def is_owner(owner: Owner) -> bool:
    """Both parts given."""
    return all(is_text(part, 512) for part in owner)


def is_id(value: str) -> bool:
    """A task's id in its canonical form."""
    return re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", value) is not None


def is_lease(lease: Lease) -> bool:
    """Well-formed, whatever it is worth."""
    return is_name(lease.tenant_id) and is_id(lease.task_id) and is_name(lease.worker_id)


def is_payload(media_type: str, data: bytes, most_bytes: int) -> bool:
    """A bounded payload, well-formed where it is JSON."""
    return len(data) <= most_bytes and len(media_type.encode()) <= 128 and (media_type not in ("", JSON) or is_json(data))


def is_json(data: bytes) -> bool:
    """One value in UTF-8, at most 64 levels deep, its numbers finite."""

    def refuse(_: str) -> None:
        raise ValueError("no JSON number")

    try:
        parse: Callable[..., Any] = json.loads
        return _depth(parse(data.decode(), parse_constant=refuse)) <= 64
    except ValueError:
        return False


def _depth(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)
