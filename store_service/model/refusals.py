"""Refusals: the closed set of reasons why the store says no."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum


class Reason(StrEnum):
    """Why an operation was refused. The names are those of `ErrorReason` in `taskstore.v1`, which says what a caller
    does next."""

    INVALID_INPUT = "INVALID_INPUT"
    TASK_NOT_FOUND = "TASK_NOT_FOUND"
    CHECKPOINT_NOT_FOUND = "CHECKPOINT_NOT_FOUND"
    TENANT_NOT_FOUND = "TENANT_NOT_FOUND"
    REQUEST_ID_CONFLICT = "REQUEST_ID_CONFLICT"
    REVISION_CONFLICT = "REVISION_CONFLICT"
    LEASE_LOST = "LEASE_LOST"
    OUTSTANDING_LIMIT = "OUTSTANDING_LIMIT"
    CHECKPOINT_LIMIT = "CHECKPOINT_LIMIT"
    BATCH_FULL = "BATCH_FULL"
    STORAGE_UNAVAILABLE = "STORAGE_UNAVAILABLE"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
    DRAINING = "DRAINING"
    OVERLOADED = "OVERLOADED"
    TOMBSTONE_NOT_FOUND = "TOMBSTONE_NOT_FOUND"
    SIGNAL_NOT_FOUND = "SIGNAL_NOT_FOUND"
    SIGNAL_ID_CONFLICT = "SIGNAL_ID_CONFLICT"
    INPUT_LIMIT = "INPUT_LIMIT"
    SIGNAL_LIMIT = "SIGNAL_LIMIT"
    CREATE_RATE = "CREATE_RATE"
    INPUT_TOO_LARGE = "INPUT_TOO_LARGE"
    BUDGET_NOT_CONFIGURED = "BUDGET_NOT_CONFIGURED"
    BUDGET_DENIED = "BUDGET_DENIED"
    BUDGET_EXCEEDED = "BUDGET_EXCEEDED"
    BUDGET_CONFLICT = "BUDGET_CONFLICT"
    BUDGET_RESERVED = "BUDGET_RESERVED"
    PAUSE_LIMIT = "PAUSE_LIMIT"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    POLICY_UNAVAILABLE = "POLICY_UNAVAILABLE"
    HOLD_NOT_FOUND = "HOLD_NOT_FOUND"
    HOLD_RELEASED = "HOLD_RELEASED"
    EXPORT_CONFLICT = "EXPORT_CONFLICT"
    NOT_EXPORTED = "NOT_EXPORTED"
    NOTHING_TO_PURGE = "NOTHING_TO_PURGE"
    PURGE_NOT_FOUND = "PURGE_NOT_FOUND"
    PURGE_CONFLICT = "PURGE_CONFLICT"
    SECOND_PERSON_REQUIRED = "SECOND_PERSON_REQUIRED"
    TENANT_MOVED = "TENANT_MOVED"


_MESSAGES = {
    Reason.INVALID_INPUT: "the request is not valid",
    Reason.TASK_NOT_FOUND: "no such task",
    Reason.CHECKPOINT_NOT_FOUND: "the task has no such checkpoint",
    Reason.TENANT_NOT_FOUND: "no such tenant",
    Reason.REQUEST_ID_CONFLICT: "the request id was used with other content; use a new one",
    Reason.REVISION_CONFLICT: "the revision is not the next one; load the checkpoints and compare",
    Reason.LEASE_LOST: "the lease no longer allows this; stop the work",
    Reason.OUTSTANDING_LIMIT: "the tenant has as many unfinished tasks as its policy allows; try again later",
    Reason.CHECKPOINT_LIMIT: "the task has as many checkpoints, or bytes of them, as a task may have",
    Reason.BATCH_FULL: "the batch's answer is full; ask for this item again",
    Reason.STORAGE_UNAVAILABLE: "the database cannot be reached; nothing was applied; try again",
    Reason.OUTCOME_UNKNOWN: "the connection to the database was lost; repeat the call with the same ids to learn its outcome",
    Reason.DRAINING: "the server is shutting down; try again",
    Reason.OVERLOADED: "the server has too many calls under way; try again",
    Reason.TOMBSTONE_NOT_FOUND: "no such tombstone",
    Reason.SIGNAL_NOT_FOUND: "no such signal",
    Reason.SIGNAL_ID_CONFLICT: "the signal id was used with other content; use a new one",
    Reason.INPUT_LIMIT: "the task has asked as many questions as a task may ask",
    Reason.CREATE_RATE: "the tenant creates more tasks in a second than its policy allows; try again later",
    Reason.INPUT_TOO_LARGE: "the input is larger than the tenant's policy allows",
    Reason.BUDGET_NOT_CONFIGURED: "the tenant has no budget; run the task without a reservation",
    Reason.BUDGET_DENIED: "what the task may use does not fit into what is left of the tenant's budget; try again later",
    Reason.BUDGET_EXCEEDED: "the task used more than it reserved; all of it was charged; fail the task",
    Reason.BUDGET_CONFLICT: "the numbers do not go with the task's reservation, or its limits with its use; fail the task",
    Reason.BUDGET_RESERVED: "a part of the tenant's budget is reserved; settle first",
    Reason.PAUSE_LIMIT: "the tenant has as many pauses as a tenant may have; resume some, or pause all of its work",
    Reason.SIGNAL_LIMIT: "as many signals wait for the task as may wait; try again later",
    Reason.UNAUTHENTICATED: "the store does not know who calls",
    Reason.PERMISSION_DENIED: "the caller may not do this",
    Reason.POLICY_UNAVAILABLE: "the store cannot read its policy, so that nobody may do this now; try again later",
    Reason.HOLD_NOT_FOUND: "no such hold",
    Reason.HOLD_RELEASED: "another principal ended the hold; list the holds of the task",
    Reason.EXPORT_CONFLICT: "what is confirmed goes further, or is known by another receipt; read how far it goes",
    Reason.NOT_EXPORTED: "no tombstones of the tenant are confirmed as kept elsewhere; export them first",
    Reason.NOTHING_TO_PURGE: "no tombstone is kept elsewhere, old enough, not held, and in no other purge",
    Reason.PURGE_NOT_FOUND: "no such purge",
    Reason.PURGE_CONFLICT: "the purge does not stand where this may be done to it; list the purges",
    Reason.SECOND_PERSON_REQUIRED: "who prepared a purge cannot approve it; another must",
    Reason.TENANT_MOVED: "the tenant is being moved to another cell, or was; nothing was applied; ask where it lives",
}

_RETRY_AFTER_MS = {
    Reason.OUTSTANDING_LIMIT: 1_000,
    Reason.SIGNAL_LIMIT: 1_000,
    Reason.CREATE_RATE: 1_000,
    Reason.BUDGET_DENIED: 5_000,
    Reason.STORAGE_UNAVAILABLE: 500,
    Reason.POLICY_UNAVAILABLE: 5_000,
    Reason.OUTCOME_UNKNOWN: 100,
    Reason.DRAINING: 100,
    Reason.OVERLOADED: 200,
    Reason.TENANT_MOVED: 1_000,
}


class Refusal(Exception):  # noqa: N818 (a refusal is an answer, not an error of ours)
    """An operation, or one item of a batch, was refused. Batches return it as an item's outcome; single calls raise it."""

    def __init__(self, reason: Reason, message: str | None = None) -> None:
        super().__init__(message or _MESSAGES[reason])
        self.reason = reason
        self.message = message or _MESSAGES[reason]

    @property
    def retry_after_ms(self) -> int | None:
        """How long to wait before the same call may do better; None where waiting does not help."""
        return _RETRY_AFTER_MS.get(self.reason)


@contextmanager
def reading_back() -> Iterator[None]:
    """Within it, what a write is answered with is read: a read that is refused does not say that nothing was applied."""
    try:
        yield
    except Refusal:
        raise Refusal(Reason.OUTCOME_UNKNOWN) from None


def invalid(field: str, rule: str) -> Refusal:
    """The refusal of one field: `invalid("tenant_id", "must be ...")`."""
    return Refusal(Reason.INVALID_INPUT, f"{field} {rule}")
