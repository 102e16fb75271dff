"""Which tools there are for whom, and how each runs. Source: contract, section 4."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any, Final

from jsonschema_rs import Draft202012Validator
from taskstore.v1 import types_pb2

from mcp_bridge.access.callers import Caller
from mcp_bridge.access.grants import OWNERS, Action, Grant, Grants, Verdict
from mcp_bridge.access.limits import TenantLimits
from mcp_bridge.wire.failures import insufficient_scope, task_not_found
from mcp_bridge.wire.questions import Question

_LIMITS: Final = TenantLimits()
_ERRORS_NAMED: Final = 5
_ERROR_CHARACTERS: Final = 300
_SMALL_BYTES: Final = 4096
LONGEST_POLL_MS: Final = 30_000
"""For a task whose tool has no route any more."""
DEFAULT_CELL: Final = "default"
"""In which tenants live that are in no other: the store of the settings."""


class TaskMode(StrEnum):
    """How a tool may run as a task."""

    REQUIRED = "required"
    OPTIONAL = "optional"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One tool of one tenant: the definition it is bound to, and its policies."""

    tool: str
    description: bytes
    """How `tools/list` shows it, as JSON."""
    legacy_description: bytes
    """How earlier clients are shown it; empty for a tool that needs Tasks or asks, which they are not."""
    workflow: str
    workflow_version: int
    task: TaskMode
    arguments: "Arguments"
    output_schema: bytes
    requires: tuple[str, ...]
    preflight: tuple[Question, ...]
    """What is asked before the work begins."""
    priority: int
    ttl_ms: int
    poll_interval_ms: int
    longest_poll_ms: int
    """The longest interval between polls that is asked for, however long nothing changes."""
    inline_wait_ms: int
    call_timeout_ms: int
    answer_within_ms: int
    max_detaches: int
    disconnect_grace_ms: int
    continues_on_disconnect: bool
    execution_deadline_ms: int
    grants: Grants
    advertise: bool
    """Whether those who lack nothing but scopes are told of the tool, and of the scopes."""

    def judge(self, caller: Caller) -> Verdict:
        """Whether the caller may call the tool; those who may ask for scopes are told so only if it is advertised."""
        return _told(self.grants.judge_call(caller), self)


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a tool takes."""

    validator: Draft202012Validator
    mirrored: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """`Mcp-Param-<X>`: X to the path of the property it repeats."""

    def faults(self, arguments: Mapping[str, Any], *, size_bytes: int) -> list[str]:
        """What is wrong with `arguments`, each fault with its path; none when they are valid.

        Of large arguments only the first fault is told: to find all takes far longer than to find one.
        """
        if self.validator.is_valid(arguments):
            return []
        found = self.validator.iter_errors(arguments) if size_bytes <= _SMALL_BYTES else None
        if found is not None:
            return [_fault(error.instance_path, error.message) for error in islice(found, _ERRORS_NAMED)]
        try:
            self.validator.validate(arguments)
        except ValueError as error:  # jsonschema_rs.ValidationError
            return [_fault(getattr(error, "instance_path", ()), getattr(error, "message", ""))]
        return []


@dataclass(frozen=True, slots=True)
class Routes:
    """The routes of every tenant, in the order of the route file."""

    tenants: Mapping[str, Mapping[str, Route]]
    grants: Mapping[str, Grants] = field(default_factory=dict)
    """Those of each tenant, for tasks whose tool has no route any more."""
    limits: Mapping[str, TenantLimits] = field(default_factory=dict)
    cells: Mapping[str, str] = field(default_factory=dict)
    """Where the stores of each cell are, but for the default one."""
    tenant_cells: Mapping[str, str] = field(default_factory=dict)
    """Of each tenant that lives in another than the default one."""
    _for_others: Mapping[str, frozenset[Grant]] = field(init=False)

    def __post_init__(self) -> None:
        for_others = {
            tenant: frozenset(
                grant for route in routes.values() for grant in (route.grants.read_any, route.grants.approve) if grant
            )
            for tenant, routes in self.tenants.items()
        }
        object.__setattr__(self, "_for_others", for_others)

    def limits_of(self, tenant: str) -> TenantLimits:
        """How much the tenant and each of its callers may ask for."""
        return self.limits.get(tenant, _LIMITS)

    def cell_of(self, tenant: str) -> str:
        """The cell that the tenant lives in."""
        return self.tenant_cells.get(tenant, DEFAULT_CELL)

    def used_cells(self) -> frozenset[str]:
        """The cells that tenants live in."""
        return frozenset(map(self.cell_of, self.tenants))

    def granted(self, caller: Caller) -> Sequence[Route]:
        """The tools that the caller may call, and those that it may ask the scopes for."""
        routes = self.tenants.get(caller.tenant, {}).values()
        return tuple(route for route in routes if route.judge(caller) is not Verdict.DENIED)

    def find(self, caller: Caller, tool: str) -> Route | None:
        """The route of a tool that the caller may call. Raises Failure 403 for one that it may ask the scopes for."""
        route = self.tenants.get(caller.tenant, {}).get(tool)
        verdict = Verdict.DENIED if route is None else route.judge(caller)
        if route is not None and verdict is Verdict.LACKS_SCOPES and route.grants.call is not None:
            raise insufficient_scope(route.grants.call.scopes)
        return route if verdict is Verdict.GRANTED else None

    def longest_poll_ms(self, task: types_pb2.Task) -> int:
        """The longest interval between polls of a task; that of its tool's route, while there is one."""
        route = self.tenants.get(task.tenant_id, {}).get(task.contract.tool)
        return LONGEST_POLL_MS if route is None else route.longest_poll_ms

    def may(self, caller: Caller, action: Action, task: types_pb2.Task) -> bool:
        """Whether the caller may do this with this task, by what the routes say now.

        It is asked again before each thing that is done or shown: at every request, and at every snapshot of a stream.
        Whether the caller's token has ended is not asked here, see `Caller.is_expired`.
        """
        grants = self._grants(caller, task)
        return grants.judge(caller, action, is_own=_is_own(caller, task)) is Verdict.GRANTED

    def require(self, caller: Caller, action: Action, task: types_pb2.Task) -> None:
        """Raises Failure unless the caller may do this with this task: -32602, as if there were none; or 403 to an owner
        who may ask the scopes for it."""
        if self.may(caller, action, task):
            return
        route, grant = self._route(caller, task), self._grants(caller, task).own(action)
        if route is None or grant is None or not _is_own(caller, task) or _told(grant.judge(caller), route) is Verdict.DENIED:
            raise task_not_found()
        raise insufficient_scope(grant.scopes)

    def asked(self, caller: Caller, task: types_pb2.Task, questions: Sequence[Question]) -> tuple[Question, ...]:
        """Those of the task's open questions that are the caller's to answer."""
        if not questions:
            return ()
        return self._grants(caller, task).asked(caller, questions, is_own=_is_own(caller, task))

    def reads_others(self, caller: Caller) -> bool:
        """Whether the caller may read tasks of others. It depends on no task, so that nothing is told by how long it takes."""
        grants = self._for_others.get(caller.tenant)
        if not grants or caller.is_development:
            return False
        return any(grant.judge(caller) is Verdict.GRANTED for grant in grants)

    def _route(self, caller: Caller, task: types_pb2.Task) -> Route | None:
        return self.tenants.get(caller.tenant, {}).get(task.contract.tool)

    def _grants(self, caller: Caller, task: types_pb2.Task) -> Grants:
        """What is said about a task of the caller's tenant; nothing about any other."""
        if task.tenant_id != caller.tenant:
            return Grants()
        route = self._route(caller, task)
        return route.grants if route is not None else self.grants.get(caller.tenant, OWNERS)


def _is_own(caller: Caller, task: types_pb2.Task) -> bool:
    owner = task.contract.owner
    return task.tenant_id == caller.tenant and owner.subject == caller.subject and owner.issuer == caller.issuer


def _told(verdict: Verdict, route: Route) -> Verdict:
    return Verdict.DENIED if verdict is Verdict.LACKS_SCOPES and not route.advertise else verdict


class CurrentRoutes:
    """The routes that hold for requests that begin now. A request takes them once, and keeps to what it took."""

    def __init__(self, routes: Routes) -> None:
        self.now = routes

    def is_tenant(self, tenant: str) -> bool:
        """Whether the tenant is served."""
        return tenant in self.now.tenants

    def limits_of(self, tenant: str) -> TenantLimits:
        """How much the tenant's callers may ask for."""
        return self.now.limits_of(tenant)


def _fault(path: Sequence[str | int], message: str) -> str:
    place = "arguments" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    text = f"{place}: {message}"
    return text if len(text) <= _ERROR_CHARACTERS else text[:_ERROR_CHARACTERS] + "…"
