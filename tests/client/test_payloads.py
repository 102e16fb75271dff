"""Values of user code as JSON: what is refused, and that the rest comes back as it went in."""

import dataclasses
import datetime
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from taskstore.v1 import types_pb2

from store_service.client import ProtocolError
from store_service.client.payloads import from_json, safe_text, to_json
from store_service.client.results import OutputSchemas, to_result

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def back(data: bytes) -> Any:
    return from_json("it", types_pb2.Payload(data=data))


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


@given(VALUES)
def test_json_comes_back_as_it_went_in(value: Any) -> None:
    assert back(to_json("it", value)) == value


def test_nul_big_integers_and_key_order_survive() -> None:
    value = {"z": "a\0b", "a": int("9" * 640), "plain": "\\u0000"}
    assert list(back(to_json("it", value)).items()) == list(value.items())


def test_what_json_has_no_word_for_becomes_what_it_has() -> None:
    @dataclasses.dataclass
    class Point:
        x: int
        at: datetime.date

    assert (
        to_json("it", [Point(1, datetime.date(2026, 7, 28)), (1, 2), {3: {4}}])
        == b'[{"x":1,"at":"2026-07-28"},[1,2],{"3":[4]}]'
    )


@pytest.mark.parametrize("levels", [65, 500, 100_000])
def test_what_is_nested_too_deep_is_refused(levels: int) -> None:
    with pytest.raises(ProtocolError, match="deeper than 64 levels"):
        to_json("it", nested(levels))


def test_64_levels_640_digits_and_brackets_in_text_pass() -> None:
    assert to_json("it", nested(64)) == b"[" * 64 + b"]" * 64
    assert to_json("it", ["[{" * 100 + '\\"' + "[" * 100, "1" * 1000, 10**639])


def test_a_cycle_is_refused() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(ProtocolError, match="deeper"):
        to_json("it", cycle)


@given(st.text(), st.integers(0, 50))
def test_safe_text_is_bounded_and_whole(text: str, most: int) -> None:
    cut = safe_text(text, most_bytes=most)
    assert len(cut.encode()) <= most
    assert "\0" not in cut


def result(value: Any, *, output_schema: bytes = b"") -> Any:
    return json.loads(to_result(value, output_schema=output_schema, schemas=OutputSchemas()))


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


@pytest.mark.must("L-11", "L-17")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("hello", {"content": [text("hello")]}),
        (None, {"content": []}),
        (3, {"content": [text("3")], "structuredContent": {"result": 3}}),
        ([1], {"content": [text("[1]")], "structuredContent": {"result": [1]}}),
        ({"a": 1}, {"content": [text('{"a":1}')], "structuredContent": {"a": 1}}),
        (
            {"content": ["no block"]},
            {"content": [text('{"content":["no block"]}')], "structuredContent": {"content": ["no block"]}},
        ),
        (
            {
                "content": [text("x")],
                "resultType": "task",
                "_meta": {"io.modelcontextprotocol/x": 1, "mine": 2},
                "isError": True,
            },
            {"content": [text("x")], "_meta": {"mine": 2}, "isError": True},
        ),
        (
            {"content": [text("x")], "_meta": {"io.modelcontextprotocol/x": 1}, "structuredContent": {"resultType": 1}},
            {"content": [text("x")], "structuredContent": {"resultType": 1}},
        ),
    ],
)
def test_any_value_becomes_a_tool_result(value: Any, expected: Any) -> None:
    assert result(value) == expected


@pytest.mark.parametrize(
    "block",
    [
        text("x"),
        {"type": "image", "data": "eA==", "mimeType": "image/png"},
        {"type": "audio", "data": "eA==", "mimeType": "audio/wav"},
        {"type": "resource_link", "uri": "file:///x", "name": "x"},
        {"type": "resource", "resource": {"uri": "file:///x", "text": "x"}},
        {"type": "resource", "resource": {"uri": "file:///x", "blob": "eA=="}},
    ],
)
def test_each_kind_of_content_passes_through(block: dict[str, Any]) -> None:
    assert result({"content": [block]}) == {"content": [block]}
    del block[next(name for name in block if name != "type")]
    assert "structuredContent" in result({"content": [block]}), "half a block is no tool result"


@pytest.mark.must("L-12")
def test_an_output_schema_is_kept_to_by_every_kind_of_value() -> None:
    schema = b'{"type": "object", "properties": {"result": {"type": "string"}}, "required": ["result"]}'
    assert result("x", output_schema=schema)["structuredContent"] == {"result": "x"}
    values: list[Any] = [3, None, {"a": 1}, {"content": [], "structuredContent": {}}, {"content": []}]
    for value in values:
        with pytest.raises(ProtocolError, match="output schema"):
            result(value, output_schema=schema)
    assert result({"content": [], "isError": True}, output_schema=schema) == {"content": [], "isError": True}


@pytest.mark.parametrize("schema", [b"{", b'{"type": 3}', b'{"$ref": "https://example.com/schema"}'])
def test_an_output_schema_that_cannot_be_used_is_told_as_such(schema: bytes) -> None:
    with pytest.raises(ProtocolError, match="cannot be used"):
        result(3, output_schema=schema)


def test_compiled_schemas_are_bounded() -> None:
    schemas = OutputSchemas()
    for number in range(300):
        to_result({}, output_schema=b'{"title": "%d"}' % number, schemas=schemas)
    assert len(schemas._compiled) == 256
