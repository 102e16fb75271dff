"""Which answers answer which questions. Contract, sections 10.9 and 10.12."""

from typing import Any

import msgspec
import pytest

from mcp_bridge.access.answers import check_answers
from mcp_bridge.wire.failures import Failure
from mcp_bridge.wire.questions import Question, input_requests, missing_capabilities

SCHEMA = {"type": "object", "properties": {"n": {"type": "number"}, "tags": {"type": "array"}}, "required": ["n"]}
FORM = ("elicitation/create", {"message": "?", "requestedSchema": SCHEMA})
URL = ("elicitation/create", {"mode": "url", "message": "?", "url": "https://x.example"})
SAMPLING = ("sampling/createMessage", {"messages": [], "maxTokens": 1})
ROOTS: tuple[str, dict[str, Any]] = ("roots/list", {})
SAID = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "hi"}}


def question(method: str, params: dict[str, Any]) -> Question:
    return Question("k", method, msgspec.json.encode(params))


@pytest.mark.must("E-05")
@pytest.mark.parametrize(
    ("asked", "response"),
    [
        (FORM, {"action": "accept", "content": {"n": 1.5, "tags": ["a"], "more": True}}),
        (FORM, {"action": "decline"}),
        (FORM, {"action": "cancel", "content": {}}),
        (URL, {"action": "accept"}),
        (SAMPLING, SAID),
        (SAMPLING, {**SAID, "content": [{"type": "tool_use", "id": "1", "name": "t", "input": {}}], "stopReason": "toolUse"}),
        (ROOTS, {"roots": []}),
        (ROOTS, {"roots": [{"uri": "file:///a", "name": "a"}]}),
        (("elicitation/create", {"message": "?", "requestedSchema": {"type": 5}}), {"action": "accept", "content": {"a": 1}}),
        (("else/where", {}), {"anything": 1}),
    ],
)
def test_an_answer_is_passed_on_as_it_was_sent(asked: Any, response: Any) -> None:
    data = b" " + msgspec.json.encode(response)
    assert check_answers({"k": question(*asked)}, {"k": data, "other": b"5"}) == {"k": data}


@pytest.mark.must("E-08")
@pytest.mark.parametrize(
    ("asked", "response", "place"),
    [
        (FORM, {"action": "accept"}, "inputResponses.k.content: "),
        (FORM, {"action": "accept", "content": {"n": "1"}}, "inputResponses.k.content.n: "),
        (FORM, {"action": "accept", "content": {"n": 1, "deep": {"a": 1}}}, "inputResponses.k.content.deep: "),
        (FORM, {"action": "yes"}, "inputResponses.k.action: "),
        (FORM, {}, "inputResponses.k: "),
        (FORM, 5, "inputResponses.k: "),
        (FORM, None, "inputResponses.k: "),
        (SAMPLING, {"role": "assistant", "content": SAID["content"]}, "inputResponses.k: "),
        (SAMPLING, {**SAID, "role": "system"}, "inputResponses.k.role: "),
        (SAMPLING, {**SAID, "content": {"type": "text"}}, "inputResponses.k.content: "),
        (ROOTS, {"roots": [{"name": "a"}]}, "inputResponses.k.roots[0]: "),
        (ROOTS, {"roots": "a"}, "inputResponses.k.roots: "),
        (ROOTS, {"roots": [], "_meta": "x" * 300_000}, "inputResponses.k: "),
        (("else/where", {}), "text", "inputResponses.k: "),
    ],
)
def test_what_is_no_answer_is_refused_with_its_place(asked: Any, response: Any, place: str) -> None:
    with pytest.raises(Failure) as refused:
        check_answers({"k": question(*asked)}, {"k": msgspec.json.encode(response)})
    assert refused.value.code == -32602
    assert place in refused.value.message


@pytest.mark.must("E-02", "M-01")
@pytest.mark.parametrize(
    ("asked", "declared", "missing"),
    [
        (FORM, {"elicitation": {}}, {}),
        (FORM, {"elicitation": {"form": {}}}, {}),
        (FORM, {"elicitation": {"url": {}}}, {"elicitation": {"form": {}}}),
        (FORM, {}, {"elicitation": {"form": {}}}),
        (URL, {"elicitation": {}}, {"elicitation": {"url": {}}}),
        (URL, {"elicitation": {"url": {}}}, {}),
        (SAMPLING, {"sampling": {}}, {}),
        (SAMPLING, {"sampling": False}, {"sampling": {}}),
        ((SAMPLING[0], {**SAMPLING[1], "tools": []}), {"sampling": {}}, {"sampling": {"tools": {}}}),
        ((SAMPLING[0], {"includeContext": "allServers"}), {}, {"sampling": {"context": {}}}),
        ((SAMPLING[0], {"includeContext": "none"}), {"sampling": {}}, {}),
        (ROOTS, {}, {"roots": {}}),
        (("else/where", {}), {}, {"else": {}}),
    ],
)
def test_what_a_question_needs_of_a_client(asked: Any, declared: Any, missing: Any) -> None:
    assert missing_capabilities([question(*asked)], declared) == missing


def test_questions_are_shown_with_the_bytes_of_their_parameters() -> None:
    questions = [Question('a"b', "roots/list", b""), Question("c", "elicitation/create", b'{ "z": 1.0}')]
    assert input_requests(questions) == (
        b'{"a\\"b":{"method":"roots/list"},"c":{"method":"elicitation/create","params":{ "z": 1.0}}}'
    )
