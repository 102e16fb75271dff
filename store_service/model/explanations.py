"""Why a task is where it is: from what its rows say to one cause and one sentence."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from store_service.model.states import TaskState
from store_service.model.waits import WaitKind

UNHEARD: Final = timedelta(seconds=60)
"""After how long without a question for work nobody is taken to be there. Source: `TASK_CAUSE_NO_WORKER`."""
MOST_AHEAD: Final = 1_000
"""How many tasks that come first are counted."""


class Cause(StrEnum):
    """Why a task is where it is. The names are those of `TaskCause` in `taskstore.v1`."""

    TURN = "TURN"
    NO_WORKER = "NO_WORKER"
    LEASE_LIMIT = "LEASE_LIMIT"
    PAUSED = "PAUSED"
    MOVING = "MOVING"
    RESTING = "RESTING"
    RUNNING = "RUNNING"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    CANCELLING = "CANCELLING"
    TIMER = "TIMER"
    SIGNAL = "SIGNAL"
    INPUT = "INPUT"
    ENDED = "ENDED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What the rows of a task, and of what it waits behind, say at `read_at`."""

    read_at: datetime
    state: TaskState
    workflow: str
    version: int
    since: datetime
    """When the last thing happened to it."""
    ready: bool
    ready_at: datetime
    retries: int
    crashes: int
    worker_id: str | None
    expires_at: datetime | None
    cancel_requested_at: datetime | None
    cancel_at: datetime | None
    failed_for: str | None
    ended_at: datetime | None
    leased: int
    max_leased: int
    paused_by: str | None
    paused_at: datetime | None
    pause_reason: str | None
    moving_since: datetime | None
    """Since when its tenant is about to move to another cell."""
    asked_at: datetime | None
    """When a worker last asked for its workflow and version."""
    ahead: int
    wait_kind: WaitKind | None
    wait_until: datetime | None
    signal_name: str | None
    questions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a task is where it is, since when, and until when at the latest."""

    cause: Cause
    text: str
    since: datetime
    until: datetime | None = None
    worker_id: str | None = None


def explain(it: Situation) -> Explanation:
    """The cause that has to go first before the task moves on."""
    if it.state is TaskState.QUEUED:
        return _explain_queued(it)
    if it.state is TaskState.LEASED:
        return _explain_leased(it)
    if it.state is TaskState.WAITING:
        return _explain_waiting(it)
    ended_at = it.ended_at or it.since
    ends = {
        TaskState.COMPLETED: "It completed",
        TaskState.CANCELLED: "It was cancelled",
        TaskState.FAILED: {
            "CRASH_LIMIT": f"It failed, as {it.crashes} workers were lost with it,",
            "EXECUTION_DEADLINE": "It failed, as it did not end before its execution deadline,",
        }.get(it.failed_for or "", "It failed"),
    }
    return Explanation(Cause.ENDED, f"{ends[it.state]} at {_time(ended_at)}.", ended_at)


def _explain_queued(it: Situation) -> Explanation:
    name = f"{it.workflow} version {it.version}"
    if not it.ready:
        why = f"retry {it.retries} of it comes then" if it.retries else "a worker gave it back"
        return Explanation(Cause.RESTING, f"It rests until {_time(it.ready_at)}: {why}.", it.since, it.ready_at)
    if it.moving_since is not None:
        text = (
            f"Its tenant moves to another cell since {_time(it.moving_since)}: nothing new of it is begun before it is there."
        )
        return Explanation(Cause.MOVING, text, it.moving_since)
    if it.paused_at is not None:
        reason = f": {it.pause_reason}" if it.pause_reason else ""
        return Explanation(
            Cause.PAUSED, f"{it.paused_by} holds its work back since {_time(it.paused_at)}{reason}.", it.paused_at
        )
    if it.leased >= it.max_leased:
        text = f"Its tenant has {it.leased} tasks at work and may have {it.max_leased}; it comes when one of them is done."
        return Explanation(Cause.LEASE_LIMIT, text, it.ready_at)
    if it.asked_at is None:
        return Explanation(Cause.NO_WORKER, f"No worker asks for {name}, nor did one during the last day.", it.ready_at)
    if it.read_at - it.asked_at > UNHEARD:
        text = f"No worker asked for {name} since {_time(it.asked_at)}: none is there, or all have as much as they can hold."
        return Explanation(Cause.NO_WORKER, text, max(it.asked_at, it.ready_at))
    ahead = f"at least {MOST_AHEAD}" if it.ahead >= MOST_AHEAD else str(it.ahead)
    return Explanation(Cause.TURN, f"It waits for its turn; {ahead} of its tenant's {name} come first.", it.ready_at)


def _explain_leased(it: Situation) -> Explanation:
    if it.expires_at is not None and it.expires_at <= it.read_at:
        text = f"Its worker was not heard of before its lease ran out at {_time(it.expires_at)}; the next that asks takes over."
        return Explanation(Cause.LEASE_EXPIRED, text, it.expires_at, worker_id=it.worker_id)
    if it.cancel_requested_at is not None:
        text = f"Its worker was asked to stop at {_time(it.cancel_requested_at)}, and has until {_time(it.cancel_at)}."
        return Explanation(Cause.CANCELLING, text, it.cancel_requested_at, it.cancel_at, it.worker_id)
    text = f"A worker is at it since {_time(it.since)}, with a lease until {_time(it.expires_at)}."
    return Explanation(Cause.RUNNING, text, it.since, it.expires_at, it.worker_id)


def _explain_waiting(it: Situation) -> Explanation:
    until = f", at the longest until {_time(it.wait_until)}" if it.wait_until is not None else ""
    match it.wait_kind:
        case WaitKind.TIMER:
            return Explanation(Cause.TIMER, f"It sleeps until {_time(it.wait_until)}.", it.since, it.wait_until)
        case WaitKind.SIGNAL:
            text = f"It waits for the signal {it.signal_name} since {_time(it.since)}{until}."
            return Explanation(Cause.SIGNAL, text, it.since, it.wait_until)
        case _:
            open_ones = ", ".join(it.questions)
            text = f"It waits for answers to {open_ones} since {_time(it.since)}{until}."
            return Explanation(Cause.INPUT, text, it.since, it.wait_until)


def _time(value: datetime | None) -> str:
    return "" if value is None else value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
