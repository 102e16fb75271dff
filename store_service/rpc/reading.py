"""From messages to values: every field is checked. Those of workers are in `lease_reading.py`."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from google.protobuf import timestamp_pb2
from taskstore.v1 import tasks_pb2, types_pb2

from store_service.model import limits
from store_service.model.limits import check_name, check_range, check_task_id, check_text
from store_service.model.payloads import JSON, Payload, check_json, check_payload
from store_service.model.refusals import Refusal, invalid
from store_service.model.states import TaskState
from store_service.model.tasks import (
    Answers,
    Fork,
    NewSignal,
    NewTask,
    Owner,
    TaskContract,
    TaskRead,
    TaskRef,
    TaskView,
)
from store_service.model.waits import Answer, SignalState

_INT31 = range(2**31)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_REMEMBERED_BYTES = 4096
_VIEWS = (TaskView.BASIC, *TaskView)  # the first stands for unspecified


def read_owner(message: types_pb2.Owner) -> Owner:
    """An owner, both parts given."""
    return _owner(message.issuer, message.subject)


@lru_cache(maxsize=4096)
def _owner(issuer: str, subject: str) -> Owner:
    return Owner(check_text("owner.issuer", issuer, most_bytes=512), check_text("owner.subject", subject, most_bytes=512))


def read_ref(
    message: tasks_pb2.GetTaskRequest
    | tasks_pb2.CancelTaskRequest
    | tasks_pb2.AttachTaskRequest
    | tasks_pb2.AnswerInputsRequest
    | tasks_pb2.PublishSignalRequest
    | tasks_pb2.WatchedTask
    | tasks_pb2.ExplainTaskRequest,
) -> TaskRef:
    """Which task a caller means."""
    owner = read_owner(message.owner) if message.HasField("owner") else None
    return TaskRef(check_name("tenant_id", message.tenant_id), check_task_id("task_id", message.task_id), owner)


def read_view(view: types_pb2.TaskView.ValueType) -> TaskView:
    """How much of a task is wanted."""
    found: TaskView = _VIEWS[check_range("view", view, range(len(_VIEWS)))]
    return found


def read_task_read(message: tasks_pb2.GetTaskRequest) -> TaskRead:
    """Which task a caller wants to read, and how much of it."""
    return TaskRead(read_ref(message), read_view(message.view))


def read_watched(message: tasks_pb2.WatchedTask) -> tuple[TaskRead, int]:
    """A task to be watched, from which report on, and the change of it that is known."""
    known_change = check_range("known_change", message.known_change, range(2**63))
    known_report = check_range("known_report", message.known_report, range(2**63))
    return TaskRead(read_ref(message), read_view(message.view), reports_after=known_report), known_change


def read_states(states: Sequence[types_pb2.TaskState.ValueType]) -> tuple[TaskState, ...]:
    """A filter of states."""
    for state in states:
        check_range("states", state, range(1, types_pb2.TASK_STATE_CANCELLED + 1))
    names = (types_pb2.TaskState.Name(state).removeprefix("TASK_STATE_") for state in states)
    return tuple(dict.fromkeys(map(TaskState, names)))


def read_signal_states(states: Sequence[tasks_pb2.SignalState.ValueType]) -> tuple[SignalState, ...]:
    """A filter of signals' states."""
    for state in states:
        check_range("states", state, range(1, tasks_pb2.SIGNAL_STATE_DEAD_LETTER + 1))
    names = (tasks_pb2.SignalState.Name(state).removeprefix("SIGNAL_STATE_") for state in states)
    return tuple(dict.fromkeys(map(SignalState, names)))


def read_time(field: str, message: timestamp_pb2.Timestamp) -> datetime:
    """A point in time that the calendar knows."""
    try:
        return message.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise invalid(field, "must be a time between the years 1 and 9999") from None


def read_new_task(message: tasks_pb2.CreateTaskRequest) -> NewTask:
    """A task to be created."""
    given = message.input
    return NewTask(
        tenant_id=check_name("tenant_id", message.tenant_id),
        request_id=check_text("request_id", message.request_id, most_bytes=128),
        contract=_read_contract(message.contract),
        priority=message.priority,
        input=check_payload("input", given.media_type, given.data, most_bytes=limits.INPUT_BYTES),
        abandon_after_ms=check_range("abandon_after_ms", message.abandon_after_ms, limits.DEADLINE_MS),
        early_answers=_read_answers("early_answers", message.early_answers, range(limits.QUESTIONS_PER_WAIT + 1)),
        content_digest=_read_digest("content_digest", message.content_digest),
        reference=check_text("reference", message.reference, most_bytes=128, blank=True),
        asked_before=_read_asked_before("asked_before", message.asked_before),
    )


def _read_asked_before(field: str, names: Sequence[str]) -> tuple[str, ...]:
    if not names:
        return ()
    check_range(field, len(names), range(limits.QUESTIONS_PER_WAIT + 1))
    return tuple(dict.fromkeys(read_question_name(field, name) for name in names))


def _read_digest(field: str, data: bytes) -> bytes:
    if len(data) not in (0, 32):
        raise invalid(field, "must be 32 bytes or empty")
    return data


def _read_contract(message: types_pb2.TaskContract) -> TaskContract:
    """A contract. Most of those that come are equal to one that came a moment ago, which is checked once."""
    data = message.SerializeToString()
    return _remembered_contract(data) if len(data) <= _REMEMBERED_BYTES else _check_contract(message)


@lru_cache(maxsize=1024)
def _remembered_contract(data: bytes) -> TaskContract:
    return _check_contract(types_pb2.TaskContract.FromString(data))


def _check_contract(message: types_pb2.TaskContract) -> TaskContract:
    field = "contract."
    return TaskContract(
        tool=check_text(field + "tool", message.tool, most_bytes=128, blank=True),
        workflow=check_text(field + "workflow", message.workflow, most_bytes=256),
        workflow_version=check_range(field + "workflow_version", message.workflow_version, range(1, 2**31)),
        owner=read_owner(message.owner),
        client_capabilities=_read_json(
            field + "client_capabilities", message.client_capabilities, most_bytes=limits.CAPABILITIES_BYTES
        ),
        output_schema=_read_json(field + "output_schema", message.output_schema, most_bytes=limits.OUTPUT_SCHEMA_BYTES),
        ttl_ms=check_range(field + "ttl_ms", message.ttl_ms or limits.DEFAULT_TTL_MS, limits.TTL_MS),
        poll_interval_ms=check_range(
            field + "poll_interval_ms", message.poll_interval_ms or limits.DEFAULT_POLL_MS, limits.POLL_MS
        ),
        execution_deadline_ms=check_range(field + "execution_deadline_ms", message.execution_deadline_ms, limits.DEADLINE_MS),
        trace_parent=check_text(field + "trace_parent", message.trace_parent, most_bytes=512, blank=True),
        trace_state=check_text(field + "trace_state", message.trace_state, most_bytes=512, blank=True),
        baggage=check_text(field + "baggage", message.baggage, most_bytes=8192, blank=True),
    )


def _read_json(field: str, data: bytes, *, most_bytes: int) -> bytes:
    if len(data) > most_bytes:
        raise invalid(field, f"must be at most {most_bytes} bytes")
    if data:
        check_json(field, data)
    return data


def read_page_token(token: str) -> tuple[datetime, str] | None:
    """Where a page of tasks starts; None for the first."""
    after = read_signals_page_token(token)
    try:
        return after and (after[0], check_task_id("page_token", after[1]))
    except Refusal:
        raise _bad_page_token() from None


def read_signals_page_token(token: str) -> tuple[datetime, str] | None:
    """Where a page of signals starts; None for the first."""
    if not token:
        return None
    try:
        micros, _, last_id = token.partition(".")
        return _EPOCH + timedelta(microseconds=int(micros, 16)), check_text("page_token", last_id, most_bytes=128)
    except (ValueError, OverflowError):
        raise _bad_page_token() from None


def _bad_page_token() -> Refusal:
    return invalid("page_token", "must be one that an earlier answer gave")


def read_question_name(field: str, name: str) -> str:
    """The name of a question, without its number."""
    if "#" in check_text(field, name, most_bytes=128):
        raise invalid(field, "must not contain #, which marks repetitions")
    return name


def read_answers(message: tasks_pb2.AnswerInputsRequest) -> Answers:
    """Answers to questions of one task."""
    answered_by = read_owner(message.answered_by) if message.HasField("answered_by") else None
    answers = _read_answers("answers", message.answers, range(1, limits.ANSWERS_PER_CALL + 1))
    return Answers(ref=read_ref(message), answered_by=answered_by, answers=answers)


def _read_answers(field: str, messages: Sequence[types_pb2.InputAnswer], allowed: range) -> tuple[Answer, ...]:
    check_range(field, len(messages), allowed)
    if not messages:
        return ()
    answers = tuple(
        Answer(
            check_text(f"{field}.key", one.key, most_bytes=160),
            read_json_payload(f"{field}.response", one.response, most_bytes=limits.ANSWERED_BYTES).data,
        )
        for one in messages
    )
    if len({answer.key for answer in answers}) < len(answers):
        raise invalid(f"{field}.key", "must be different for each answer")
    if sum(len(answer.response) for answer in answers) > limits.ANSWER_BYTES:
        raise invalid(field, f"must be at most {limits.ANSWER_BYTES} bytes in all")
    return answers


def read_json_payload(field: str, message: types_pb2.Payload, *, most_bytes: int) -> Payload:
    """A payload that is JSON."""
    payload = check_payload(field, message.media_type, message.data, most_bytes=most_bytes)
    if payload.media_type != JSON:
        raise invalid(f"{field}.media_type", f"must be {JSON}")
    return payload


def read_new_signal(message: tasks_pb2.PublishSignalRequest) -> NewSignal:
    """A signal to be published."""
    return NewSignal(
        ref=read_ref(message),
        signal_id=check_text("signal_id", message.signal_id, most_bytes=128),
        name=check_name("name", message.name),
        payload=check_payload("payload", message.payload.media_type, message.payload.data, most_bytes=limits.SIGNAL_BYTES),
    )


def read_fork(message: tasks_pb2.ForkTaskRequest) -> Fork:
    """A wish for a fork."""
    owner = read_owner(message.owner) if message.HasField("owner") else None
    source = TaskRef(check_name("tenant_id", message.tenant_id), check_task_id("source_task_id", message.source_task_id), owner)
    return Fork(
        source=source,
        request_id=check_text("request_id", message.request_id, most_bytes=128),
        checkpoints=check_range("checkpoints", message.checkpoints, _INT31),
    )
