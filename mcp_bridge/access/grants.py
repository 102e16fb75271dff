"""Who may do what: with a tool, and with the tasks that come of it. Source: contract, 7, 10.18, 10.19; checklist A12, T4.

A grant names scopes, of which a caller must have every one, and groups and principals, of which it must be in one. What no
grant says is denied.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import reduce
from typing import Final

from mcp_bridge.access.callers import Caller
from mcp_bridge.wire.questions import Question


class Action(StrEnum):
    """What is done with a task that exists."""

    READ = "read"
    ANSWER = "answer"
    CANCEL = "cancel"


class Verdict(Enum):
    """What a caller is told."""

    DENIED = 0
    LACKS_SCOPES = 1
    """Nothing but scopes is missing, which the caller may be able to get."""
    GRANTED = 2


@dataclass(frozen=True, slots=True)
class Grant:
    """Who may do one thing. One that asks for nothing is for every caller of its tenant."""

    scopes: tuple[str, ...] = ()
    groups: frozenset[str] = frozenset()
    principals: frozenset[tuple[str, str]] = frozenset()
    """Issuer and subject of each."""
    implied_by: tuple[frozenset[str], ...] = ()
    """For each of the scopes, all that are as good as it, itself included."""

    def judge(self, caller: Caller) -> Verdict:
        """Whether the caller may."""
        is_for_some = self.groups or self.principals
        if is_for_some and self.groups.isdisjoint(caller.groups) and (caller.issuer, caller.subject) not in self.principals:
            return Verdict.DENIED
        for one in self.implied_by:
            if caller.scopes.isdisjoint(one):
                return Verdict.LACKS_SCOPES
        return Verdict.GRANTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Grants:
    """Who may do what with one tool, and with its tasks. None is nobody."""

    call: Grant | None = None
    read: Grant | None = None
    """What the owner of a task needs to read it; so with the next two."""
    answer: Grant | None = None
    cancel: Grant | None = None
    read_any: Grant | None = None
    """Who may read everybody's tasks."""
    approve: Grant | None = None
    """Whose the questions are that are marked as approvals: they may read everybody's tasks, and answer those."""

    def judge_call(self, caller: Caller) -> Verdict:
        """Whether the caller may call the tool."""
        return Verdict.GRANTED if caller.is_development else _judge(self.call, caller)

    def judge(self, caller: Caller, action: Action, *, is_own: bool) -> Verdict:
        """Whether the caller may do this with a task, its own or another's."""
        if caller.is_development:
            return Verdict.GRANTED if is_own else Verdict.DENIED
        verdict = _judge(self.own(action), caller) if is_own else Verdict.DENIED
        if verdict is Verdict.GRANTED or action is Action.CANCEL:
            return verdict
        others = (self.read_any, self.approve) if action is Action.READ else (self.approve,)
        if any(_judge(grant, caller) is Verdict.GRANTED for grant in others):
            return Verdict.GRANTED
        return verdict

    def own(self, action: Action) -> Grant | None:
        """What the owner of a task needs for this."""
        match action:
            case Action.READ:
                return self.read
            case Action.ANSWER:
                return self.answer
            case Action.CANCEL:
                return self.cancel

    def asked(self, caller: Caller, questions: Iterable[Question], *, is_own: bool) -> tuple[Question, ...]:
        """Those of a task's open questions that are the caller's to answer. Approvals are those of their role, if there is
        one; all else is asked of the task's owner."""
        mine = is_own and (caller.is_development or _judge(self.answer, caller) is Verdict.GRANTED)
        approves = mine if self.approve is None or caller.is_development else _judge(self.approve, caller) is Verdict.GRANTED
        return tuple(one for one in questions if (approves if one.is_approval else mine))


OWNERS: Final = Grants(read=Grant(), answer=Grant(), cancel=Grant())
"""Owners may do everything with their tasks, and nobody may make any."""


def implied_by(hierarchy: Mapping[str, Iterable[str]]) -> Mapping[str, frozenset[str]]:
    """For each scope that another implies, directly or not, all those that are as good as it, itself included."""
    above: dict[str, set[str]] = {}
    for broad, narrow in hierarchy.items():
        for one in narrow:
            above.setdefault(one, {one}).add(broad)
    found: dict[str, frozenset[str]] = {}
    for scope in above:
        known: frozenset[str] = frozenset()
        wider = frozenset((scope,))
        while wider != known:
            known = wider
            wider = reduce(lambda all_, one: all_ | above.get(one, set()), known, known)
        found[scope] = known
    return found


def _judge(grant: Grant | None, caller: Caller) -> Verdict:
    return Verdict.DENIED if grant is None else grant.judge(caller)
