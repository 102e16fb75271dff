"""Questions to the caller's client: asked as MCP says, only where the client can answer, and their answers as values."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from store_service.client import (
    Answer,
    Context,
    Form,
    InputTimeout,
    ProtocolError,
    Question,
    Root,
    Roots,
    Sample,
    Sampling,
    SyncContext,
    Url,
)
from store_service.client.testing import WorkflowTest

MCP = json.loads(Path(__file__).with_name("mcp_input.schema.json").read_text())
FORM = {
    "type": "object",
    "properties": {
        "ok": {"type": "boolean", "title": "Shall it be sent?", "default": False},
        "to": {"type": "string", "format": "email"},
        "copies": {"type": "integer", "minimum": 1},
        "paper": {"type": "string", "oneOf": [{"const": "a4", "title": "A4"}]},
        "tags": {"type": "array", "items": {"type": "string", "enum": ["x", "y"]}},
    },
    "required": ["ok"],
}
ALL: dict[str, Any] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}, "context": {}},
    "roots": {},
}
EVERY_OPTION = Sampling(
    messages=[{"role": "user", "content": {"type": "text", "text": "Hello"}}],
    max_tokens=100,
    system_prompt="Be brief.",
    temperature=0.5,
    stop_sequences=["\n"],
    model_preferences={"hints": [{"name": "small"}], "speedPriority": 1},
    include_context="thisServer",
    metadata={"trace": "1"},
    tools=[{"name": "look", "inputSchema": {"type": "object"}}],
    tool_choice={"mode": "auto"},
)


def check(name: str, value: Any) -> None:
    """Raises unless the value is what MCP calls by this name."""
    jsonschema_rs.Draft202012Validator({**MCP, "$ref": f"#/$defs/{name}"}).validate(value)


async def ask_each(ctx: Context, args: dict[str, Any]) -> None:
    ask = args["ask"]
    if ask == "form":
        seen.append(await ctx.ask("form", "Send it?", FORM))
    elif ask == "url":
        seen.append(await ctx.ask_url("url", "Please sign in", "https://example.com/sign-in"))
    elif ask == "sample":
        seen.append(await ctx.sample("sample", "Say hello", max_tokens=100, system_prompt="Be brief."))
    else:
        seen.append(await ctx.roots())


def ask_each_in_a_thread(ctx: SyncContext, args: dict[str, Any]) -> None:
    ask = args["ask"]
    if ask == "form":
        seen.append(ctx.ask("form", "Send it?", FORM))
    elif ask == "url":
        seen.append(ctx.ask_url("url", "Please sign in", "https://example.com/sign-in"))
    elif ask == "sample":
        seen.append(ctx.sample("sample", "Say hello", max_tokens=100, system_prompt="Be brief."))
    else:
        seen.append(ctx.roots())


seen: list[Any] = []
ACCEPTED = {"action": "accept", "content": {"ok": True, "copies": 2}}
SAID = {"role": "assistant", "content": {"type": "text", "text": "Hello!"}, "model": "small", "stopReason": "endTurn"}
ROOTS = {"roots": [{"uri": "file:///home", "name": "Home"}, {"uri": "file:///tmp"}]}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], Any]] = {
    "form": (
        "elicitation/create",
        {"mode": "form", "message": "Send it?", "requestedSchema": FORM},
        ACCEPTED,
        Answer("accept", {"ok": True, "copies": 2}),
    ),
    "url": (
        "elicitation/create",
        {"mode": "url", "message": "Please sign in", "url": "https://example.com/sign-in"},
        {"action": "decline"},
        Answer("decline"),
    ),
    "sample": (
        "sampling/createMessage",
        {
            "messages": [{"role": "user", "content": {"type": "text", "text": "Say hello"}}],
            "maxTokens": 100,
            "systemPrompt": "Be brief.",
        },
        SAID,
        Sample("assistant", {"type": "text", "text": "Hello!"}, "small", "endTurn"),
    ),
    "roots": ("roots/list", {}, ROOTS, [Root("file:///home", "Home"), Root("file:///tmp", None)]),
}


@pytest.mark.must("R-04", "E-04")
@pytest.mark.parametrize("function", [ask_each, ask_each_in_a_thread])
@pytest.mark.parametrize("kind", CASES)
async def test_each_kind_is_asked_as_mcp_says_and_its_answer_is_a_value(function: Callable[..., Any], kind: str) -> None:
    method, params, response, value = CASES[kind]
    seen.clear()
    async with WorkflowTest(function, capabilities=ALL) as t:
        await t.start({"ask": kind})
        assert t.questions == {kind: {"method": method, "params": params}}
        check("InputRequest", t.questions[kind])
        check("InputResponse", response)
        t.crash(after=kind)
        await t.answer(kind, response)
    assert seen == [value], "a resumed run sees the same, and only it got so far"
    assert t.runs == ["suspended", "lease_lost", "completed"]


def test_every_option_of_a_sampling_is_said_as_mcp_says() -> None:
    params = EVERY_OPTION.params()
    check("CreateMessageRequestParams", params)
    known = set(MCP["$defs"]["CreateMessageRequestParams"]["properties"])
    assert set(params) == known


def test_the_text_of_a_sample_is_all_of_its_text() -> None:
    blocks = [{"type": "text", "text": "a"}, {"type": "image", "data": "", "mimeType": "x"}, {"type": "text", "text": "b"}]
    assert Sample("assistant", blocks, "small", None).text == "ab"


@pytest.mark.must("E-03")
@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"type": "string", "properties": {}},
        {"type": "object", "properties": {"x": {}}},
        {"type": "object", "properties": {"x": {"type": "object", "properties": {}}}},
        {"type": "object", "properties": {"x": 1}},
    ],
)
def test_a_form_that_mcp_does_not_allow_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="form must have"):
        Form("?", schema)
    with pytest.raises(jsonschema_rs.ValidationError):
        check("ElicitRequestFormParams", {"message": "?", "requestedSchema": schema})


MISSING: list[tuple[Question[Any], dict[str, Any] | None, dict[str, Any]]] = [
    (Form("?", FORM), None, {"elicitation": {"form": {}}}),
    (Form("?", FORM), {"elicitation": {"url": {}}}, {"elicitation": {"form": {}}}),
    (Url("?", "https://example.com"), {"elicitation": {}}, {"elicitation": {"url": {}}}),
    (Sampling(messages="?", max_tokens=1), {"elicitation": {}}, {"sampling": {}}),
    (EVERY_OPTION, {"sampling": {}}, {"sampling": {"tools": {}, "context": {}}}),
    (EVERY_OPTION, {}, {"sampling": {"tools": {}, "context": {}}}),
    (Roots(), {"sampling": {}}, {"roots": {}}),
]


@pytest.mark.must("B-29", "R-11")
@pytest.mark.parametrize(("question", "declared", "missing"), MISSING)
async def test_a_kind_that_the_client_did_not_declare_fails_the_task_and_is_named(
    question: Question[Any], declared: dict[str, Any] | None, missing: dict[str, Any]
) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> None:
        await ctx.ask_all(
            {"fine": Form("?", FORM), "x": question} if ctx.client.can("elicitation", "form") else {"x": question}
        )

    async with WorkflowTest(report, capabilities=declared) as t:
        with pytest.raises(ProtocolError) as raised:
            await t.run()
    assert (raised.value.code, raised.value.data) == (-32021, {"requiredCapabilities": missing})
    error = {"code": raised.value.code, "message": raised.value.message, "data": raised.value.data}
    check("MissingRequiredClientCapabilityError", {"jsonrpc": "2.0", "id": 1, "error": error})
    assert (t.state, t.runs, t.steps) == ("FAILED", ["failed"], [])


@pytest.mark.parametrize("declared", [{"elicitation": {}}, {"elicitation": {"form": {}}}])
async def test_elicitation_without_modes_means_forms(declared: dict[str, Any]) -> None:
    async with WorkflowTest(ask_each, capabilities=declared) as t:
        await t.start({"ask": "form"})
        assert t.waits_for == "answers to form"


async def ask_several(ctx: Context, args: dict[str, Any]) -> Any:
    answers = await ctx.ask_all(
        {"name": Form("Name?", FORM), "page": Url("Sign", "https://x.example"), "roots": Roots()}, timeout=60
    )
    return {name: None if answer is None else str(answer) for name, answer in answers.items()}


async def test_several_questions_are_open_at_once_and_the_task_goes_on_with_the_last_answer() -> None:
    async with WorkflowTest(ask_several, capabilities=ALL) as t:
        await t.answer("page", {"action": "cancel"})  # given before it was asked
        await t.start()
        assert list(t.questions) == ["name", "roots"]
        await t.answer("roots", {"roots": []})
        assert t.waits_for == "answers to name"
        await t.accept("name", ok=True)
    assert t.result["structuredContent"] == {
        "name": "Answer(action='accept', content={'ok': True})",
        "page": "Answer(action='cancel', content={})",
        "roots": "[]",
    }
    assert t.steps == ["ask_all"]


async def test_several_questions_past_their_time_give_the_answers_that_came() -> None:
    async with WorkflowTest(ask_several, capabilities=ALL) as t:
        await t.start()
        await t.answer("roots", {"roots": []})
        t.crash(after="ask_all")
        await t.advance(60)
    assert t.result["structuredContent"] == {"name": None, "page": None, "roots": "[]"}
    assert t.runs == ["suspended", "lease_lost", "completed"]


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_one_question_past_its_time_raises(kind: str) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> str:
        with pytest.raises(InputTimeout) as raised:
            await ctx.ask("name", "Name?", FORM, timeout=60)
        return raised.value.question

    def blocking(ctx: SyncContext, args: dict[str, Any]) -> str:
        with pytest.raises(InputTimeout) as raised:
            ctx.ask("name", "Name?", FORM, timeout=60)
        return raised.value.question

    async with WorkflowTest(report if kind == "async" else blocking, capabilities=ALL) as t:
        await t.start()
        await t.advance(60)
    assert t.result["content"] == [{"type": "text", "text": "name"}]


@pytest.mark.must("T-17", "T-18")
async def test_a_question_asked_again_has_a_key_of_its_own() -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> Any:
        await ctx.ask_all({"name": Form("Name?", FORM)})
        answers = [await ctx.ask("name", "Name?", FORM) for _ in range(2)]
        return {"names": [answer.content["to"] for answer in answers]}

    async with WorkflowTest(report, capabilities=ALL) as t:
        await t.start()
        for key, to in ("name", "a"), ("name#2", "b"), ("name#3", "c"):
            assert list(t.questions) == [key]
            await t.accept(key, to=to)
    assert t.result["structuredContent"] == {"names": ["b", "c"]}
    assert t.steps == ["ask_all", "name", "name#2"]


@pytest.mark.parametrize("response", [{}, {"action": "maybe"}, [], "yes", {"action": "accept", "content": [1]}])
async def test_an_answer_that_is_none_fails_the_task(response: Any) -> None:
    async with WorkflowTest(ask_each, capabilities=ALL) as t:
        await t.start({"ask": "form"})
        await t.answer("form", response)
        with pytest.raises(ProtocolError, match="the answer to 'form' is no answer to elicitation/create"):
            _ = t.result


async def other_questions(ctx: Context, args: dict[str, Any]) -> None:
    await ctx.ask_all({"name": Form("Name?", FORM), "other": Roots()}, name="form")


async def one_question_more(ctx: Context, args: dict[str, Any]) -> None:
    await ctx.ask_all({"form": Form("Send it?", FORM), "other": Roots()}, name="form")


async def another_question(ctx: Context, args: dict[str, Any]) -> None:
    await ctx.ask_all({"for": Form("Name?", FORM)}, name="form")


@pytest.mark.parametrize("changed", [other_questions, one_question_more, another_question])
async def test_code_that_asks_other_questions_than_were_answered_fails_the_task(changed: Callable[..., Any]) -> None:
    async with WorkflowTest(ask_each, capabilities=ALL) as t:
        await t.start({"ask": "form"})
        t.function = changed
        await t.accept("form", ok=True)
        with pytest.raises(ProtocolError, match="changed under a running task: step 'form' waits for answers to '"):
            _ = t.result


async def test_questions_that_the_store_would_refuse_are_refused_at_once() -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> None:
        for names in ([], ["", "a"], ["a#2"], ["ä" * 65], ["a\0"], [str(number) for number in range(17)]):
            with pytest.raises(ValueError, match="question"):
                await ctx.ask_all({name: Form("?", FORM) for name in names})
        await ctx.ask("big", "x" * 65_536, FORM)

    async with WorkflowTest(report, capabilities=ALL) as t:
        with pytest.raises(ProtocolError, match=r"question 'big' is \d+ bytes of JSON, and at most 65536 can be kept"):
            await t.run()
