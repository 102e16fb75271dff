"""Waits, the questions they ask, and signals, as values."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from store_service.model.payloads import Payload


class WaitKind(StrEnum):
    """What a task waits for."""

    TIMER = "TIMER"
    SIGNAL = "SIGNAL"
    INPUT = "INPUT"


class WakeCause(StrEnum):
    """What ended a wait. A timeout is that of a wait for a signal; questions that ran out of time end with INPUT."""

    TIMER = "TIMER"
    SIGNAL = "SIGNAL"
    INPUT = "INPUT"
    TIMEOUT = "TIMEOUT"


class NewQuestion(Struct, frozen=True, gc=False):
    """A question to be asked under a name."""

    name: str
    method: str
    params: bytes


class Question(Struct, frozen=True, gc=False):
    """A question that is open."""

    key: str
    method: str
    params: bytes
    asked_at: datetime


class Wait(Struct, frozen=True, gc=False):
    """What a waiting task waits for."""

    step: str
    kind: WaitKind
    until: datetime | None
    signal_name: str | None
    questions: tuple[Question, ...]


class Answer(Struct, frozen=True, gc=False):
    """An answer to a question, as JSON."""

    key: str
    response: bytes


class Wake(Struct, frozen=True, kw_only=True, gc=False):
    """What ended a task's last wait. A question that nobody answered in time has None as its response."""

    step: str
    cause: WakeCause
    signal_id: str | None
    signal_name: str | None
    signal: Payload | None
    keys: tuple[str, ...]
    responses: tuple[bytes | None, ...]


class SignalState(StrEnum):
    """Where a signal stands."""

    PENDING = "PENDING"
    CONSUMED = "CONSUMED"
    DEAD_LETTER = "DEAD_LETTER"


class Published(Struct, frozen=True, gc=False):
    """Where a signal stands after it was published."""

    state: SignalState
    replayed: bool


@dataclass(frozen=True, slots=True)
class SignalFacts:
    """What is known of a signal, without its payload."""

    signal_id: str
    task_id: str
    name: str
    state: SignalState
    accepted_at: datetime


@dataclass(frozen=True, slots=True)
class SignalFilter:
    """Which of a tenant's signals are listed."""

    tenant_id: str
    states: tuple[SignalState, ...]
    task_id: str | None
