"""What a tool call becomes: checked, named by its key, and made a task of the store. Source: contract, sections 4 and 10.4."""

from typing import Final

from taskstore.v1 import tasks_pb2, types_pb2

from mcp_bridge.access.routes import Route
from mcp_bridge.cells import Cells
from mcp_bridge.methods.calls import Call
from mcp_bridge.methods.rounds import early_answers, task_input
from mcp_bridge.translate import failure_of, tool_result
from mcp_bridge.wire.digests import call_digest
from mcp_bridge.wire.failures import invalid_params
from mcp_bridge.wire.mcp import IDEMPOTENCY_KEY, PREFLIGHT, ToolCall
from mcp_bridge.wire.results import tool_error
from mcp_bridge.wire.state import RequestState
from mcp_bridge.wire.trace import read_trace

ARGUMENTS_BYTES: Final = 1024 * 1024
KEY_BYTES: Final = 256


async def create_task(
    store: Cells, call: Call, route: Route, wanted: ToolCall, state: RequestState, *, abandon_after_ms: int
) -> tasks_pb2.CreateTaskResponse:
    """Creates the task of a call, or finds the one that the same call created before."""
    caller, sent = call.caller, read_trace(call.meta.members, call.headers)
    trace = call.trace or sent
    created = await store.create_task(
        tasks_pb2.CreateTaskRequest(
            tenant_id=caller.tenant,
            request_id=state.call_id,
            content_digest=call_digest(wanted.tool, wanted.arguments),
            contract=types_pb2.TaskContract(
                tool=route.tool,
                workflow=route.workflow,
                workflow_version=route.workflow_version,
                owner=caller.owner,
                client_capabilities=wanted.capabilities_json,
                output_schema=route.output_schema,
                ttl_ms=route.ttl_ms,
                poll_interval_ms=route.poll_interval_ms,
                execution_deadline_ms=route.execution_deadline_ms,
                trace_parent=trace.parent,
                trace_state=trace.state,
                baggage=sent.baggage,
            ),
            priority=route.priority,
            input=types_pb2.Payload(data=task_input(wanted, state)),
            early_answers=early_answers(route, wanted),
            abandon_after_ms=abandon_after_ms,
            reference=call.reference,
            asked_before=state.answers,
        )
    )
    call.noted["task_id"] = created.task.task_id
    call.noted["replayed"] = created.replayed
    return created


def known_change_of(created: tasks_pb2.CreateTaskResponse) -> int:
    """The `change` that need not be told of a task that is new; 0 of one that was created before, which may have ended."""
    return 0 if created.replayed else created.task.change


def result_of(task: types_pb2.Task) -> bytes:
    """The `CallToolResult` of a task that has ended. Raises Failure for one that failed."""
    match task.state:
        case types_pb2.TASK_STATE_COMPLETED:
            return tool_result(task)
        case types_pb2.TASK_STATE_FAILED:
            raise failure_of(task)
        case _:
            return tool_error("cancelled")


def fault_in(route: Route, wanted: ToolCall) -> str | None:
    """What is wrong with the arguments, in words from which a model can mend its call; None for nothing."""
    size_bytes = len(wanted.arguments_json)
    if size_bytes > ARGUMENTS_BYTES:
        return f"Invalid arguments: arguments: {size_bytes} bytes are more than the {ARGUMENTS_BYTES} allowed"
    if PREFLIGHT in wanted.arguments:
        return f"Invalid arguments: arguments.{PREFLIGHT}: is no name for an argument"
    faults = route.arguments.faults(wanted.arguments, size_bytes=size_bytes)
    return "Invalid arguments: " + "; ".join(faults) if faults else None


def read_key(call: Call) -> str | None:
    """The client's idempotency key, from the header or from `_meta`. Raises Failure -32602 for a bad one."""
    sent = call.headers.all("Idempotency-Key") if call.headers is not None else []
    given: list[object] = [_unquoted(text) for text in sent]
    if IDEMPOTENCY_KEY in call.meta.members:
        given.append(call.meta.members[IDEMPOTENCY_KEY])
    if not given:
        return None
    key = given[0]
    if not isinstance(key, str) or not 0 < len(key.encode()) <= KEY_BYTES:
        raise invalid_params(f"the idempotency key must be a text of 1 to {KEY_BYTES} bytes")
    if any(other != key for other in given):
        raise invalid_params("the idempotency keys of header and _meta differ")
    return key


def _unquoted(text: str) -> str:
    """The header's value; it is a quoted string in the draft that defines it, and bare in much that is deployed."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text
