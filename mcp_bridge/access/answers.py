"""Whether an answer answers its question, and whether a question is one. Source: contract, sections 10.12 and 10.13.

The shapes are in `questions.schema.json` beside this file.
"""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

import msgspec
from jsonschema_rs import Draft202012Validator

from mcp_bridge.access.tool_schemas import compile_schema
from mcp_bridge.wire.failures import invalid_params
from mcp_bridge.wire.mirrored import Report
from mcp_bridge.wire.questions import ELICITATION, ROOTS, SAMPLING, Question

ANSWER_BYTES: Final = 255 * 1024
_REASON_CHARACTERS: Final = 200
_RESULTS: Final[Mapping[str, str]] = {
    ELICITATION: "ElicitResult",
    SAMPLING: "CreateMessageResult",
    ROOTS: "ListRootsResult",
}
METHODS: Final = tuple(_RESULTS)
"""The kinds of question that are known here."""


def check_answers(questions: Mapping[str, Question], responses: Mapping[str, bytes]) -> dict[str, bytes]:
    """The responses to questions that are open, as they were sent; all others are ignored.

    Raises Failure -32602, which names the place, if one of them does not answer its question.
    """
    answers = {key: response for key, response in responses.items() if key in questions}
    for key, response in answers.items():
        path = f"inputResponses.{key}"
        if len(response) > ANSWER_BYTES:
            raise invalid_params(f"{path}: {len(response)} bytes are more than the {ANSWER_BYTES} allowed")
        if fault := _fault(questions[key], msgspec.json.decode(response)):
            raise invalid_params(path + fault)
    return answers


def is_some_answer(response: bytes) -> bool:
    """Whether this could answer a question of any kind that is known here."""
    value = msgspec.json.decode(response)
    return len(response) <= ANSWER_BYTES and any(_shape(name).is_valid(value) for name in _RESULTS.values())


def check_question(method: str, params: Mapping[str, Any], report: Report) -> None:
    """Reports what is wrong with the parameters of a question of a kind that is known here."""
    names = {SAMPLING: "CreateMessageRequestParams", ELICITATION: "ElicitRequestFormParams", ROOTS: "JSONObject"}
    name = "ElicitRequestURLParams" if method == ELICITATION and params.get("mode") == "url" else names[method]
    for error in _shape(name).iter_errors(params):
        report(tuple(error.instance_path), error.message[:_REASON_CHARACTERS])
    schema = params.get("requestedSchema")
    if isinstance(schema, dict):
        compile_schema(schema, lambda path, reason: report(("requestedSchema", *path), reason))


def _fault(question: Question, response: Any) -> str | None:
    """What is wrong with a response, after its path; None for nothing, and for kinds that are not known here."""
    name = _RESULTS.get(question.method)
    if name is None:
        return None if isinstance(response, dict) else ": must be an object"
    if fault := _first_fault(_shape(name), response, ()):
        return fault
    params = question.params
    if question.method != ELICITATION or response["action"] != "accept" or params.get("mode") == "url":
        return None
    schema = params.get("requestedSchema")
    validator = compile_schema(schema, lambda _path, _reason: None) if isinstance(schema, dict) else None
    # A schema that cannot be used is its worker's fault, and so is what comes of it.
    return _first_fault(validator, response.get("content", {}), ("content",)) if validator else None


def _first_fault(validator: Draft202012Validator, value: Any, place: tuple[str | int, ...]) -> str | None:
    for error in validator.iter_errors(value):
        path = (*place, *error.instance_path)
        shown = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
        return f"{shown}: {error.message}"[:_REASON_CHARACTERS]
    return None


@cache
def _shape(name: str) -> Draft202012Validator:
    text = files("mcp_bridge.access").joinpath("questions.schema.json").read_bytes()
    schema = msgspec.json.decode(text, type=dict[str, Any])
    return Draft202012Validator({**schema, "$ref": f"#/$defs/{name}"}, offline=True)
