"""What a task can wait for, and whether what ended a wait is what was waited for."""

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from taskstore.v1 import leases_pb2, types_pb2

from store_service.client.outcomes import SignalTimeout
from store_service.client.payloads import JSON, from_json, to_json
from store_service.client.questions import Question, read_response

Wait = leases_pb2.NewTimerWait | leases_pb2.NewSignalWait | leases_pb2.NewInputWait

WAKE: Final = "application/protobuf; message=taskstore.v1.Wake"
"""The media type of the checkpoint that a wait leaves: what ended it, exactly as the store told it."""

_MOST_MS: Final = 366 * 86_400_000
_SIGNAL_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_MOST_QUESTIONS: Final = 16
_MOST_NAME_BYTES: Final = 128
_MOST_PARAMS_BYTES: Final = 64 * 1024


def new_timer_wait(seconds: float) -> leases_pb2.NewTimerWait:
    """A wait for the time. Raises ValueError."""
    return leases_pb2.NewTimerWait(delay_ms=_to_ms("seconds", seconds))


def new_signal_wait(name: str, timeout: float | None) -> leases_pb2.NewSignalWait:
    """A wait for a signal, at most `timeout` seconds. Raises ValueError."""
    if not _SIGNAL_NAME.fullmatch(name):
        raise ValueError(f"the name of a signal must be 1 to 128 of A-Z a-z 0-9 _ - . : {name!r}")
    return leases_pb2.NewSignalWait(name=name, timeout_ms=_to_timeout_ms(timeout))


def new_input_wait(questions: Mapping[str, Question[Any]], timeout: float | None) -> leases_pb2.NewInputWait:
    """A wait for answers, at most `timeout` seconds. Raises ValueError, and ProtocolError for what cannot be kept."""
    if not 1 <= len(questions) <= _MOST_QUESTIONS:
        raise ValueError(f"a task asks 1 to {_MOST_QUESTIONS} questions at once")
    wait = leases_pb2.NewInputWait(timeout_ms=_to_timeout_ms(timeout))
    for name, question in questions.items():
        if not 1 <= len(name.encode()) <= _MOST_NAME_BYTES or "#" in name or "\0" in name:
            raise ValueError(f"the name of a question must be 1 to {_MOST_NAME_BYTES} bytes without '#': {name!r}")
        data = to_json(f"question {name!r}", question.params(), most_bytes=_MOST_PARAMS_BYTES)
        wait.requests.add(name=name, method=question.method, params=types_pb2.Payload(media_type=JSON, data=data))
    return wait


def to_request(lease: types_pb2.Lease, step: str, wait: Wait) -> leases_pb2.SuspendTaskRequest:
    """The call that suspends a task."""
    request = leases_pb2.SuspendTaskRequest(lease=lease, step=step)
    match wait:
        case leases_pb2.NewTimerWait():
            request.timer.CopyFrom(wait)
        case leases_pb2.NewSignalWait():
            request.signal.CopyFrom(wait)
        case leases_pb2.NewInputWait():
            request.input.CopyFrom(wait)
    return request


def to_payload(wake: leases_pb2.Wake) -> types_pb2.Payload:
    """What ended a wait, to be saved as it is: nothing of a signal or an answer is written anew."""
    return types_pb2.Payload(media_type=WAKE, data=wake.SerializeToString(deterministic=True))


def from_payload(payload: types_pb2.Payload) -> leases_pb2.Wake | None:
    """What ended a wait, as it was saved; None when the step that saved it was no wait."""
    return leases_pb2.Wake.FromString(payload.data) if payload.media_type == WAKE else None


def contradiction(wake: leases_pb2.Wake, wait: Wait) -> str | None:
    """Why this is not what ended this wait; None when it is."""
    cause = wake.WhichOneof("cause")
    match wait:
        case leases_pb2.NewTimerWait():
            fits, wanted = cause == "timer", "the time"
        case leases_pb2.NewSignalWait():
            is_mine = cause == "signal" and wake.signal.name == wait.name
            fits, wanted = is_mine or (cause == "timeout" and wait.timeout_ms > 0), f"the signal {wait.name!r}"
        case leases_pb2.NewInputWait():
            names = [request.name for request in wait.requests]
            fits = cause == "input" and len(wake.input.keys) == len(names) and all(map(_is_key, wake.input.keys, names))
            wanted = "answers to " + ", ".join(map(repr, names))
    return None if fits else f"step {wake.step!r} waits for {wanted}, and its wait ended by {_describe(wake)}"


def read_signal(name: str, wake: leases_pb2.Wake) -> Any:
    """The message of the signal that came. Raises SignalTimeout when none did."""
    if wake.WhichOneof("cause") == "timeout":
        raise SignalTimeout(name)
    return from_json(f"the message of signal {name!r}", wake.signal.payload) if wake.signal.payload.data else None


def read_answers(questions: Mapping[str, Question[Any]], wake: leases_pb2.Wake) -> dict[str, Any]:
    """The answers by the names of their questions, None where none came. Raises ProtocolError for what is none."""
    told = {answer.key: answer.response for answer in wake.input.answers}
    answers: dict[str, Any] = dict.fromkeys(questions)
    for (name, question), key in zip(questions.items(), wake.input.keys, strict=True):
        if key in told:
            answers[name] = read_response(name, question, from_json(f"the answer to {name!r}", told[key]))
    return answers


def _is_key(key: str, name: str) -> bool:
    """Whether the store asks a question of this name under this key: `name`, `name#2` and so on."""
    asked, _, number = key.partition("#")
    return asked == name and (key == name or number.isdecimal())


def _describe(wake: leases_pb2.Wake) -> str:
    match wake.WhichOneof("cause"):
        case "timer":
            return "the time"
        case "signal":
            return f"the signal {wake.signal.name!r}"
        case "timeout":
            return "the time that a signal had"
        case "input":
            return "answers to " + ", ".join(map(repr, wake.input.keys))
        case _:
            return "what this worker does not know; give the task to a newer one"


def _to_timeout_ms(timeout: float | None) -> int:
    return 0 if timeout is None else _to_ms("timeout", timeout)


def _to_ms(what: str, seconds: float) -> int:
    """Whole milliseconds, rounded up, at least 1."""
    if not (math.isfinite(seconds) and 0 <= seconds * 1000 <= _MOST_MS):
        raise ValueError(f"{what} must be 0 to 366 days: {seconds}")
    return max(1, math.ceil(seconds * 1000))
