"""What is known of the task being run, in an async function as in a sync one."""

import uuid
from functools import cached_property
from typing import Any, Unpack

import msgspec
import structlog
from taskstore.v1 import leases_pb2, types_pb2

from store_service.client.held import HeldLease
from store_service.client.outcomes import Cancelled
from store_service.client.usage import Amounts, BudgetAmounts, Usage


class ClientCapabilities:
    """What the MCP client that called the tool declared it can do."""

    def __init__(self, declared: bytes) -> None:
        capabilities = msgspec.json.decode(declared) if declared else {}
        self._declared: dict[str, Any] = capabilities if isinstance(capabilities, dict) else {}

    def can(self, *path: str) -> bool:
        """Whether the client declared a capability: `can("sampling")`, `can("elicitation", "url")`."""
        if path == ("elicitation", "form") and self._declared.get("elicitation") == {}:
            return True  # an elicitation without modes means forms
        found: Any = self._declared
        for name in path:
            if not isinstance(found, dict) or found.get(name) in (None, False):
                return False
            found = found[name]
        return True


class TaskFacts:
    """The task, its caller, and whether its end is wished for."""

    def __init__(self, leased: leases_pb2.LeasedTask, held: HeldLease, usage: Usage) -> None:
        self._leased = leased
        self._usage = usage
        self._held = held

    @cached_property
    def client(self) -> ClientCapabilities:
        """What the MCP client that called the tool declared."""
        return ClientCapabilities(self._leased.contract.client_capabilities)

    @cached_property
    def log(self) -> structlog.typing.FilteringBoundLogger:
        """Its lines name the task."""
        log: structlog.typing.FilteringBoundLogger = structlog.get_logger("tenure.workflow")
        return log

    @property
    def task_id(self) -> str:
        """The task, unique within its tenant."""
        return self._leased.lease.task_id

    @property
    def tenant_id(self) -> str:
        """The tenant that the task belongs to."""
        return self._leased.lease.tenant_id

    @property
    def fencing_token(self) -> int:
        """Grows with each lease of the task: what is guarded by it refuses the late writes of an earlier run."""
        return self._leased.lease.token

    @property
    def attempt(self) -> int:
        """How many leases the task was given, this one included. Each wait that ended gave it one more."""
        return self._leased.attempts

    @property
    def contract(self) -> types_pb2.TaskContract:
        """What was agreed when the task was created: tool, owner, deadline, trace context."""
        return self._leased.contract

    @property
    def trace_context(self) -> dict[str, str]:
        """The trace context of the call that created the task: `traceparent`, `tracestate` and `baggage`, as far as it had
        them, for `opentelemetry.propagate.extract`. Its caller wrote it: good for telemetry, and to decide nothing."""
        contract = self._leased.contract
        carrier = {"traceparent": contract.trace_parent, "tracestate": contract.trace_state, "baggage": contract.baggage}
        return {name: value for name, value in carrier.items() if value}

    @property
    def cancelled(self) -> bool:
        """Whether the run shall stop: its caller wished it, its lease was lost, or the worker shuts down."""
        return self._held.is_stop_wished

    @property
    def budget_left(self) -> BudgetAmounts:
        """What the task may still use, in the dimensions that its workflow has limits for."""
        return self._usage.left

    def use(self, **amounts: Unpack[Amounts]) -> None:
        """Counts what a step uses, in code of the step: `ctx.use(tokens=1_200)`.

        It is saved with the next step that ends, and counted anew by a step that runs again. Past the workflow's limits the
        task fails: raises the ProtocolError that ends it.
        """
        self._usage.add(amounts)

    def check_cancelled(self) -> None:
        """Raises Cancelled when the run shall stop."""
        if self.cancelled or self._held.remaining_seconds() <= 0:
            raise Cancelled

    def idempotency_key(self, step: str) -> str:
        """A UUID that is the same at every attempt of this step of this task, and nowhere else."""
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"tenure:{self.tenant_id}:{self.task_id}:{step}"))
