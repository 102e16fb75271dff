"""The span of a run, and those of its steps."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from taskstore.v1 import leases_pb2

from store_service.client.metrics import Outcome
from store_service.client.workflows import Workflow

if TYPE_CHECKING:
    from store_service.telemetry.traces import Traces

_FAILURES: Final = frozenset(("failed", "retried", "tool_error", "lease_lost"))


class RunSpan:
    """The span of a run: the root of a trace of its own, linked with the call that created the task."""

    def __init__(self, traces: "Traces", leased: leases_pb2.LeasedTask, workflow: Workflow) -> None:
        self._traces = traces
        contract, lease = leased.contract, leased.lease
        creator = {"traceparent": contract.trace_parent, "tracestate": contract.trace_state} if contract.trace_parent else None
        attributes: dict[str, str | int] = {
            "tenure.task.id": lease.task_id,
            "tenure.tenant.id": lease.tenant_id,
            "tenure.workflow.name": workflow.name,
            "tenure.workflow.version": workflow.version,
            "tenure.attempt": leased.attempts,
        }
        self.span: Final[Any] = traces.start(f"run {workflow.name}", "consumer", attributes, parent={}, linked=creator)

    def current(self) -> AbstractContextManager[None]:
        """What is begun within is of the run."""
        return self._traces.current(self.span)

    def step(self, work: Callable[..., Any]) -> AbstractContextManager[Any]:
        """A step runs within, of this run. It is named after its function: its own name may have what the caller said."""
        name = getattr(work, "__qualname__", type(work).__qualname__)
        return self._traces.within(f"step {name}", "internal", {"code.function.name": name})

    def end(self, outcome: Outcome) -> None:
        """The run has ended."""
        self.span.set_attribute("tenure.outcome", outcome)
        self._traces.end(self.span, outcome if outcome in _FAILURES else "")
