"""Which operations are raced, and by which methods of the API they are called. No method is left out."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.interleaving import operations as run
from tests.interleaving.operations import Target
from tests.interleaving.stage import Session


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An operation, the states of a task in which it has something to do, and what it does to its tenant's counters."""

    name: str
    run: Callable[[Session, Target], Awaitable[Any]]
    scenes: tuple[str, ...]
    admits: bool = False
    ends: bool = False
    takes: bool = False
    frees: bool = False
    skips: bool = False
    """Passes over what others hold, and comes again."""


OPERATIONS: Final = {
    one.name: one
    for one in (
        Operation(name="create", run=run.create, scenes=("absent", "nobody"), admits=True),
        Operation(name="claim", run=run.claim, scenes=("queued",), takes=True, skips=True),
        Operation(name="heartbeat", run=run.heartbeat, scenes=("leased",)),
        Operation(name="checkpoint", run=run.checkpoint, scenes=("leased",)),
        Operation(name="complete", run=run.complete, scenes=("leased",), ends=True, frees=True),
        Operation(name="suspend_signal", run=run.suspend_signal, scenes=("leased", "buffered"), frees=True),
        Operation(name="suspend_inputs", run=run.suspend_inputs, scenes=("leased",), frees=True),
        Operation(name="publish", run=run.publish, scenes=("signal",)),
        Operation(name="answer", run=run.answer, scenes=("input",)),
        Operation(name="cancel", run=run.cancel, scenes=("queued", "leased"), ends=True),
        Operation(name="fork", run=run.fork, scenes=("leased",), admits=True),
        Operation(name="promote", run=run.promote, scenes=("expired", "lapsed"), frees=True, skips=True),
        Operation(name="remove", run=run.remove, scenes=("ended",), skips=True),
        Operation(name="place_hold", run=run.place_hold, scenes=("ended", "approved", "leased")),
        Operation(name="prepare", run=run.prepare, scenes=("exported_stone",)),
        Operation(name="execute", run=run.execute, scenes=("approved",)),
        Operation(name="set_policy", run=run.set_policy, scenes=("queued",)),
        Operation(name="first_pass", run=run.first_pass, scenes=("queued",), takes=True, skips=True),
        Operation(name="claim_again", run=run.claim_again, scenes=("leased",), takes=True, skips=True),
        Operation(name="report", run=run.report, scenes=("leased",)),
        Operation(name="fail", run=run.fail, scenes=("leased",), ends=True, frees=True),
        Operation(name="retry", run=run.retry, scenes=("leased",), frees=True),
        Operation(name="release", run=run.release, scenes=("leased",), frees=True),
        Operation(name="suspend_timer", run=run.suspend_timer, scenes=("leased",), frees=True),
        Operation(name="confirm_cancel", run=run.confirm_cancel, scenes=("wished",), ends=True, frees=True),
        Operation(name="force_cancel", run=run.force_cancel, scenes=("leased", "input", "reserved"), ends=True, frees=True),
        Operation(name="attach", run=run.attach, scenes=("leased", "expired")),
        Operation(name="compact", run=run.compact, scenes=("dead_letter", "woken"), skips=True),
        Operation(name="reserve", run=run.reserve, scenes=("budgeted", "reserved")),
        Operation(name="settle", run=run.settle, scenes=("reserved",)),
        Operation(name="set_budget", run=run.set_budget, scenes=("budgeted", "leased")),
        Operation(name="remove_budget", run=run.remove_budget, scenes=("budgeted",)),
        Operation(name="confirm_export", run=run.confirm_export, scenes=("budgeted",)),
        Operation(name="compact_facts", run=run.compact_facts, scenes=("exported",)),
        Operation(name="meter", run=run.meter, scenes=("budgeted",), skips=True),
        Operation(name="pause", run=run.pause, scenes=("queued", "nobody")),
        Operation(name="resume", run=run.resume, scenes=("paused",)),
        Operation(name="redrive", run=run.redrive, scenes=("failed",), admits=True),
        Operation(name="claim_cleanup", run=run.claim_cleanup, scenes=("queued", "unclean")),
        Operation(name="heartbeat_cleanup", run=run.heartbeat_cleanup, scenes=("ended",)),
        Operation(name="release_cleanup", run=run.release_cleanup, scenes=("ended",)),
        Operation(name="release_hold", run=run.release_hold, scenes=("held",)),
        Operation(name="export", run=run.export, scenes=("removed",)),
        Operation(name="claim_purge", run=run.claim_purge, scenes=("prepared",)),
        Operation(name="approve", run=run.approve, scenes=("prepared",)),
        Operation(name="reject", run=run.reject, scenes=("prepared",)),
    )
}

ALWAYS: Final = frozenset(tuple(OPERATIONS)[:17])
"""Those that the contract names, of which CI races more."""

TIME: Final = frozenset({"promote", "meter"})
"""What no method calls: what time does, and the figures."""

WRITES: Final = {
    "CreateTask": ("create",),
    "CreateTasks": ("create",),
    "CancelTask": ("cancel", "force_cancel"),
    "AttachTask": ("attach",),
    "AnswerInputs": ("answer",),
    "PublishSignal": ("publish",),
    "ForkTask": ("fork",),
    "LeaseTasks": ("first_pass", "claim", "claim_again"),
    "HeartbeatTask": ("heartbeat",),
    "HeartbeatTasks": ("heartbeat",),
    "ReportProgress": ("report",),
    "AppendCheckpoint": ("checkpoint",),
    "AppendCheckpoints": ("checkpoint",),
    "CompleteTask": ("complete",),
    "CompleteTasks": ("complete",),
    "CompleteAndLeaseTasks": ("complete", "first_pass", "claim"),
    "FailTask": ("fail", "retry"),
    "FailTasks": ("fail", "retry"),
    "ReleaseTask": ("release",),
    "ReleaseTasks": ("release",),
    "SuspendTask": ("suspend_timer", "suspend_signal", "suspend_inputs"),
    "ConfirmCancel": ("confirm_cancel",),
    "ReserveBudget": ("reserve",),
    "SettleBudget": ("settle",),
    "SetTenantPolicy": ("set_policy",),
    "SetBudgetPolicy": ("set_budget",),
    "PauseWork": ("pause",),
    "ResumeWork": ("resume",),
    "RedriveTasks": ("redrive",),
    "RemoveBudgetPolicy": ("remove_budget",),
    "ConfirmBudgetExport": ("confirm_export",),
    "CompactBudgetFacts": ("compact_facts",),
    "RemoveTasks": ("remove",),
    "ClaimCleanup": ("claim_cleanup",),
    "HeartbeatCleanup": ("heartbeat_cleanup",),
    "ReleaseCleanup": ("release_cleanup",),
    "PlaceHold": ("place_hold",),
    "ReleaseHold": ("release_hold",),
    "ConfirmExport": ("export",),
    "PreparePurge": ("prepare",),
    "ClaimPurge": ("claim_purge",),
    "ApprovePurge": ("approve",),
    "RejectPurge": ("reject",),
    "ExecutePurge": ("execute",),
    "CompactSignals": ("compact",),
}
"""The operations of each method that writes."""
