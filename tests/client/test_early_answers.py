"""Answers that came before their questions: used when they answer them, asked for otherwise. Contract, section 10.2."""

import json
from typing import Any

import pytest
from taskstore.v1 import leases_pb2, types_pb2

from store_service.client import Answer, Context, Form, Roots, Sampling, Url
from store_service.client.early_answers import fitting_keys
from store_service.client.questions import Question
from store_service.client.testing import WorkflowTest

FORM = Form("Send it?", {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]})
YES = {"action": "accept", "content": {"ok": True}}
EVERYTHING: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}


def fitting(question: Question[Any] | leases_pb2.NewInputRequest, **answers: Any) -> list[str]:
    """Which of the answers, by their keys, answer a question that is asked under the name `q`."""
    request = question
    if isinstance(request, Question):
        params = types_pb2.Payload(data=json.dumps(request.params()).encode())
        request = leases_pb2.NewInputRequest(name="q", method=request.method, params=params)
    given = [
        types_pb2.InputAnswer(key=key, response=types_pb2.Payload(data=json.dumps(answer).encode()))
        for key, answer in answers.items()
    ]
    return fitting_keys([request], given)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (FORM, YES),
        (FORM, {"action": "decline"}),
        (FORM, {"action": "cancel", "content": None}),
        (Url("Sign in", "https://example.com"), {"action": "accept"}),
        (Sampling(messages="Hi", max_tokens=1), {"role": "assistant", "content": {"type": "text", "text": "a"}, "model": "m"}),
        (Roots(), {"roots": [{"uri": "file:///a"}]}),
        (Roots(), {"roots": []}),
    ],
)
def test_an_answer_that_answers_its_question_fits(question: Question[Any], answer: Any) -> None:
    assert fitting(question, q=answer) == ["q"]
    assert fitting(question, **{"q#2": answer, "other": answer, "qq": answer, "": answer}) == ["q#2"]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (FORM, {"action": "accept", "content": {"ok": "yes"}}),
        (FORM, {"action": "accept", "content": {}}),
        (FORM, {"action": "accept"}),
        (FORM, {"action": "perhaps"}),
        (FORM, {}),
        (FORM, [YES]),
        (FORM, "accept"),
        (FORM, None),
        (Sampling(messages="Hi", max_tokens=1), {"role": "assistant", "content": ["a"], "model": "m"}),
        (Sampling(messages="Hi", max_tokens=1), {"content": {"type": "text"}}),
        (Roots(), {"roots": [{"name": "no uri"}]}),
        (Roots(), YES),
        (Form("Bad", {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)"}}}), YES),
    ],
)
def test_an_answer_that_does_not_answer_its_question_does_not_fit(question: Question[Any], answer: Any) -> None:
    assert fitting(question, q=answer) == []


def test_an_approval_is_never_answered_by_whoever_called() -> None:
    assert fitting(Form(FORM.message, FORM.schema, approval=True), q=YES) == []
    unknown = leases_pb2.NewInputRequest(name="q", method="new/kind", params=types_pb2.Payload(data=b"{}"))
    assert fitting(unknown, q=YES) == []


async def ask_two(ctx: Context, args: dict[str, Any]) -> dict[str, Any]:
    answers = await ctx.ask_all({"a": FORM, "b": FORM})
    return {name: answer.content for name, answer in answers.items()}


async def test_a_question_whose_early_answer_does_not_fit_stays_open_under_its_key() -> None:
    async with WorkflowTest(ask_two, capabilities=EVERYTHING) as t:
        await t.answer("a", {"action": "accept", "content": {"ok": "yes"}})
        await t.answer("b", YES)
        await t.start()
        assert t.waits_for == "answers to a"
        await t.answer("a", YES)
    assert t.result["structuredContent"] == {"a": {"ok": True}, "b": {"ok": True}}


async def test_early_answers_survive_a_worker_that_dies_before_it_asks() -> None:
    async def work(ctx: Context, args: dict[str, Any]) -> dict[str, Any]:
        await ctx.step("before", lambda: 1)
        answer: Answer = await ctx.ask("a", FORM.message, FORM.schema)
        return {"ok": answer.accepted}

    async with WorkflowTest(work, capabilities=EVERYTHING) as t:
        await t.answer("a", YES)
        t.crash(after="before")
        await t.run()
    assert t.result["structuredContent"] == {"ok": True}
