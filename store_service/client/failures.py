"""Failures of steps that are their outcome: saved as a value is, and raised again on a resumed run."""

from typing import Any, Final

import msgspec
from taskstore.v1 import types_pb2

from store_service.client.outcomes import INTERNAL_ERROR, ProtocolError, StepFailed, ToolError
from store_service.client.payloads import safe_text, to_json

FAILURE: Final = "application/vnd.tenure.failure+json"
"""The media type of the checkpoint that a step left which failed for good."""

FinalFailure = ToolError | ProtocolError | StepFailed
FINAL: Final = (ToolError, ProtocolError, StepFailed)

_MOST_REASON_BYTES: Final = 1024


def step_failed(step: str, error: Exception) -> StepFailed:
    """The outcome of a step whose tries are used up."""
    return StepFailed(step, safe_text(f"{type(error).__name__}: {error}", most_bytes=_MOST_REASON_BYTES))


def to_payload(step: str, error: FinalFailure) -> types_pb2.Payload:
    """The failure, to be saved."""
    told: dict[str, Any]
    match error:
        case ToolError():
            told = {"tool_error": {"text": error.text}}
        case ProtocolError():
            told = {"protocol_error": {"code": error.code, "message": error.message, "data": error.data}}
        case StepFailed():
            told = {"step_failed": {"reason": error.reason}}
    return types_pb2.Payload(media_type=FAILURE, data=to_json(f"the error of step {step!r}", told))


def from_payload(step: str, payload: types_pb2.Payload) -> FinalFailure | None:
    """The failure that was saved; None when the step did not fail."""
    if payload.media_type != FAILURE:
        return None
    match msgspec.json.decode(payload.data):
        case {"tool_error": {"text": text}}:
            return ToolError(text)
        case {"protocol_error": {"code": code, "message": message, "data": data}}:
            return ProtocolError(code, message, data)
        case {"step_failed": {"reason": reason}}:
            return StepFailed(step, reason)
        case _:
            return ProtocolError(INTERNAL_ERROR, f"how step {step!r} failed cannot be read")
