"""The states of a task and the one table of what leads from where to where."""

from enum import StrEnum
from typing import Final


class TaskState(StrEnum):
    """Where a task stands."""

    QUEUED = "QUEUED"
    LEASED = "LEASED"
    WAITING = "WAITING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class Command(StrEnum):
    """What may happen to a task that exists."""

    CLAIM = "CLAIM"
    COMPLETE = "COMPLETE"
    FAIL = "FAIL"
    RETRY = "RETRY"
    RELEASE = "RELEASE"
    SUSPEND = "SUSPEND"
    WAKE = "WAKE"
    CONFIRM_CANCEL = "CONFIRM_CANCEL"
    CANCEL = "CANCEL"
    EXPIRE_LEASE = "EXPIRE_LEASE"
    EXPIRE_DEADLINE = "EXPIRE_DEADLINE"
    REDRIVE = "REDRIVE"


_LIVE = frozenset({TaskState.QUEUED, TaskState.LEASED, TaskState.WAITING})
_LEASED = frozenset({TaskState.LEASED})

TRANSITIONS: Final[dict[Command, tuple[frozenset[TaskState], TaskState]]] = {
    Command.CLAIM: (frozenset({TaskState.QUEUED}), TaskState.LEASED),
    Command.COMPLETE: (_LEASED, TaskState.COMPLETED),
    Command.FAIL: (_LEASED, TaskState.FAILED),
    Command.RETRY: (_LEASED, TaskState.QUEUED),
    Command.RELEASE: (_LEASED, TaskState.QUEUED),
    Command.SUSPEND: (_LEASED, TaskState.WAITING),
    Command.WAKE: (frozenset({TaskState.WAITING}), TaskState.QUEUED),
    Command.CONFIRM_CANCEL: (_LEASED, TaskState.CANCELLED),
    Command.CANCEL: (_LIVE, TaskState.CANCELLED),
    Command.EXPIRE_LEASE: (_LEASED, TaskState.QUEUED),
    Command.EXPIRE_DEADLINE: (_LIVE, TaskState.FAILED),
    Command.REDRIVE: (frozenset({TaskState.FAILED}), TaskState.QUEUED),
}
"""For each command the states it may leave and the state it leads to. Of those that end a task, an operator's redrive alone
leaves one."""

TERMINAL: Final = frozenset(TaskState) - _LIVE
"""The states in which a task has ended."""
