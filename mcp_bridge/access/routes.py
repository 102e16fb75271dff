"""Which tools there are for whom, and how each runs. Source: contract, section 4."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any, Final

from jsonschema_rs import Draft202012Validator
from taskstore.v1 import types_pb2

from mcp_bridge.access.callers import Caller
from mcp_bridge.access.grants import Action
from mcp_bridge.wire.questions import Question

_ERRORS_NAMED: Final = 5
_ERROR_CHARACTERS: Final = 300
_SMALL_BYTES: Final = 4096


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
    inline_wait_ms: int
    call_timeout_ms: int
    answer_within_ms: int
    max_detaches: int
    disconnect_grace_ms: int
    continues_on_disconnect: bool
    execution_deadline_ms: int


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

    def granted(self, caller: Caller) -> Sequence[Route]:
        """The tools that the caller may call."""
        return tuple(self.tenants.get(caller.tenant, {}).values())

    def find(self, caller: Caller, tool: str) -> Route | None:
        """The route of a tool that the caller may call."""
        return self.tenants.get(caller.tenant, {}).get(tool)

    def may(self, caller: Caller, _action: Action, task: types_pb2.Task) -> bool:
        """Whether the caller may do this with this task, by what the routes say now. A task belongs to its owner.

        It is asked again before each thing that is done or shown: at every request, and at every snapshot of a stream.
        Whether the caller's token has ended is not asked here, see `Caller.is_expired`.
        """
        return task.tenant_id == caller.tenant and task.contract.owner == caller.owner


def _fault(path: Sequence[str | int], message: str) -> str:
    place = "arguments" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    text = f"{place}: {message}"
    return text if len(text) <= _ERROR_CHARACTERS else text[:_ERROR_CHARACTERS] + "…"
