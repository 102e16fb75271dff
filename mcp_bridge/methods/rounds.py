"""A call in several rounds: it is answered with questions and a sealed state, and comes back with both.

Source: contract, sections 4, 10.1, 10.2, 10.4, 10.12 and 10.13.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Final
from uuid import uuid4

import msgspec
from taskstore.v1 import tasks_pb2, types_pb2

from mcp_bridge.access.answers import check_answers, is_some_answer
from mcp_bridge.access.callers import Caller
from mcp_bridge.access.routes import Route
from mcp_bridge.cells import Cells
from mcp_bridge.methods.calls import Call
from mcp_bridge.translate import clock_ms, is_expired, open_questions, waits_until_ms
from mcp_bridge.wire.digests import call_digest, request_id
from mcp_bridge.wire.failures import invalid_params, missing_capability
from mcp_bridge.wire.mcp import PREFLIGHT, ToolCall
from mcp_bridge.wire.questions import Question, input_requests, missing_capabilities
from mcp_bridge.wire.results import Results, join, splice
from mcp_bridge.wire.state import RequestState, StateKeys, bad_state
from store_service.client import StoreError

PREFLIGHT_BYTES: Final = 64 * 1024
EARLY_ANSWERS: Final = 16
_EARLY_KEY_BYTES: Final = 160


class Rounds:
    """What holds the rounds of a call together."""

    def __init__(self, store: Cells, results: Results, keys: StateKeys) -> None:
        self._store = store
        self._results = results
        self._keys = keys

    def open(self, call: Call, route: Route, wanted: ToolCall, key: str | None) -> RequestState:
        """Where the call stands: at its beginning, or where the state that it brings says. Raises Failure -32602."""
        if wanted.state is None:
            return first_state(call.caller, key)
        state = self._keys.open(wanted.state, bound_to=_bound_to(call, route, wanted))
        if not state.task_id and state.expires_at_ms <= _now_ms():
            raise bad_state()
        return state

    async def resume(self, call: Call, route: Route, wanted: ToolCall, state: RequestState) -> types_pb2.Task:
        """The task that the call goes on with, after the answers that it brings. Raises Failure -32602."""
        caller = call.caller
        request = tasks_pb2.GetTaskRequest(tenant_id=caller.tenant, task_id=state.task_id, owner=caller.owner)
        try:
            task = await self._store.get_task(request)
        except StoreError as error:
            if error.reason == "TASK_NOT_FOUND":
                raise bad_state() from None
            raise
        if state.expires_at_ms <= clock_ms(task) or is_expired(task):
            raise bad_state()
        call.noted["task_id"] = task.task_id
        questions = route.grants.asked(caller, open_questions(task), is_own=True)
        await answer_questions(self._store, caller, task, questions, wanted.responses)
        return task

    def preflight(self, call: Call, route: Route, wanted: ToolCall, state: RequestState) -> RequestState | bytes:
        """The state with the answers to all that is asked before the work; or the answer that asks for the rest.

        Raises Failure -32602 for an answer that is none.
        """
        if not route.preflight:
            return state
        answers = {key: bytes(answer) for key, answer in state.answers.items()}
        left = {question.key: question for question in route.preflight if question.key not in answers}
        answers |= check_answers(left, wanted.responses)
        if sum(map(len, answers.values())) > PREFLIGHT_BYTES:
            raise invalid_params(f"inputResponses: the answers are larger than {PREFLIGHT_BYTES} bytes in all")
        gathered = msgspec.structs.replace(state, answers={key: msgspec.Raw(answer) for key, answer in answers.items()})
        questions = [question for question in route.preflight if question.key not in answers]
        if not questions:
            return gathered
        return self._ask(call, route, wanted, gathered, questions, expires_at_ms=_now_ms() + route.answer_within_ms)

    def pause(self, call: Call, route: Route, wanted: ToolCall, state: RequestState, task: types_pb2.Task) -> bytes:
        """The answer that asks what the task asks, or, of one that asks nothing, to call again.

        Raises Failure -32021 if this request did not declare what is asked.
        """
        questions = route.grants.asked(call.caller, open_questions(task), is_own=True)
        require_shown(call, questions)
        expires_at_ms = min(clock_ms(task) + route.answer_within_ms, waits_until_ms(task))
        state = msgspec.structs.replace(state, task_id=task.task_id, answers={})
        return self._ask(call, route, wanted, state, questions, expires_at_ms=expires_at_ms)

    def _ask(
        self,
        call: Call,
        route: Route,
        wanted: ToolCall,
        state: RequestState,
        questions: Sequence[Question],
        *,
        expires_at_ms: int,
    ) -> bytes:
        state = msgspec.structs.replace(state, rounds=state.rounds + 1, expires_at_ms=expires_at_ms)
        members = join({"requestState": self._keys.seal(state, bound_to=_bound_to(call, route, wanted))})
        if questions:
            members += b',"inputRequests":' + input_requests(questions)
        return self._results.write(members, result_type="input_required")


def first_state(caller: Caller, key: str | None) -> RequestState:
    """Where a call stands at its beginning: by its idempotency key the call that it was before, without one a new call."""
    call_id = str(uuid4()) if key is None else request_id(caller.issuer, caller.subject, key)
    return RequestState(call_id=call_id, expires_at_ms=0, rounds=0, has_key=key is not None)


async def answer_questions(
    store: Cells, caller: Caller, task: types_pb2.Task, questions: Iterable[Question], responses: dict[str, bytes]
) -> None:
    """Hands the store the answers to `questions`, which are open and the caller's to answer; the others are ignored.

    Raises Failure -32602, and stores none, if one of them does not answer its question.
    """
    answers = check_answers({question.key: question for question in questions}, responses)
    if answers:
        await store.answer_inputs(
            tasks_pb2.AnswerInputsRequest(
                tenant_id=caller.tenant,
                task_id=task.task_id,
                owner=task.contract.owner,
                answered_by=caller.owner,
                answers=_input_answers(answers),
            )
        )


def require_shown(call: Call, questions: Sequence[Question]) -> None:
    """Raises Failure -32021 unless the client declared on this request whatever it is about to be asked."""
    if missing := missing_capabilities(questions, call.meta.capabilities):
        raise missing_capability(missing)


def early_answers(route: Route, wanted: ToolCall) -> list[types_pb2.InputAnswer]:
    """Answers given before their questions. What could answer no question at all is left out, and asked in its time; so is
    everything where there may be questions that are not the caller's to answer.

    Raises Failure -32602 for too many.
    """
    if route.grants.approve is not None:
        return []
    asked_first = {question.key for question in route.preflight}
    answers = {
        key: response
        for key, response in wanted.responses.items()
        if key not in asked_first and 0 < len(key.encode()) <= _EARLY_KEY_BYTES and "\0" not in key and is_some_answer(response)
    }
    if len(answers) > EARLY_ANSWERS:
        raise invalid_params(f"inputResponses: more than {EARLY_ANSWERS} answers before anything was asked")
    return _input_answers(answers)


def task_input(wanted: ToolCall, state: RequestState) -> bytes:
    """What the work is given: the arguments as they were sent, and with them what was answered before it."""
    if not state.answers:
        return wanted.arguments_json
    return splice(wanted.arguments_json, PREFLIGHT, msgspec.json.encode(state.answers))


def _input_answers(answers: dict[str, bytes]) -> list[types_pb2.InputAnswer]:
    return [types_pb2.InputAnswer(key=key, response=types_pb2.Payload(data=data)) for key, data in answers.items()]


def _bound_to(call: Call, route: Route, wanted: ToolCall) -> tuple[bytes, ...]:
    """Who calls what. A state opens for the same only."""
    caller = call.caller
    named = (caller.tenant, caller.issuer, caller.subject, route.tool)
    return (*(part.encode() for part in named), call_digest(wanted.tool, wanted.arguments))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
